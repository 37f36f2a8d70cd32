"""Dispatch of different workgroups to compute units, and their speed when they share one."""

from __future__ import annotations

import numpy as np
import pytest

from aot_emulator.timing.dispatch import dispatch


def done(alone: list[float], together: list[float], units: int, xcds: int = 1, resident: int = 1) -> list[float]:
    return [round(end, 6) for end in dispatch(np.array(alone), np.array(together), units, xcds, resident)]


def test_a_long_workgroup_goes_on_faster_when_its_neighbour_has_ended():
    """Two take 100 and 300 cycles alone, and share a compute unit: both run at half speed until 200; the second then
    runs alone for 200."""
    assert done([100, 300], [200, 600], 1, resident=2) == [400]
    assert done([100, 300], [100, 300], 1, resident=2) == [300]  # neither is in the other's way
    assert done([300, 300], [600, 600], 2, resident=2) == [300, 300]  # each has one to itself


def test_the_next_workgroup_goes_to_what_is_free_first():
    assert done([100, 300, 100, 50], [100, 300, 100, 50], 2) == [250, 300]
    assert done([100, 100, 100], [200, 200, 200], 1, resident=2) == [300]  # the third has the second half to itself


def test_a_die_has_its_own_workgroups():
    """Even numbers go to the first XCD, which does not help the other one, however long that takes."""
    assert done([10, 500, 10, 500], [10, 500, 10, 500], 2, xcds=2) == [20, 1000]
    assert done([10, 500, 10, 500], [10, 500, 10, 500], 2) == [520, 500]


def test_what_is_left_over_never_starts():
    assert done([100], [100], 4, xcds=2) == [100, 0, 0, 0]
    assert done([0, 7], [0, 7], 1) == pytest.approx([7])
