"""Online softmax over blocks of keys, for attention and decoding, and the smooth bound of scores before it.

Scores are in units of log2, since the hardware has exp2. A row's state is row_max, the greatest score so far, -inf at
first, and row_sum, the sum of exponentials relative to it, 0 at first; fp32.
"""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def fold(scores, row_max, row_sum, scale=None, EMPTY: tl.constexpr = True, HEADROOM: tl.constexpr = 0.0):
    """Fold a block of scores [rows, keys] into the state.

    Returns (probabilities relative to the new maximum, factor of all earlier sums, new row_max, new row_sum).

    scale: None, or the factor >= 0 that brings the scores into units of log2: the maximum is then taken first, which
    saves a product per score. EMPTY: a row may have seen nothing but -inf so far. HEADROOM: row_max is by this much
    less than the maximum, and probabilities go up to 2 to this power.
    """
    block_max = tl.max(scores, 1)
    if scale is not None:
        block_max *= scale
    if HEADROOM > 0:
        block_max -= HEADROOM
    new_max = tl.maximum(row_max, block_max)
    # -inf - -inf is NaN.
    origin = tl.where(new_max == float("-inf"), 0.0, new_max) if EMPTY else new_max
    p = tl.exp2(scores - origin[:, None]) if scale is None else tl.exp2(scores * scale - origin[:, None])
    rescale = tl.exp2(row_max - origin)
    return p, rescale, new_max, row_sum * rescale + tl.sum(p, 1)


@triton.jit
def add_logit(acc, row_max, row_sum, logit):
    """Add a logit without a value, fp32 [rows], in units of log2, to each row's sum; return (acc, row_max, row_sum)."""
    new_max = tl.maximum(row_max, logit)
    origin = tl.where(new_max == float("-inf"), 0.0, new_max)
    rescale = tl.exp2(row_max - origin)
    return acc * rescale[:, None], new_max, row_sum * rescale + tl.exp2(logit - origin)


@triton.jit
def inverse(total):
    """1 / total; 1 for a row that saw no key, whose total is 0."""
    return 1.0 / tl.where(total == 0, 1.0, total)


@triton.jit
def log2_sum(row_max, row_sum):
    """Base-2 logarithm of a row's sum of exponentials; -inf for a row that saw no key."""
    return row_max + tl.log2(row_sum)


@triton.jit
def cap(products, scale, softcap):
    """softcap * tanh(products * scale / softcap), fp32; softcap > 0."""
    e = tl.exp2(products * (2 * LOG2_E * scale / softcap))
    return softcap - 2 * softcap / (e + 1)
