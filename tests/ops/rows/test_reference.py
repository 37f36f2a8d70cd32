"""The reference of softmax itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from kernels.rows.reference import softmax, softmax_same_dtype


def test_softmax_matches_naive_loops():
    x = (3 * np.random.default_rng(0).standard_normal((6, 31))).astype(np.float16)
    naive = [[math.exp(float(a)) / math.fsum(math.exp(float(b)) for b in row) for a in row] for row in x]
    np.testing.assert_allclose(softmax(x), naive, rtol=1e-13)


@pytest.mark.parametrize("function", (softmax, softmax_same_dtype))
def test_softmax_of_special_rows(function: Callable[..., np.ndarray]):
    x = np.array([[1000, 1000], [-np.inf, 0], [-np.inf, -np.inf], [np.inf, 0], [np.nan, 0]], np.float32)
    np.testing.assert_array_equal(function(x), [[0.5, 0.5], [0, 1]] + 3 * [[np.nan, np.nan]])


@pytest.mark.parametrize("dtype", (np.float16, ml_dtypes.bfloat16, np.float32))
def test_softmax_of_the_same_dtype_errs_as_it_does(dtype: type):
    x = np.random.default_rng(0).standard_normal((20, 64)).astype(dtype)
    result = softmax_same_dtype(x)
    error = np.abs(result.astype(float) / softmax(x) - 1).max()
    resolution = float(ml_dtypes.finfo(dtype).eps)
    assert result.dtype == dtype and resolution / 8 < error < 8 * resolution
