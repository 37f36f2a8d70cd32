"""Smooth bound of scores."""

import triton
import triton.language as tl

from kernels.common.softmax import LOG2_E


@triton.jit
def cap(products, scale, softcap):
    """softcap * tanh(products * scale / softcap), fp32; softcap > 0."""
    e = tl.exp2(products * (2 * LOG2_E * scale / softcap))
    return softcap - 2 * softcap / (e + 1)
