"""The inner loop of attention: blocks of keys folded into the online softmax of a tile of queries (FlashAttention-2).

What a kernel knows of its tensors and its tile travels in named tuples, so that every kernel of the family can call
the same few functions. Scores and row maxima are in units of log2: exp2 is what the hardware has.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)
HEADROOM: tl.constexpr = tl.constexpr(7.0)
"""Probabilities of float8 go up to 2 to this power: as far as float8_e4m3fnuz does, so that few of them underflow."""


class Matrix(NamedTuple):
    """A tensor of [batch, heads, rows, columns]: its address, and its strides in elements. None: it is absent."""

    base: tl.tensor
    stride_batch: tl.tensor
    stride_heads: tl.tensor
    stride_rows: tl.tensor
    stride_columns: tl.tensor


class KeyHead(NamedTuple):
    """The keys and values of one sequence and head: [seqlen, head_dim] and [seqlen, head_dim_v].

    v may be None: the keys are the values too. rotated: None, or a second part of the keys, [seqlen, rotated_dim].
    """

    k: tl.tensor
    v: tl.tensor
    stride_k: tl.tensor
    stride_v: tl.tensor
    stride_v_columns: tl.tensor
    seqlen: tl.tensor
    head_dim: tl.tensor
    head_dim_v: tl.tensor
    rotated: tl.tensor
    stride_rotated: tl.tensor
    rotated_dim: tl.tensor


class QueryTile(NamedTuple):
    """BLOCK_M queries of one sequence and head: each one's index (the last one's for those past the end), the key on
    its diagonal, and the first and last key that it sees; [BLOCK_M] each. rotated: what meets that part of the keys,
    [BLOCK_M, ROTATED_DIM], or None."""

    batch: tl.tensor
    head: tl.tensor
    queries: tl.tensor
    diagonal: tl.tensor
    first_key: tl.tensor
    last_key: tl.tensor
    rotated: tl.tensor


class Scoring(NamedTuple):
    """How a product of a query and a key becomes a score: in the order of the fields, what is absent left out.

    scale: fp32, >= 0. softcap: fp32, scores become softcap * tanh(score / softcap). bias: a pointer to each query's row
    of the matrix that is added. slope: fp32, times the distance from the diagonal it is taken off (ALiBi).
    score_operands, mask_operands: what the mods of a kernel are given besides.
    """

    scale: tl.tensor
    softcap: tl.tensor
    bias: tl.tensor
    slope: tl.tensor
    score_operands: tl.tuple
    mask_operands: tl.tuple


@dataclass(frozen=True)
class Form:
    """What the code is compiled for.

    HEAD_DIM, HEAD_DIM_V: powers of two, at least the head dims; PADDED: either may be greater. BLOCK_M: queries of a
    tile; BLOCK_N: keys of a block. BOUND_LEFT, BOUND_RIGHT: whether the keys that a query sees end on that side.
    HAS_BF16_CVT: the hardware rounds fp32 to bfloat16 in one instruction. SCORE_MOD, MASK_MOD: functions as in `mods`,
    or None. INT8_P: probabilities are rounded to int8. ROTATED_DIM: a power of two, at least the rotated dims, if any.
    """

    HEAD_DIM: int
    HEAD_DIM_V: int
    PADDED: bool
    BLOCK_M: int
    BLOCK_N: int
    BOUND_LEFT: bool
    BOUND_RIGHT: bool
    HAS_BF16_CVT: bool
    SCORE_MOD: Any
    MASK_MOD: Any
    INT8_P: bool
    ROTATED_DIM: int


@triton.constexpr_function
def make_form(
    HEAD_DIM, HEAD_DIM_V, PADDED, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT, HAS_BF16_CVT, SCORE_MOD=None,
    MASK_MOD=None, INT8_P=False, ROTATED_DIM=0,
):  # fmt: skip
    """A Form, for a constexpr."""
    return Form(
        HEAD_DIM, HEAD_DIM_V, PADDED, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT, HAS_BF16_CVT, SCORE_MOD, MASK_MOD,
        INT8_P, ROTATED_DIM,
    )  # fmt: skip


class Span(NamedTuple):
    """Keys [begin, hole) and [hole_end, end); begin, hole and hole_end are multiples of BLOCK_N."""

    begin: tl.tensor
    hole: tl.tensor
    hole_end: tl.tensor
    end: tl.tensor


@triton.jit
def attend(
    acc, row_max, row_sum, q_tile, tile, keys, scoring, span, form: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the keys of a span into the online softmax.

    acc: fp32 [BLOCK_M, HEAD_DIM_V]; row_max (in units of log2) and row_sum: fp32 [BLOCK_M]. q_tile: [BLOCK_M,
    HEAD_DIM]. tile: QueryTile, keys: KeyHead, scoring: Scoring, span: Span, form: Form.

    MASKED: blocks may reach over an edge of what a query sees, or of the keys. Otherwise there is no hole, and every
    query sees every key, but for what MASK_MOD hides.

    Keys of int8 or float8 take the dtype of the queries. Values take that of the probabilities, which is float16 for
    queries of int8, else that of the queries. For float8, row_max is HEADROOM less than the maximum.
    """
    MODIFIED: tl.constexpr = not (
        scoring.softcap is None and scoring.bias is None and scoring.slope is None and form.SCORE_MOD is None
    )
    HIDING: tl.constexpr = MASKED or form.MASK_MOD is not None
    # Whether a row may have seen nothing but -inf so far.
    EMPTY: tl.constexpr = (
        (MASKED and (form.BOUND_LEFT or form.BOUND_RIGHT))
        or form.MASK_MOD is not None
        or scoring.bias is not None
        or form.SCORE_MOD is not None
    )
    P: tl.constexpr = tl.float16 if q_tile.dtype == tl.int8 else q_tile.dtype
    columns_v = tl.arange(0, form.HEAD_DIM_V)
    offsets = tl.arange(0, form.BLOCK_N)
    for at in range(span.begin, span.end - (span.hole_end - span.hole), form.BLOCK_N):
        start = block_at(at, span, MASKED and form.BOUND_LEFT)
        products, k_tile = multiply(q_tile, tile, keys, start, form, MASKED)
        products = products.to(tl.float32)
        if MODIFIED or HIDING:
            # Scaled before it is masked: 0 * -inf is not a number.
            scores = visible_scores(products, tile, keys, scoring, start, form, MASKED)
            block_max = tl.max(scores, 1)
        else:
            scale = scoring.scale * LOG2_E
            block_max = tl.max(products, 1) * scale
        if P.primitive_bitwidth == 8:
            block_max -= HEADROOM
        new_max = tl.maximum(row_max, block_max)
        # -inf - -inf is not a number.
        origin = tl.where(new_max == float("-inf"), 0.0, new_max) if EMPTY else new_max
        p = tl.exp2(scores - origin[:, None]) if MODIFIED or HIDING else tl.exp2(products * scale - origin[:, None])

        rescale = tl.exp2(row_max - origin)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        row_max = new_max
        if keys.v is None:
            v_tile = k_tile
        else:
            v_tile = load_tile(
                keys.v + start * keys.stride_v, offsets, keys.stride_v, columns_v, keys.stride_v_columns,
                keys.seqlen - start, keys.head_dim_v, MASKED, form.PADDED,
            )  # fmt: skip
        acc = tl.dot(narrow(p, P, form.HAS_BF16_CVT), v_tile.to(P), acc * rescale[:, None])
    return acc, row_max, row_sum


