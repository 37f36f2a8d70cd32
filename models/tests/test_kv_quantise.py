"""Quantised keys and values in numpy: views of perf-kernels' rows, and heads of 8 bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot_models.kv_quantise import quantise_heads, split_rows

RNG = np.random.default_rng(0)


def test_rows_of_perf_kernels_are_split_in_place():
    rows = RNG.integers(-(2**31), 2**31, (2, 7, 4 + 32 // 8), np.int64).astype(np.int32)
    packed, pairs = split_rows(rows, 4)
    assert (packed.dtype, packed.shape) == (np.uint8, (2, 7, 16)) and all(
        np.shares_memory(view, rows) for view in (packed, pairs)
    )
    assert (pairs.dtype, pairs.shape) == (np.float16, (2, 7, 4, 2))
    # The factor of group 1 is the low half of word 1, the first byte of numbers the lowest of word 4.
    assert rows[1, 3, 1] & 0xFFFF == pairs[1, 3, 1, :1].view(np.uint16)[0] and rows[1, 3, 4] & 0xFF == packed[1, 3, 0]
    with pytest.raises(ValueError, match="contiguous"):
        split_rows(rows[..., ::2], 2)


@pytest.mark.parametrize(
    ("dtype", "largest", "relative"),
    [(np.int8, 127, 0.5 / 127), (ml_dtypes.float8_e4m3fn, 448, 2**-4), (ml_dtypes.float8_e4m3fnuz, 240, 2**-4)],
)
def test_heads_use_the_whole_range(dtype: type, largest: float, relative: float):
    x = RNG.standard_normal((2, 3, 20, 8)).astype(np.float16)
    numbers, factors = quantise_heads(x, dtype)
    assert numbers.dtype == dtype and (factors.dtype, factors.shape) == (np.float32, (2, 3))
    np.testing.assert_array_equal(np.abs(numbers.astype(np.float64)).max((2, 3)), largest)
    error = np.abs(numbers.astype(np.float64) * factors[:, :, None, None] - x)
    bound = np.abs(x).max((2, 3), keepdims=True) if dtype == np.int8 else np.maximum(np.abs(x), 2**-5)
    assert (error <= 1.001 * relative * bound.astype(np.float64)).all()
