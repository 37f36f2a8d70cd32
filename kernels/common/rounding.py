"""Rounding to narrower dtypes."""

import math

import triton
import triton.language as tl

ROUNDER: tl.constexpr = tl.constexpr(12582912.0)
"""1.5 * 2**23: a float32 sum with it has no bits below 1, so adding and subtracting rounds half to even."""


@triton.jit
def half_to_even(x):
    """Round fp32 to the nearest integer, half to even, for magnitudes up to 2**22."""
    return (x + ROUNDER) - ROUNDER


@triton.jit
def quotient(x, divisor):
    """x / divisor in fp32, rounded to nearest. Triton's `/` may be off by two units in the last place."""
    return tl.div_rn(x, tl.broadcast_to(divisor, x.shape))


@triton.jit
def scale_of(largest, LARGEST: tl.constexpr):
    """Return the scale that maps `largest`, fp32, to LARGEST: their quotient, rounded to the nearest fp32.

    A product with 1 / LARGEST, which is rounded itself, gives another scale for most magnitudes.
    """
    return tl.div_rn(largest, tl.full(largest.shape, LARGEST, tl.float32))


@triton.jit
def power_of_two_above(x):
    """Round a positive, normal fp32 up to a power of two."""
    return ((x.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.constexpr_function
def truncation_loss(dtype, HAS_PAIRS: bool) -> float:
    """Return the base-2 logarithm of the average factor by which `truncate` makes values smaller; 0 where it rounds.

    If mantissas m are as frequent as 1 / m, the mean of the part cut off is 1 / (2 ln 2) of half a last place of 1.
    """
    if HAS_PAIRS or dtype not in (tl.float16, tl.bfloat16):
        return 0.0
    return math.log2(1 + 2.0 ** -(dtype.fp_mantissa_width + 1) / (2 * math.log(2)))


@triton.jit
def truncate(x, dtype: tl.constexpr, HAS_PAIRS: tl.constexpr):
    """Convert fp32 to `dtype`: round to nearest or, where that is slow, truncate; see `truncation_loss`.

    HAS_PAIRS: the hardware rounds a pair of fp32 to 16 bits in one instruction. Without it, rounding to the nearest
    takes three instructions a pair, and truncating takes one.
    """
    if HAS_PAIRS or (dtype != tl.float16 and dtype != tl.bfloat16):
        result = x.to(dtype)
    elif dtype == tl.float16:
        result = x.to(dtype, fp_downcast_rounding="rtz")
    else:
        result = (x.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(dtype, bitcast=True)
    return result
