"""Instruction sequences in which equal loop iterations are stored once."""

from __future__ import annotations

import numpy as np
import pytest

from aot_emulator.timing.folding import fold

LOOP = [7, 8, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 3, 2, 0, 1, 2, 0, 1, 2, 9]


def test_only_iterations_that_are_alike_are_one():
    found = fold(np.array(LOOP), 0)
    parts = [(part.tolist(), count) for part, count in found.parts]
    assert parts == [([7, 8], 1), ([0, 1, 2], 3), ([0, 3, 2, 0, 1, 2, 0, 1, 2, 9], 1)]
    assert found.unfolded().tolist() == LOOP and found.length == len(LOOP)
    assert found.unfolded(2).tolist() == [7, 8, 0, 1, 2, 0, 1, 2, 0, 3, 2, 0, 1, 2, 0, 1, 2, 9]
    assert (found.repetitions(), found.repetitions(2)) == (3, 2)


@pytest.mark.parametrize("header", [None, 5, 7])
def test_a_sequence_without_a_loop(header: int | None):
    found = fold(np.array(LOOP), header)
    assert [(part.tolist(), count) for part, count in found.parts] == [(LOOP, 1)] and found.repetitions() == 0