@triton.jit
def block_at(at, span, HOLE: tl.constexpr):
    """First key of a block, where those of the hole are not counted."""
    return tl.where(at < span.hole, at, at + (span.hole_end - span.hole)) if HOLE else at


@triton.jit
def multiply(q_tile, tile, keys, start, form: tl.constexpr, MASKED: tl.constexpr):
    """Products of the queries and the keys from `start` on: [BLOCK_M, BLOCK_N], int32 if they are int8, else fp32; and
    these keys, [BLOCK_N, HEAD_DIM]."""
    rows = tl.arange(0, form.BLOCK_N)
    left = keys.seqlen - start
    k_tile = load_tile(
        keys.k + start * keys.stride_k, rows, keys.stride_k, tl.arange(0, form.HEAD_DIM), 1, left, keys.head_dim,
        MASKED, form.PADDED,
    )  # fmt: skip
    products = tl.dot(q_tile, tl.trans(k_tile.to(q_tile.dtype)))
    if keys.rotated is not None:
        rotated = load_tile(
            keys.rotated + start * keys.stride_rotated, rows, keys.stride_rotated, tl.arange(0, form.ROTATED_DIM), 1,
            left, keys.rotated_dim, MASKED, form.PADDED,
        )  # fmt: skip
        products = tl.dot(tile.rotated, tl.trans(rotated), products)
    return products, k_tile


