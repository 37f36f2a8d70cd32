"""Rows of 4 bits in numpy: the layout by hand, and the error of what is read."""

from __future__ import annotations

import numpy as np

from kernels.decode.reference import dequantise_int4, quantise_int4


def test_a_row_by_hand():
    """Group 0 goes from 1 to 16 in steps of 1, group 1 from -30 to 0 in steps of 2."""
    x = np.array([1, 16, 4, 9, -30, 0, -28, -2], np.float32)
    packed, pairs = quantise_int4(x, 2)
    np.testing.assert_array_equal(pairs, np.array([[1, 1], [2, -30]], np.float16))
    np.testing.assert_array_equal(packed, [0xF0, 0x83, 0xF0, 0xE1])
    np.testing.assert_array_equal(dequantise_int4(packed, pairs), x)
