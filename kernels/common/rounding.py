"""Rounding to narrower dtypes."""

import triton
import triton.language as tl

ROUNDER: tl.constexpr = tl.constexpr(12582912.0)
"""1.5 * 2**23: a float32 sum with it has no bits below 1, so adding and subtracting rounds half to even."""


@triton.jit
def half_to_even(x):
    """fp32 rounded to the nearest integer, for magnitudes up to 2**22."""
    return (x + ROUNDER) - ROUNDER


@triton.jit
def narrow(x, dtype: tl.constexpr, HAS_BF16_CVT: tl.constexpr):
    """fp32 rounded to the nearest of `dtype`; NaN is kept by other dtypes than bfloat16.

    HAS_BF16_CVT: the hardware rounds fp32 to bfloat16 in one instruction.
    """
    if dtype == tl.bfloat16 and not HAS_BF16_CVT:
        # Half up: one addition, and one permutation a pair. Half to even and the check for NaN would take nine
        # instructions a pair, a quarter of attention's loop. Ties are rare, and a NaN among probabilities gets to the
        # result through the row's sum.
        return ((x.to(tl.uint32, bitcast=True) + 0x8000) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)
