"""Scaled dot-product attention, forward: one pass over the keys with an online softmax (FlashAttention-2)."""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.attention.inner import LN_2, KeyHead, Matrix, QueryTile, Scoring, Span, attend, load_tile, make_form
from kernels.attention.int8 import attend_int8
from kernels.attention.masks import key_range


class Problem(NamedTuple):
    """What is to be computed, as `attention_forward` has it. q_scale, k_scale, v_scale: a Matrix of factors."""

    q: Matrix
    k: Matrix
    v: Matrix
    out: Matrix
    lse: Matrix
    bias: Matrix
    slopes: Matrix
    q_scale: Matrix
    k_scale: Matrix
    v_scale: Matrix
    cu_seqlens_q: tl.tensor
    cu_seqlens_k: tl.tensor
    group: tl.tensor
    seqlen_q: tl.tensor
    seqlen_k: tl.tensor
    head_dim: tl.tensor
    head_dim_v: tl.tensor
    scale: tl.tensor
    left: tl.tensor
    right: tl.tensor
    bottom_right: tl.tensor
    softcap: tl.tensor
    score_operands: tl.tuple
    mask_operands: tl.tuple


@triton.jit
def attention_forward(
    q, k, v, out,
    heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v,
    stride_q_batch, stride_q_heads, stride_q_seqlen_q,
    stride_k_batch, stride_k_heads_kv, stride_k_seqlen_k,
    stride_v_batch, stride_v_heads_kv, stride_v_seqlen_k,
    stride_out_batch, stride_out_heads, stride_out_seqlen_q,
    query_blocks, scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    # What an op need not have
    lse=None, stride_lse_batch=0, stride_lse_heads=0, stride_lse_seqlen_q=0,
    stride_v_head_dim_v=1,
    cu_seqlens_q=None, cu_seqlens_k=None,
    left=0, right=0, bottom_right=False, BOUND_LEFT: tl.constexpr = False, BOUND_RIGHT: tl.constexpr = False,
    softcap=0.0, SOFTCAP: tl.constexpr = False,
    bias=None, stride_bias_batch=0, stride_bias_heads=0, stride_bias_seqlen_q=0,
    alibi_slopes=None, stride_alibi_slopes_batch=0, stride_alibi_slopes_heads=0,
    SCORE_MOD: tl.constexpr = None, score_0=None, score_1=None, score_2=None, score_3=None,
    SCORE_OPERANDS: tl.constexpr = 0,
    MASK_MOD: tl.constexpr = None, mask_0=None, mask_1=None, mask_2=None, mask_3=None, MASK_OPERANDS: tl.constexpr = 0,
    PADDED: tl.constexpr = True, NUM_XCDS: tl.constexpr = 1, HAS_BF16_CVT: tl.constexpr = False,
    PERSISTENT: tl.constexpr = False, DYNAMIC: tl.constexpr = False, batches=1, counter=None,
):  # fmt: skip
    """out = softmax(scores) v, a program for each BLOCK_M queries of a head.

    Grid: (query_blocks, heads, batch), query_blocks * BLOCK_M >= the queries of any sequence.

    q: [batch, heads, seqlen_q, head_dim], k: [batch, heads_kv, seqlen_k, head_dim], v: [batch, heads_kv, seqlen_k,
    head_dim_v], out: [batch, heads, seqlen_q, head_dim_v], float16 or bfloat16; strides in elements, the last one 1,
    but for that of v. lse: float32 [batch, heads, seqlen_q], the natural logarithm of each row's sum of exponentials;
    None or a null pointer: not wanted. Query head h reads key head h // (heads // heads_kv).

    cu_seqlens_q, cu_seqlens_k: int32 [batch + 1] or None. With them, sequence b is rows cu_seqlens[b] to cu_seqlens[b +
    1] of tensors that have seqlen_q and seqlen_k rows and no batch (stride 0). They are clamped to the rows that there
    are; a sequence may be empty.

    A score is scale * q k; with SOFTCAP softcap * tanh(that / softcap); plus bias [batch, heads, seqlen_q, seqlen_k] (a
    stride of 0 broadcasts) unless None; minus alibi_slopes (fp32 [batch, heads]) * |distance from the diagonal| unless
    None; then what SCORE_MOD makes of it. The diagonal of query i is key i, or i + seqlen_k - seqlen_q if bottom_right.
    Query i with diagonal d sees keys j >= d - left if BOUND_LEFT and j <= d + right if BOUND_RIGHT, of those only what
    MASK_MOD shows. SCORE_MOD and MASK_MOD: functions as in `mods`, or None; score_*, mask_*: the first SCORE_OPERANDS
    and MASK_OPERANDS of them are passed on to these.

    A row that sees no key gives out = 0 and lse = -inf. scale is any finite fp32. Offsets take the width of the
    strides: 32 bits only if every tensor spans less than 2 GiB.

    HEAD_DIM, HEAD_DIM_V: powers of two >= head_dim, head_dim_v; PADDED: either may be greater. NUM_XCDS: dies that the
    hardware deals workgroups to in turn, each with an L2 of its own (gfx942, gfx950: 8; elsewhere 1). HAS_BF16_CVT: the
    hardware rounds fp32 to bfloat16 in one instruction (gfx950, sm_80 and later); ignored unless the dtype is bfloat16.

    PERSISTENT: the grid is (programs,), any number of them, and they share the tiles of all batches: a program takes
    each programs-th one or, if DYNAMIC, the next one as soon as it is done with one. counter: int32 [1], 0 at first.
    """
    problem = Problem(
        Matrix(q, stride_q_batch, stride_q_heads, stride_q_seqlen_q, 1),
        Matrix(k, stride_k_batch, stride_k_heads_kv, stride_k_seqlen_k, 1),
        Matrix(v, stride_v_batch, stride_v_heads_kv, stride_v_seqlen_k, stride_v_head_dim_v),
        Matrix(out, stride_out_batch, stride_out_heads, stride_out_seqlen_q, 1),
        Matrix(lse, stride_lse_batch, stride_lse_heads, stride_lse_seqlen_q, 0),
        Matrix(bias, stride_bias_batch, stride_bias_heads, stride_bias_seqlen_q, 1),
        Matrix(alibi_slopes, stride_alibi_slopes_batch, stride_alibi_slopes_heads, 0, 0),
        Matrix(None, 0, 0, 0, 0), Matrix(None, 0, 0, 0, 0), Matrix(None, 0, 0, 0, 0),
        cu_seqlens_q, cu_seqlens_k, heads // heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v, scale, left, right,
        bottom_right, softcap if SOFTCAP else None,
        (score_0, score_1, score_2, score_3)[:SCORE_OPERANDS], (mask_0, mask_1, mask_2, mask_3)[:MASK_OPERANDS],
    )  # fmt: skip
    form: tl.constexpr = make_form(
        HEAD_DIM, HEAD_DIM_V, PADDED, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT, HAS_BF16_CVT, SCORE_MOD, MASK_MOD
    )
    LAST_FIRST: tl.constexpr = BOUND_RIGHT and not BOUND_LEFT
    if PERSISTENT:
        attend_tiles(query_blocks, heads, batches, counter, problem, form, LAST_FIRST, NUM_XCDS, DYNAMIC)
    else:
        block, head = place(query_blocks, heads, LAST_FIRST, NUM_XCDS)
        attend_tile(block, head, tl.program_id(2), problem, form)