@triton.jit
def visible_scores(
    products, tile, keys, scoring, start, form: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Scores in units of log2 of the keys from `start` on; -inf where a query does not see the key."""
    offsets = tl.arange(0, form.BLOCK_N)
    scores = score_tile(products, tile, scoring, start, offsets, keys.seqlen, form, MASKED)
    if MASKED or form.MASK_MOD is not None:
        hidden = hidden_keys(tile, scoring, start, offsets, keys.seqlen, form, MASKED)
        scores = tl.where(hidden, float("-inf"), scores)
    return scores


@triton.jit
def score_tile(products, tile, scoring, start, offsets, seqlen_k, form: tl.constexpr, MASKED: tl.constexpr):
    """Scores in units of log2, from the products [BLOCK_M, BLOCK_N] of queries and the keys `start` + `offsets`."""
    if scoring.softcap is not None:
        scores = cap(products, scoring.scale, scoring.softcap) * LOG2_E
    else:
        scores = products * (scoring.scale * LOG2_E)
    if scoring.bias is not None:
        rows = scoring.bias + start
        if MASKED:
            bias = tl.load(rows[:, None] + offsets[None, :], mask=(offsets < seqlen_k - start)[None, :], other=0.0)
        else:
            bias = tl.load(rows[:, None] + offsets[None, :])
        scores += bias.to(tl.float32) * LOG2_E
    if scoring.slope is not None:
        distance = (tile.diagonal - start).to(tl.float32)[:, None] - offsets.to(tl.float32)[None, :]
        scores -= tl.abs(distance) * (scoring.slope * LOG2_E)
    if form.SCORE_MOD is not None:
        keys = tl.minimum(start + offsets, seqlen_k - 1)[None, :]
        modified = form.SCORE_MOD(
            scores * LN_2, tile.batch, tile.head, tile.queries[:, None], keys, *scoring.score_operands
        )
        scores = modified * LOG2_E
    return scores


@triton.jit
def hidden_keys(tile, scoring, start, offsets, seqlen_k, form: tl.constexpr, MASKED: tl.constexpr):
    """Which of the keys `start` + `offsets` each query does not see, [BLOCK_M, BLOCK_N] or broadcast to it."""
    # Differences, not comparisons with `offsets`: those are loop-invariant, a register each, and would spill.
    hidden = (offsets < 0)[None, :]
    if MASKED and form.BOUND_RIGHT:
        hidden = (tile.last_key - start)[:, None] - offsets[None, :] < 0
    elif MASKED:
        hidden = (seqlen_k - start - offsets <= 0)[None, :]
    if MASKED and form.BOUND_LEFT:
        hidden = hidden | (offsets[None, :] - (tile.first_key - start)[:, None] < 0)
    if form.MASK_MOD is not None:
        keys = tl.minimum(start + offsets, seqlen_k - 1)[None, :]
        seen = form.MASK_MOD(tile.batch, tile.head, tile.queries[:, None], keys, *scoring.mask_operands)
        hidden = hidden | (seen == 0)
    return hidden


@triton.jit
def cap(products, scale, softcap):
    """softcap * tanh(products * scale / softcap), fp32; softcap > 0."""
    e = tl.exp2(products * (2 * LOG2_E * scale / softcap))
    return softcap - 2 * softcap / (e + 1)


@triton.jit
def narrow(p, dtype: tl.constexpr, HAS_BF16_CVT: tl.constexpr):
    """fp32 probabilities rounded to the nearest of `dtype`."""
    if dtype == tl.bfloat16 and not HAS_BF16_CVT:
        # Half up: one addition, and one permutation a pair. Half to even and the check for NaN would take nine
        # instructions a pair, a quarter of the loop; ties are rare, and a NaN gets to the result through the row's sum.
        return ((p.to(tl.uint32, bitcast=True) + 0x8000) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return p.to(dtype)


@triton.jit
def load_tile(
    matrix, rows, stride_rows, columns, stride_columns, row_end, column_end,
    MASK_ROWS: tl.constexpr, MASK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """`rows` and `columns` of a matrix, [len(rows), len(columns)]; 0 outside (row_end, column_end)."""
    pointers = matrix + rows[:, None] * stride_rows + columns[None, :] * stride_columns
    if MASK_ROWS and MASK_COLUMNS:
        tile = tl.load(pointers, mask=(rows[:, None] < row_end) & (columns[None, :] < column_end), other=0.0)
    elif MASK_ROWS:
        tile = tl.load(pointers, mask=rows[:, None] < row_end, other=0.0)
    elif MASK_COLUMNS:
        tile = tl.load(pointers, mask=columns[None, :] < column_end, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile
