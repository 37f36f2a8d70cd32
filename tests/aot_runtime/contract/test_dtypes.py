"""Scalars as kernels get them."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from aot_runtime.contract.dtypes import bfloat16_bits


def test_bfloat16_bits():
    """As ml_dtypes rounds numbers that float32 has: of every exponent, near ties and at them, and what is no number."""
    random = np.random.default_rng(0)
    words = random.integers(0, 2**32, 20_000, np.uint32)
    words[::3] = words[::3] & 0xFFFF0000 | 0x8000  # ties
    values = words.view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 3.38e38)]
    expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert [bfloat16_bits(value) for value in values.tolist()] == expected.tolist()
    special = (0.0, -0.0, 1, -2, math.inf, -math.inf, math.nan)
    assert [bfloat16_bits(value) for value in special] == [0, 0x8000, 0x3F80, 0xC000, 0x7F80, 0xFF80, 0x7FC0]
    assert bfloat16_bits(1 + 2**-8 + 2**-40) == 0x3F81, "a number that float32 has not is rounded once"
    for value in (3.39e38 * 1.01, -1e39, 1e300):
        with pytest.raises(OverflowError):
            bfloat16_bits(value)
