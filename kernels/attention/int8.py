"""Attention whose products are both of int8.

A first pass over the keys finds each row's maximum, to which probabilities are rounded in the second pass. All sums are
sums of integers. So the result depends neither on the size of the blocks nor on their order. With form.FEATURES every
block is masked, so that one loop computes all scores: the compiler fuses products and sums differently in different
loops.
"""

import triton
import triton.language as tl

from kernels.attention.inner import block_at, hidden_keys, load_tile, multiply, rows_from, visible_scores
from kernels.attention.problem import Span
from kernels.common.softmax import LOG2_E

LARGEST: tl.constexpr = tl.constexpr(127.0)
LOWEST: tl.constexpr = tl.constexpr(-(2**31))
"""Below every product: the maximum of a row that has seen no key."""
ROUNDER: tl.constexpr = tl.constexpr(12582912.0)
"""1.5 * 2 ** 23: a sum with it is rounded half to even to an integer."""
ROUNDER_BITS: tl.constexpr = tl.constexpr(0x4B400000)


@triton.jit
def attend_int8(q_tile, tile, keys, scoring, whole, edges, form: tl.constexpr):
    """Attention of a tile of queries to the keys of two spans, of which only those of `edges` need masks.

    q_tile: int8 [BLOCK_M, HEAD_DIM]; tile: QueryTile, keys: KeyHead of int8, scoring: Scoring, with more than a scale
    only if form.FEATURES.

    Returns acc, the weighted sums of values, int32 [BLOCK_M, HEAD_DIM_V], and, each [BLOCK_M]: row_max, fp32 in units
    of log2; row_sum, fp32, the sum of exponentials relative to it; weight, int32, the sum of the rounded ones, which
    acc is to be divided by. A product of acc may reach 127 * 128, so at most 2 ** 17 keys fit.
    """
    acc = tl.zeros([form.BLOCK_M, form.HEAD_DIM_V], tl.int32)
    row_sum = tl.zeros([form.BLOCK_M], tl.float32)
    weight = tl.zeros([form.BLOCK_M], tl.int32)
    if form.FEATURES:
        every = Span(edges.begin, edges.begin, edges.begin, edges.end)
        best = tl.full([form.BLOCK_M], float("-inf"), tl.float32)
        best = highest(best, q_tile, tile, keys, scoring, every, form, True)
        acc, row_sum, weight = weigh(acc, row_sum, weight, best, q_tile, tile, keys, scoring, every, form, True)
        row_max = best
    else:
        best = tl.full([form.BLOCK_M], LOWEST, tl.int32)
        best = highest(best, q_tile, tile, keys, scoring, whole, form, False)
        best = highest(best, q_tile, tile, keys, scoring, edges, form, True)
        acc, row_sum, weight = weigh(acc, row_sum, weight, best, q_tile, tile, keys, scoring, whole, form, False)
        acc, row_sum, weight = weigh(acc, row_sum, weight, best, q_tile, tile, keys, scoring, edges, form, True)
        row_max = tl.where(best == LOWEST, float("-inf"), best.to(tl.float32) * (scoring.scale * LOG2_E))
    return acc, row_max, row_sum, weight


@triton.jit
def highest(best, q_tile, tile, keys, scoring, span, form: tl.constexpr, MASKED: tl.constexpr):
    """Return the maximum of `best` and each row's products with the keys of a span: [BLOCK_M], int32; with
    form.FEATURES, of scores, fp32 in units of log2."""
    for at in range(span.begin, span.end - (span.hole_end - span.hole), form.BLOCK_N):
        start = block_at(at, span, MASKED and form.BOUND_LEFT)
        products, _ = multiply(q_tile, tile, keys, start, form, MASKED)
        if form.FEATURES:
            products = visible_scores(products.to(tl.float32), tile, keys, scoring, start, form, MASKED)
        elif MASKED:
            products = tl.where(hidden(tile, keys, scoring, start, form), LOWEST, products)
        best = tl.maximum(best, tl.max(products, 1))
    return best


@triton.jit
def weigh(acc, row_sum, weight, best, q_tile, tile, keys, scoring, span, form: tl.constexpr, MASKED: tl.constexpr):
    """Add the keys of a span to the sums; `best`, from `highest`, is final."""
    scale = scoring.scale * LOG2_E
    for at in range(span.begin, span.end - (span.hole_end - span.hole), form.BLOCK_N):
        start = block_at(at, span, MASKED and form.BOUND_LEFT)
        products, _ = multiply(q_tile, tile, keys, start, form, MASKED)
        if form.FEATURES:
            scores = visible_scores(products.to(tl.float32), tile, keys, scoring, start, form, MASKED)
            # -inf - -inf is not a number.
            p = tl.exp2(scores - tl.where(best == float("-inf"), 0.0, best)[:, None])
        else:
            p = tl.exp2((products - best[:, None]).to(tl.float32) * scale)
            if MASKED:
                p = tl.where(hidden(tile, keys, scoring, start, form), 0.0, p)
        rounded = tl.fma(p, LARGEST, ROUNDER).to(tl.int32, bitcast=True) - ROUNDER_BITS
        row_sum += tl.sum(p, 1)
        weight += tl.sum(rounded, 1)
        v_tile = load_tile(
            rows_from(keys.v, start), tl.arange(0, form.BLOCK_N), tl.arange(0, form.HEAD_DIM_V), keys.seqlen - start,
            keys.head_dim_v, MASKED, form.PADDED,
        )  # fmt: skip
        acc = tl.dot(rounded.to(tl.int8), v_tile, acc)
    return acc, row_sum, weight


@triton.jit
def hidden(tile, keys, scoring, start, form: tl.constexpr):
    """Mark the keys from `start` on that each query does not see."""
    offsets = tl.arange(0, form.BLOCK_N)
    return hidden_keys(tile, scoring, start, offsets, keys.seqlen, form, True)
