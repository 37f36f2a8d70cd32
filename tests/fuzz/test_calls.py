"""Memory does not grow over many calls over the double. `FUZZ_COUNT` makes more of them."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from aot_runtime import open_bundle
from tests.fuzz.calls import EPOCHS, KINDS, make_calls
from tests.fuzz.trial import count_of
from tests.support.hip_double.double import Double, in_double


@pytest.mark.slow
@in_double()
def test_nothing_grows(tmp_path: Path):
    growth = make_calls(tmp_path, count_of(600_000))
    assert len(growth.samples) == EPOCHS
    assert growth.faults() == [], growth.faults()


@in_double()
def test_repeated_calls_leave_nothing(small_bundle: Path):
    bundle, double, host = open_bundle(small_bundle), Double(), np.ones((2, 3), np.float32)
    x, stream = bundle.device.array(host), bundle.device.stream()

    def left(calls: int) -> tuple[int, list[int]]:
        for _ in range(calls):
            bundle.affine(x)
            bundle.affine(x, stream=stream)
            bundle.affine(host)
        gc.collect()
        return sys.getallocatedblocks(), [double.alive(kind) for kind in KINDS]

    left(100)
    (blocks, alive), (more_blocks, still_alive) = left(100), left(3000)
    assert still_alive == alive and more_blocks < blocks + 300, (alive, still_alive, more_blocks - blocks)
