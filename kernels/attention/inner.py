"""The inner loop of attention: blocks of keys folded into the online softmax of a tile of queries (FlashAttention-2).

Scores and row maxima are in units of log2: exp2 is what the hardware has.
"""

import triton
import triton.language as tl

from kernels.common.rounding import truncate, truncation_loss
from kernels.common.softmax import LN_2, LOG2_E, cap, fold
from kernels.common.tensors import Matrix

HEADROOM: tl.constexpr = tl.constexpr(7.0)
"""Exponent of 2 of the largest float8 probability: the range of float8_e4m3fnuz, so that few of them underflow."""


@triton.jit
def attend_spans(q_tile, tile, keys, scoring, whole, edges, form: tl.constexpr):
    """Fold both spans of a tile; return (acc, row_max, row_sum) as `attend` does, corrected for the loss of truncated
    probabilities of 16 bits."""
    acc = tl.zeros([form.BLOCK_M, form.HEAD_DIM_V], tl.float32)
    row_max = tl.full([form.BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([form.BLOCK_M], tl.float32)
    acc, row_max, row_sum = attend(acc, row_max, row_sum, q_tile, tile, keys, scoring, whole, form, False)
    acc, row_max, row_sum = attend(acc, row_max, row_sum, q_tile, tile, keys, scoring, edges, form, True)
    LOST: tl.constexpr = truncation_loss(probability_dtype(q_tile.dtype), form.HAS_BF16_CVT)
    if LOST > 0:
        row_max += LOST
        row_sum *= 2.0**-LOST
    return acc, row_max, row_sum


@triton.jit
def attend(
    acc, row_max, row_sum, q_tile, tile, keys, scoring, span, form: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the keys of a span into the online softmax.

    acc: fp32 [BLOCK_M, HEAD_DIM_V]; row_max (in units of log2) and row_sum: fp32 [BLOCK_M]. q_tile: [BLOCK_M,
    HEAD_DIM]. tile: QueryTile, keys: KeyHead, scoring: Scoring, span: Span, form: Form.

    MASKED: blocks may reach over an edge of what a query sees, or of the keys. Otherwise there is no hole, and every
    query sees every key that the mask mod does not hide.

    Keys of int8 or float8 take the dtype of queries of more bits. Values of int8 take that of the probabilities, which
    is float16 for queries of int8, else that of the queries; but those of queries of a float8 are e4m3, whichever of
    the two the tensors are. Products of float32 are of float32. For float8, row_max is HEADROOM less than the maximum,
    and where probabilities are truncated, less by their average loss.
    """
    MODIFIED: tl.constexpr = form.FEATURES or form.SCORE_MOD is not None
    HIDING: tl.constexpr = MASKED or form.MASK_MOD is not None
    # Whether a row may have seen nothing but -inf so far.
    EMPTY: tl.constexpr = (MASKED and (form.BOUND_LEFT or form.BOUND_RIGHT)) or MODIFIED or form.MASK_MOD is not None
    P: tl.constexpr = probability_dtype(q_tile.dtype)
    ROOM: tl.constexpr = HEADROOM if P.primitive_bitwidth == 8 else truncation_loss(P, form.HAS_BF16_CVT)
    # Masks take the registers that loads ahead of time would; and there are few such blocks.
    STAGES: tl.constexpr = 1 if MASKED and form.PIPELINED else None
    for at in tl.range(span.begin, span.end - (span.hole_end - span.hole), form.BLOCK_N, num_stages=STAGES):
        start = block_at(at, span, MASKED and form.BOUND_LEFT)
        products, k_tile = multiply(q_tile, tile, keys, start, form, MASKED)
        products = products.to(tl.float32)
        if tile.qv is not None:
            v_tile = load_values(keys, start, form, MASKED)
            if tile.has_qv:
                products = tl.dot(tile.qv, tl.trans(v_tile), products, input_precision="ieee")
        if MODIFIED or HIDING:
            # Scaled before it is masked: 0 * -inf is not a number.
            scores = visible_scores(products, tile, keys, scoring, start, form, MASKED)
            p, rescale, row_max, row_sum = fold(scores, row_max, row_sum, None, EMPTY, ROOM)
        else:
            p, rescale, row_max, row_sum = fold(products, row_max, row_sum, scoring.scale * LOG2_E, EMPTY, ROOM)
        if keys.v is None:
            v_tile = k_tile
        elif tile.qv is None:
            v_tile = load_values(keys, start, form, MASKED)
        if not P.is_fp8():
            v_tile = v_tile.to(P)
        acc = tl.dot(truncate(p, P, form.HAS_BF16_CVT), v_tile, acc * rescale[:, None], input_precision="ieee")
    return acc, row_max, row_sum


@triton.jit
def load_values(keys, start, form: tl.constexpr, MASKED: tl.constexpr):
    """Load the values of the keys from `start` on, [BLOCK_N, HEAD_DIM_V]."""
    rows, columns = tl.arange(0, form.BLOCK_N), tl.arange(0, form.HEAD_DIM_V)
    return load_tile(rows_from(keys.v, start), rows, columns, keys.seqlen - start, keys.head_dim_v, MASKED, form.PADDED)


@triton.constexpr_function
def probability_dtype(queries):
    """Return the dtype of probabilities for queries of a dtype: for e5m2, the e4m3 of the same hardware."""
    return {tl.int8: tl.float16, tl.float8e5: tl.float8e4nv, tl.float8e5b16: tl.float8e4b8}.get(queries, queries)


@triton.jit
def block_at(at, span, HOLE: tl.constexpr):
    """Return the first key of a block from `at`, which does not count the keys of the hole."""
    return tl.where(at < span.hole, at, at + (span.hole_end - span.hole)) if HOLE else at


@triton.jit
def multiply(q_tile, tile, keys, start, form: tl.constexpr, MASKED: tl.constexpr):
    """Multiply the queries by the keys from `start` on.

    Returns (products [BLOCK_M, BLOCK_N], int32 for int8 operands, else fp32; the keys [BLOCK_N, HEAD_DIM]).
    """
    rows = tl.arange(0, form.BLOCK_N)
    left = keys.seqlen - start
    columns = tl.arange(0, form.HEAD_DIM)
    head = rows_from(keys.k, start)
    if form.PIPELINED:
        # Loaded as they are multiplied: Triton's pipeline does not swizzle what is transposed afterwards in LDS.
        by_column = Matrix(head.ptr, head.stride_columns, head.stride_rows)
        k_columns = load_tile(by_column, columns, rows, keys.head_dim, left, form.PADDED, MASKED)
        products = tl.dot(q_tile, k_columns.to(q_tile.dtype), input_precision="ieee")
        k_tile = tl.trans(k_columns)
    else:
        k_tile = load_tile(head, rows, columns, left, keys.head_dim, MASKED, form.PADDED)
        products = tl.dot(q_tile, tl.trans(k_tile.to(q_tile.dtype)), input_precision="ieee")
    if keys.rotated is not None:
        columns = tl.arange(0, form.ROTATED_DIM)
        rotated = load_tile(rows_from(keys.rotated, start), rows, columns, left, keys.rotated_dim, MASKED, form.PADDED)
        products = tl.dot(tile.rotated, tl.trans(rotated), products)
    return products, k_tile


@triton.jit
def visible_scores(products, tile, keys, scoring, start, form: tl.constexpr, MASKED: tl.constexpr):
    """Return scores of the keys from `start` on, in units of log2; -inf where a query does not see the key."""
    offsets = tl.arange(0, form.BLOCK_N)
    scores = score_tile(products, tile, scoring, start, offsets, keys.seqlen, form, MASKED)
    if MASKED or form.MASK_MOD is not None:
        hidden = hidden_keys(tile, scoring, start, offsets, keys.seqlen, form, MASKED)
        scores = tl.where(hidden, float("-inf"), scores)
    return scores


@triton.jit
def score_tile(products, tile, scoring, start, offsets, seqlen_k, form: tl.constexpr, MASKED: tl.constexpr):
    """Turn products [BLOCK_M, BLOCK_N] of queries and keys `start` + `offsets` into scores in units of log2."""
    scores = products * (scoring.scale * LOG2_E)
    if form.FEATURES:
        scores = add_features(scores, tile, scoring, start, offsets, seqlen_k, MASKED)
    if form.SCORE_MOD is not None:
        keys = tl.minimum(start + offsets, seqlen_k - 1)[None, :]
        modified = form.SCORE_MOD(
            scores * LN_2, tile.batch, tile.head, tile.queries[:, None], keys, *scoring.score_operands
        )
        scores = modified * LOG2_E
    return scores


@triton.jit
def add_features(scores, tile, scoring, start, offsets, seqlen_k, MASKED: tl.constexpr):
    """Apply the soft-cap, the bias and the slope, as far as they are given."""
    if scoring.softcap > 0:
        scores = cap(scores, LN_2, scoring.softcap) * LOG2_E
    if scoring.bias is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if scoring.has_bias:
            pointers = (scoring.bias + start)[:, None] + offsets[None, :]
            if MASKED:
                bias = tl.load(pointers, mask=(offsets < seqlen_k - start)[None, :], other=0.0)
            else:
                bias = tl.load(pointers)
            scores += bias.to(tl.float32) * LOG2_E
    if scoring.has_slope:
        distance = (tile.diagonal - start).to(tl.float32)[:, None] - offsets.to(tl.float32)[None, :]
        scores -= tl.abs(distance) * (scoring.slope * LOG2_E)
    return scores


@triton.jit
def hidden_keys(tile, scoring, start, offsets, seqlen_k, form: tl.constexpr, MASKED: tl.constexpr):
    """Mark the keys `start` + `offsets` that each query does not see: [BLOCK_M, BLOCK_N] or broadcast to it."""
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
def rows_from(matrix, start):
    """Drop the rows of a Matrix before `start`."""
    return Matrix(matrix.ptr + start * matrix.stride_rows, matrix.stride_rows, matrix.stride_columns)


@triton.jit
def load_tile(matrix, rows, columns, row_end, column_end, MASK_ROWS: tl.constexpr, MASK_COLUMNS: tl.constexpr):
    """Load `rows` and `columns` of a Matrix, [len(rows), len(columns)]; 0 outside (row_end, column_end)."""
    pointers = matrix.ptr + rows[:, None] * matrix.stride_rows + columns[None, :] * matrix.stride_columns
    if MASK_ROWS and MASK_COLUMNS:
        tile = tl.load(pointers, mask=(rows[:, None] < row_end) & (columns[None, :] < column_end), other=0.0)
    elif MASK_ROWS:
        tile = tl.load(pointers, mask=rows[:, None] < row_end, other=0.0)
    elif MASK_COLUMNS:
        tile = tl.load(pointers, mask=columns[None, :] < column_end, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile
