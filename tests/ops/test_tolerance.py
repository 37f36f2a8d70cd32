"""The rule by which a kernel's result passes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kernels.tolerance import assert_close

EXACT, SAME = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.5, 3.0])


@pytest.mark.parametrize(("actual", "same", "floor"), (
    (EXACT + np.array([1, -1, 1]), SAME, 0.0), (EXACT + 0.25, EXACT, 0.25),
    (EXACT.astype(ml_dtypes.bfloat16), EXACT.astype(ml_dtypes.bfloat16), 0.0),
), ids=("twice the error", "the floor on top", "bfloat16"))  # fmt: skip
def test_what_passes(actual: np.ndarray, same: np.ndarray, floor: float):
    assert_close(actual, EXACT, same, floor)


def test_nothing_at_all_passes():
    assert_close(*3 * (np.zeros((0, 3)),), 0.0)


@pytest.mark.parametrize(("actual", "same", "floor", "message"), (
    (EXACT + np.array([0, 0, 1.25]), SAME, 0.0,
     r"out: max error 1.250e\+00 > 1.000e\+00 .*first at \(2,\).*1 of 3 elements"),
    *((np.array([1, bad, 3]), SAME, 1e9, r"first at \(1,\)") for bad in (np.nan, np.inf, -np.inf)),
    *((EXACT, np.array([1, bad, 3]), 0.0, "same-dtype reference is itself not finite") for bad in (np.nan, np.inf)),
    (EXACT[:2], SAME, 1.0, "shape"),
))  # fmt: skip
def test_what_does_not_pass(actual: np.ndarray, same: np.ndarray, floor: float, message: str):
    with pytest.raises(AssertionError, match=message):
        assert_close(actual, EXACT, same, floor, "out")


@pytest.mark.parametrize("special", (np.nan, np.inf, -np.inf))
def test_infinities_and_nans_have_to_be_the_same(special: float):
    exact = np.array([1.0, special])
    assert_close(exact, exact, exact, 0.0)
    for other in (0.0, 1e30, np.inf, -np.inf, np.nan):
        if not np.array_equal([other], [special], equal_nan=True):
            with pytest.raises(AssertionError, match=r"first at \(1,\)"):
                assert_close(np.array([1.0, other]), exact, exact, 1e9)
