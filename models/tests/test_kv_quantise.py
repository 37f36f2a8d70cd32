"""Quantised caches in numpy: the layout by hand, and how near what is read is to what was written."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot_runtime.caches import dequantise_int4, join_rows, quantise_heads, quantise_int4, split_rows

RNG = np.random.default_rng(0)


def test_a_row_by_hand():
    """Group 0 goes from 1 to 16 in steps of 1, group 1 from -30 to 0 in steps of 2."""
    x = np.array([1, 16, 4, 9, -30, 0, -28, -2], np.float32)
    packed, pairs = quantise_int4(x, 2)
    np.testing.assert_array_equal(pairs, np.array([[1, 1], [2, -30]], np.float16))
    np.testing.assert_array_equal(packed, [0xF0, 0x83, 0xF0, 0xE1])
    np.testing.assert_array_equal(dequantise_int4(packed, pairs), x)


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_what_is_read_is_within_half_a_step(groups: int):
    x = RNG.standard_normal((3, 5, 64)).astype(np.float32)
    packed, pairs = quantise_int4(x, groups)
    assert packed.dtype == np.uint8 and packed.shape == (3, 5, 32)
    assert pairs.dtype == np.float16 and pairs.shape == (3, 5, groups, 2)
    step = np.repeat(pairs[..., 0].astype(np.float32), 64 // groups, -1)
    # Both of a pair are rounded to fp16, which may cut a little of the range off.
    assert (np.abs(dequantise_int4(packed, pairs) - x) <= 0.5 * step + 2**-7).all()


def test_rows_of_one_number_have_no_step_and_groups_divide_a_row():
    packed, pairs = quantise_int4(np.full((1, 16), 0.5, np.float32), 1)
    assert (packed == 0).all() and (dequantise_int4(packed, pairs) == 0.5).all()
    with pytest.raises(ValueError, match="groups = 3 of head_dim = 64"):
        quantise_int4(np.zeros((1, 64), np.float32), 3)


def test_rows_of_perf_kernels_are_the_same_bytes():
    packed, pairs = quantise_int4(RNG.standard_normal((2, 7, 32)).astype(np.float32), 4)
    rows = join_rows(packed, pairs)
    assert rows.dtype == np.int32 and rows.shape == (2, 7, 4 + 32 // 8)
    # The factor of group 1 is the low half of word 1, the first byte of numbers the lowest of word 4.
    assert rows[1, 3, 1] & 0xFFFF == pairs[1, 3, 1, :1].view(np.uint16)[0] and rows[1, 3, 4] & 0xFF == packed[1, 3, 0]
    views = split_rows(rows, 4)
    assert all(np.shares_memory(view, rows) for view in views)
    np.testing.assert_array_equal(views[0], packed)
    np.testing.assert_array_equal(views[1], pairs)


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
