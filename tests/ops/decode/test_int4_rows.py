"""Rows of 4 bits in numpy: the layout by hand, and the error of what is read."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.decode.reference import dequantise_int4, quantise_int4

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
