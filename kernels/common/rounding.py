"""Rounding to narrower dtypes."""

import triton
import triton.language as tl


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