@triton.jit
def place(blocks, heads, LAST_FIRST: tl.constexpr, NUM_XCDS: tl.constexpr):
    """Query block and head of this program. LAST_FIRST: the last blocks have the most to do."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    if NUM_XCDS > 1:
        linear = run_of_die(head * blocks + block, blocks * heads, NUM_XCDS)
        block = linear % blocks
        head = linear // blocks
    if LAST_FIRST:
        block = blocks - 1 - block
    return block, head


@triton.jit
def run_of_die(linear, count, NUM_XCDS: tl.constexpr):
    """Which of `count` tiles, in the order of (head, block), program `linear` takes.

    Neighbours in launch order land on different dies. So renumbered, each die has a contiguous run, and the blocks that
    read the same K and V share an L2.
    """
    die = linear % NUM_XCDS
    return die * (count // NUM_XCDS) + tl.minimum(die, count % NUM_XCDS) + linear // NUM_XCDS


@triton.jit
def attend_tiles(
    blocks, heads, batches, counter, problem, form: tl.constexpr, LAST_FIRST: tl.constexpr, NUM_XCDS: tl.constexpr,
    DYNAMIC: tl.constexpr,
):  # fmt: skip
    """This program's share of the tiles of a Problem, as `attention_forward` deals them where it is persistent."""
    tiles = blocks * heads * batches
    number = tl.program_id(0)
    while number < tiles:
        # Whose tile a dynamic one is, and so its die, is not known beforehand.
        place_of = run_of_die(number, tiles, NUM_XCDS) if NUM_XCDS > 1 and not DYNAMIC else number
        block = place_of % blocks
        head = place_of // blocks
        attend_tile(blocks - 1 - block if LAST_FIRST else block, head % heads, head // heads, problem, form)
        number = tl.num_programs(0) + tl.atomic_add(counter, 1) if DYNAMIC else number + tl.num_programs(0)


@triton.jit
def attend_tile(block, head, batch, problem, form: tl.constexpr):
    """One tile of a Problem: BLOCK_M queries of a head."""
    first_row_q, seqlen_q = sequence(problem.cu_seqlens_q, batch, problem.seqlen_q)
    first_row_k, seqlen_k = sequence(problem.cu_seqlens_k, batch, problem.seqlen_k)
    first_query = block * form.BLOCK_M
    if first_query < seqlen_q:
        rows = first_query + tl.arange(0, form.BLOCK_M)
        shift = tl.where(problem.bottom_right, seqlen_k - seqlen_q, 0)
        left, right = problem.left, problem.right
        tile = tile_of(batch, head, rows, shift, left, right, seqlen_q, seqlen_k, None)

        q, k, v = problem.q, problem.k, problem.v
        head_kv = head // problem.group
        scale = problem.scale * factor_of(problem.q_scale, batch, head) * factor_of(problem.k_scale, batch, head_kv)
        q_head = head_of(q, batch, head, first_row_q)
        columns = tl.arange(0, form.HEAD_DIM)
        q_tile = load_tile(q_head, rows, q.stride_rows, columns, 1, seqlen_q, problem.head_dim, True, form.PADDED)
        # Taking the row's maximum before scaling saves a product per score; it needs scale >= 0, so Q takes the sign.
        if q_tile.dtype.primitive_bitwidth > 8:
            q_tile = tl.where(scale < 0, -q_tile, q_tile)
        keys = KeyHead(
            head_of(k, batch, head_kv, first_row_k), head_of(v, batch, head_kv, first_row_k), k.stride_rows,
            v.stride_rows, v.stride_columns, seqlen_k, problem.head_dim, problem.head_dim_v, None, 0, 0,
        )  # fmt: skip
        bias, slopes = problem.bias, problem.slopes
        scoring = Scoring(
            tl.abs(scale),
            problem.softcap,
            None if bias.base is None else head_of(bias, batch, head, 0) + tile.queries * bias.stride_rows,
            None if slopes.base is None else tl.load(head_of(slopes, batch, head, 0)),
            problem.score_operands, problem.mask_operands,
        )  # fmt: skip

        last_query = tl.minimum(first_query + form.BLOCK_M, seqlen_q) - 1
        whole, edges = spans(first_query + shift, last_query + shift, left, right, seqlen_k, form)
        if form.INT8_P:
            acc, row_max, row_sum, weight = attend_int8(q_tile, tile, keys, scoring, whole, edges, form)
        else:
            acc, row_max, row_sum = attend_spans(q_tile, tile, keys, scoring, whole, edges, form)
            weight = row_sum

        stored = rows < seqlen_q
        # Before out: its conversion takes all the scalar registers that there are.
        store_lse(problem.lse, batch, head, first_row_q, rows, row_max, row_sum, stored)

        # A weight is 0 in a row that saw no key, and only there.
        acc *= (factor_of(problem.v_scale, batch, head_kv) / tl.where(weight == 0, 1.0, weight))[:, None]
        store_tile(problem.out, batch, head, first_row_q, rows, acc, stored, problem.head_dim_v, form)


@triton.jit
def tile_of(batch, head, rows, shift, left, right, seqlen_q, seqlen_k, rotated):
    """QueryTile of the queries `rows`, whose diagonals are `shift` keys further."""
    diagonal = rows + shift
    last_key = tl.minimum(diagonal + right, seqlen_k - 1)
    return QueryTile(batch, head, tl.minimum(rows, seqlen_q - 1), diagonal, diagonal - left, last_key, rotated)


@triton.jit
def spans(first_diagonal, last_diagonal, left, right, seqlen_k, form: tl.constexpr):
    """(Span of blocks of keys that all queries of a tile see, Span of those that some of them do)."""
    ranges = key_range(
        first_diagonal, last_diagonal, left, right, seqlen_k, form.BLOCK_N, form.BOUND_LEFT, form.BOUND_RIGHT
    )
    full, full_end = ranges.full, ranges.full_end
    begin, hole = (ranges.begin, full) if form.BOUND_LEFT else (full_end, full_end)
    return Span(full, full_end, full_end, full_end), Span(begin, hole, full_end, ranges.end)


@triton.jit
def attend_spans(q_tile, tile, keys, scoring, whole, edges, form: tl.constexpr):
    """(acc, row_max, row_sum) of a tile over both of its spans, as `attend` has them."""
    acc = tl.zeros([form.BLOCK_M, form.HEAD_DIM_V], tl.float32)
    row_max = tl.full([form.BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([form.BLOCK_M], tl.float32)
    acc, row_max, row_sum = attend(acc, row_max, row_sum, q_tile, tile, keys, scoring, whole, form, False)
    return attend(acc, row_max, row_sum, q_tile, tile, keys, scoring, edges, form, True)


@triton.jit
def factor_of(factors, batch, head):
    """A head's factor, of a Matrix of [batch, heads]; 1 where it is absent."""
    return 1.0 if factors.base is None else tl.load(head_of(factors, batch, head, 0))


@triton.jit
def sequence(cu_seqlens, batch, rows):
    """First row and length of a sequence, within the rows that there are; all of them unless there are cu_seqlens."""
    if cu_seqlens is None:
        first, length = 0, rows
    else:
        first = tl.minimum(tl.maximum(tl.load(cu_seqlens + batch), 0), rows)
        length = tl.maximum(tl.minimum(tl.load(cu_seqlens + batch + 1), rows) - first, 0)
    return first, length


@triton.jit
def head_of(matrix, batch, head, row):
    """Address of a row of a sequence's head."""
    return matrix.base + batch * matrix.stride_batch + head * matrix.stride_heads + row * matrix.stride_rows


@triton.jit
def store_lse(lse, batch, head, first_row, rows, row_max, row_sum, stored):
    """Write the natural logarithm of the sum of exponentials of those rows that are to be `stored`, if it is wanted."""
    if lse.base is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if lse.base.to(tl.int64) != 0:
            row_lse = (row_max + tl.log2(row_sum)) * LN_2
            tl.store(head_of(lse, batch, head, first_row) + rows * lse.stride_rows, row_lse, mask=stored)


@triton.jit
def store_tile(out, batch, head, first_row, rows, tile, stored, head_dim, form: tl.constexpr):
    """Write those rows of a tile [BLOCK_M, HEAD_DIM_V] that are to be `stored`."""
    columns = tl.arange(0, form.HEAD_DIM_V)
    mask = stored[:, None]
    if form.PADDED:
        mask = mask & (columns[None, :] < head_dim)
    offsets = rows[:, None] * out.stride_rows + columns[None, :]
    tl.store(head_of(out, batch, head, first_row) + offsets, tile.to(out.base.dtype.element_ty), mask=mask)
