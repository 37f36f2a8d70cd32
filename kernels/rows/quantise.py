"""Quantise values in registers to int8 or float8."""

import triton
import triton.language as tl

from kernels.common.rounding import half_to_even, quotient


@triton.jit
def quantise(values, scale, dtype: tl.constexpr, LARGEST: tl.constexpr):
    """values / scale, rounded half to even for int8, saturated at -LARGEST and LARGEST; fp32. A scale of 0 counts as 1.

    The int8 value of NaN is not specified.
    """
    scale = tl.where(scale == 0, 1.0, scale)
    values = saturate(quotient(values, scale), LARGEST)
    if dtype == tl.int8:
        values = half_to_even(values)
    return values


@triton.jit
def saturate(values, LARGEST: tl.constexpr):
    return tl.minimum(tl.maximum(values, -LARGEST), LARGEST)
