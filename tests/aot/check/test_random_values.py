"""Random index tensors: valid by the contract, and useful for finding faults."""

import numpy as np
import pytest

from aot.check.random_values import draw_distinct, draw_offsets

SEQUENCES = [(2, 7, None), (9, 31, None), (5, 12, 3), (6, 4, 1), (3, 9, 4)]
"""(count, extent, longest)"""


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("count", "extent", "longest"), SEQUENCES)
def test_offsets_begin_at_0_never_decrease_and_end_as_far_as_they_can(count, extent, longest, seed):
    offsets = np.array(draw_offsets(count, extent, longest, np.random.default_rng(seed)))
    steps = np.diff(offsets)
    assert len(offsets) == count and offsets[0] == 0 and (steps >= 0).all()
    assert longest is None or (steps <= longest).all()
    assert offsets[-1] == (extent if longest is None else min(extent, longest * (count - 1)))


def test_indices_are_drawn_once_as_far_as_there_are_so_many():
    rng = np.random.default_rng(0)
    assert sorted(draw_distinct(0, 9, 10, rng)) == list(range(10))
    few = draw_distinct(-1, 3, 9, rng)
    assert sorted(set(few)) == [-1, 0, 1, 2, 3] and few.count(-1) == 5, "-1 is nowhere, and may be said often"
    many = draw_distinct(2, 4, 8, rng)
    assert len(many) == 8 and set(many) == {2, 3, 4}
