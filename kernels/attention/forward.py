"""Scaled dot-product attention, forward: one pass over the keys with an online softmax (FlashAttention-2)."""

import triton
import triton.language as tl

from kernels.attention.inner import attend_spans, load_tile
from kernels.attention.int8 import attend_int8
from kernels.attention.masks import bounds, key_range
from kernels.attention.problem import KeyHead, Problem, QueryTile, Scoring, Span, Work, make_form
from kernels.common.softmax import LN_2, LOG2_E, add_logit, inverse, log2_sum
from kernels.common.tensors import Closure, Extents, HeadRows, Heads, HeadScalars, Matrix, Vector, Window, given


@triton.jit
def attention_forward(
    q: Heads, k: Heads, v: Heads, out: Heads, extents: Extents, work: Work, scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    # What an op need not have
    lse: HeadRows = None, bias: Heads = None, alibi_slopes: HeadScalars = None, cu_seqlens_q=None, cu_seqlens_k=None,
    window: Window = None, BOUND_LEFT: tl.constexpr = False, BOUND_RIGHT: tl.constexpr = False,
    softcap=0.0, sinks=None, FEATURES: tl.constexpr = False, score_mod: Closure = None, mask_mod: Closure = None,
    PADDED: tl.constexpr = True, NUM_XCDS: tl.constexpr = 1, HAS_BF16_CVT: tl.constexpr = False,
    PERSISTENT: tl.constexpr = False, PIPELINED: tl.constexpr = False, qv: Heads = None, seqused_q: Vector = None,
    seqused_k: Vector = None,
):  # fmt: skip
    """out = softmax(scores) v, a program for each BLOCK_M queries of a head.

    Grid: (query_blocks, heads, batch), query_blocks * BLOCK_M >= the queries of any sequence.

    q: [batch, heads, seqlen_q, head_dim], k: [batch, heads_kv, seqlen_k, head_dim], v: [batch, heads_kv, seqlen_k,
    head_dim_v], out: [batch, heads, seqlen_q, head_dim_v], float16, bfloat16 or float32; strides in elements, the last
    one 1, but for that of v. lse: float32 [batch, heads, seqlen_q], the natural logarithm of each row's sum of
    exponentials; None or a null pointer: not wanted. Query head h reads key head h // (heads // heads_kv).

    cu_seqlens_q, cu_seqlens_k: int32 [batch + 1] or None. With them, sequence b is rows cu_seqlens[b] to cu_seqlens[b +
    1] of tensors that have seqlen_q and seqlen_k rows and no batch (stride 0). They are clamped to the rows that there
    are; a sequence may be empty. bias has a row for each row of q then, and a column for each key of a sequence, of
    which there are extents.max_seqlen_k: keys of a sequence beyond these do not count. seqused_q, seqused_k: int32
    [batch], of how many of its rows a sequence consists; None or null pointers: of all.

    A score is scale * q k; then, with FEATURES only: softcap * tanh(that / softcap) if softcap > 0; plus bias [batch,
    heads, seqlen_q, seqlen_k] (a stride of 0 broadcasts) unless that is None or a null pointer; minus alibi_slopes
    (fp32 [batch, heads]) * |distance from the diagonal| unless these are. score_mod is applied last. The diagonal of
    query i is key i, or i + seqlen_k - seqlen_q if window.bottom_right. Query i with diagonal d sees keys j >= d - left
    if BOUND_LEFT and j <= d + right if BOUND_RIGHT, with both and window.chunk > 0 only those of the chunk with d, and
    of those only the ones that mask_mod shows. score_mod and mask_mod: functions as in `mods`.

    qv: [batch, heads, seqlen_q, head_dim_v]; its products with v are added to those of q and k. None or null: none.

    sinks: fp32 [heads], with FEATURES only: a logit of each head that is added to the sums of exponentials; None or
    null: none.

    A row that sees no key gives out = 0 and, without sinks, lse = -inf. scale is any finite fp32. Offsets take the
    width of the strides: 32 bits only if every tensor spans less than 2 GiB.

    HEAD_DIM, HEAD_DIM_V: powers of two >= head_dim, head_dim_v; PADDED: either may be greater. NUM_XCDS: XCDs that the
    hardware deals workgroups to in turn, each with an L2 of its own (gfx942, gfx950: 8; elsewhere 1). HAS_BF16_CVT: the
    hardware rounds fp32 to bfloat16 in one instruction (gfx950, sm_80 and later); ignored unless the dtype is bfloat16.

    PIPELINED: for options with num_stages > 1, which loads the next keys and values while these are multiplied.

    PERSISTENT: the grid is (programs,), any number of them, and they share the tiles of all batches: a program takes
    each programs-th one or, if work.dynamic, the next one as soon as it is done with one.
    """
    problem = Problem(
        q=q, k=k, v=v, out=out, lse=lse, extents=extents, window=window, scale=scale, bias=bias,
        alibi_slopes=alibi_slopes, softcap=softcap, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q, seqused_k=seqused_k, score_operands=score_mod.operands, mask_operands=mask_mod.operands,
        sinks=sinks, qv=qv,
    )  # fmt: skip
    form: tl.constexpr = make_form(
        HEAD_DIM, HEAD_DIM_V, PADDED, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT, FEATURES, HAS_BF16_CVT,
        score_mod.function, mask_mod.function, PIPELINED=PIPELINED,
    )  # fmt: skip
    LAST_FIRST: tl.constexpr = BOUND_RIGHT and not BOUND_LEFT
    if PERSISTENT:
        attend_tiles(work, problem, form, LAST_FIRST, NUM_XCDS)
    else:
        block, head, batch = place(work.query_blocks, extents.heads, work.batch, LAST_FIRST, NUM_XCDS)
        attend_tile(block, head, batch, problem, form)


@triton.jit
def place(blocks, heads, batches, LAST_FIRST: tl.constexpr, NUM_XCDS: tl.constexpr):
    """Return the query block, head and batch of this program, whose grid is (blocks, heads, batches)."""
    number = tl.program_id(0) + blocks * (tl.program_id(1) + heads * tl.program_id(2))
    return deal(number, blocks, heads, batches, LAST_FIRST, NUM_XCDS)


@triton.jit
def deal(number, blocks, heads, batches, LAST_FIRST: tl.constexpr, NUM_XCDS: tl.constexpr):
    """Return the query block, head and batch of tile `number` in the order of launch.

    LAST_FIRST: the last blocks of a sequence have the most to do. They come first, for all sequences, so that the tiles
    at the end are short and compute units finish at about the same time. NUM_XCDS > 1: neighbours in the order of
    launch land on different XCDs. Dealt in this way, each XCD has whole heads, neighbours which may share keys, or a
    run of blocks: tiles that read the same K and V share an L2.
    """
    sequences = heads * batches
    if LAST_FIRST:
        block = blocks - 1 - number // sequences
        sequence = number % sequences
        if NUM_XCDS > 1:
            sequence = run_of_xcd(sequence, sequences, NUM_XCDS)
    else:
        if NUM_XCDS > 1:
            number = run_of_xcd(number, blocks * sequences, NUM_XCDS)
        block = number % blocks
        sequence = number // blocks
    return block, sequence % heads, sequence // heads


@triton.jit
def run_of_xcd(linear, count, NUM_XCDS: tl.constexpr):
    """Return the item, of `count`, at place `linear`, so that the items of an XCD, which are NUM_XCDS places apart, are
    neighbours."""
    xcd = linear % NUM_XCDS
    return xcd * (count // NUM_XCDS) + tl.minimum(xcd, count % NUM_XCDS) + linear // NUM_XCDS


@triton.jit
def attend_tiles(work, problem, form: tl.constexpr, LAST_FIRST: tl.constexpr, NUM_XCDS: tl.constexpr):
    """Attend a persistent program's share of the tiles of a Problem."""
    blocks, heads = work.query_blocks, problem.extents.heads
    tiles = blocks * heads * work.batch
    number = tl.program_id(0)
    while number < tiles:
        # With dynamic tiles it is not known beforehand which program, and so which XCD, gets a tile.
        block, head, batch = deal(number, blocks, heads, work.batch, LAST_FIRST, NUM_XCDS)
        attend_tile(block, head, batch, problem, form)
        number += tl.num_programs(0)
        if work.dynamic:
            number = tl.num_programs(0) + tl.atomic_add(work.counter, 1)


@triton.jit
def attend_tile(block, head, batch, problem, form: tl.constexpr):
    """Attend one tile of a Problem: BLOCK_M queries of a head."""
    extents, window = problem.extents, problem.window
    first_row_q, seqlen_q = sequence(problem.cu_seqlens_q, problem.seqused_q, batch, extents.seqlen_q)
    first_row_k, seqlen_k = sequence(problem.cu_seqlens_k, problem.seqused_k, batch, extents.seqlen_k)
    if extents.max_seqlen_k is not None:
        seqlen_k = tl.minimum(seqlen_k, extents.max_seqlen_k)
    first_query = block * form.BLOCK_M
    if first_query < seqlen_q:
        rows = first_query + tl.arange(0, form.BLOCK_M)
        shift = tl.where(window.bottom_right, seqlen_k - seqlen_q, 0)
        head_kv = head // (extents.heads // extents.heads_kv)
        scale = problem.scale * factor_of(problem.q_scale, batch, head) * factor_of(problem.k_scale, batch, head_kv)
        q_head = matrix_of(problem.q, batch, head, first_row_q)
        columns = tl.arange(0, form.HEAD_DIM)
        q_tile = load_tile(q_head, rows, columns, seqlen_q, extents.head_dim, True, form.PADDED)
        # Taking a row's maximum before scaling saves a product per score; this needs scale >= 0, so Q takes the sign.
        if q_tile.dtype.primitive_bitwidth > 8:
            q_tile = tl.where(scale < 0, -q_tile, q_tile)
        if problem.qv.ptr is None:
            tile = tile_of(batch, head, rows, shift, window, seqlen_q, seqlen_k, None, None, False, form)
        else:
            has_qv = given(problem.qv.ptr)
            qv_head = matrix_of(problem.qv, batch, head, first_row_q)
            columns_v, row_end = tl.arange(0, form.HEAD_DIM_V), tl.where(has_qv, seqlen_q, 0)
            qv_tile = load_tile(qv_head, rows, columns_v, row_end, extents.head_dim_v, True, form.PADDED)
            qv_tile = tl.where(scale < 0, -qv_tile, qv_tile)
            tile = tile_of(batch, head, rows, shift, window, seqlen_q, seqlen_k, None, qv_tile, has_qv, form)
        keys = KeyHead(
            k=matrix_of(problem.k, batch, head_kv, first_row_k),
            v=matrix_of(problem.v, batch, head_kv, first_row_k),
            seqlen=seqlen_k,
            head_dim=extents.head_dim,
            head_dim_v=extents.head_dim_v,
        )
        scoring = scoring_of(problem, scale, batch, head, first_row_q + tile.queries, form)

        last_query = tl.minimum(first_query + form.BLOCK_M, seqlen_q) - 1
        whole, edges = spans(first_query + shift, last_query + shift, window, seqlen_k, form)
        if form.INT8_P:
            acc, row_max, row_sum, weight = attend_int8(q_tile, tile, keys, scoring, whole, edges, form)
        else:
            acc, row_max, row_sum = attend_spans(q_tile, tile, keys, scoring, whole, edges, form)
            weight = row_sum

        if form.FEATURES and problem.sinks is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
            if problem.sinks.to(tl.int64) != 0:
                acc, row_max, row_sum = add_logit(acc, row_max, row_sum, tl.load(problem.sinks + head) * LOG2_E)
                weight = row_sum
        stored = rows < seqlen_q
        # Before out: its conversion takes all the scalar registers that there are.
        store_lse(problem.lse, batch, head, first_row_q, rows, row_max, row_sum, stored)
        factor = factor_of(problem.v_scale, batch, head_kv)
        if form.FEATURES and problem.out_scale is not None:
            factor /= tl.load(problem.out_scale, problem.out_scale.to(tl.int64) != 0, 1.0)
        acc *= (factor * inverse(weight))[:, None]
        store_tile(problem.out, batch, head, first_row_q, rows, acc, stored, extents.head_dim_v, form)


@triton.jit
def scoring_of(problem, scale, batch, head, rows_q, form: tl.constexpr):
    """Make the Scoring of a tile of queries of a head; rows_q: their rows in q."""
    bias, slopes = problem.bias, problem.alibi_slopes
    if form.FEATURES:
        has_slope = slopes.ptr.to(tl.int64) != 0
        slope = tl.load(head_of(slopes, batch, head), mask=has_slope, other=0.0)
        if bias.ptr is None:
            scoring = Scoring(
                tl.abs(scale), problem.softcap, slope=slope, has_slope=has_slope, score_operands=problem.score_operands,
                mask_operands=problem.mask_operands,
            )  # fmt: skip
        else:
            scoring = Scoring(
                tl.abs(scale), problem.softcap, head_of(bias, batch, head) + rows_q * bias.stride_rows,
                bias.ptr.to(tl.int64) != 0, slope, has_slope, problem.score_operands, problem.mask_operands,
            )  # fmt: skip
    else:
        scoring = Scoring(tl.abs(scale), score_operands=problem.score_operands, mask_operands=problem.mask_operands)
    return scoring


@triton.jit
def tile_of(batch, head, rows, shift, window, seqlen_q, seqlen_k, rotated, qv, has_qv, form: tl.constexpr):
    """Make the QueryTile of queries `rows`, whose diagonals are `shift` keys further."""
    diagonal = rows + shift
    seen = bounds(diagonal, window, form.BOUND_LEFT and form.BOUND_RIGHT)
    last_key = tl.minimum(seen.last, seqlen_k - 1)
    return QueryTile(batch, head, tl.minimum(rows, seqlen_q - 1), diagonal, seen.first, last_key, rotated, qv, has_qv)


@triton.jit
def spans(first_diagonal, last_diagonal, window, seqlen_k, form: tl.constexpr):
    """Return (Span of the blocks of keys that all queries of a tile see, Span of those that some of them see)."""
    CHUNKS: tl.constexpr = form.BOUND_LEFT and form.BOUND_RIGHT
    first, last = bounds(first_diagonal, window, CHUNKS), bounds(last_diagonal, window, CHUNKS)
    ranges = key_range(first, last, seqlen_k, form.BLOCK_N, form.BOUND_LEFT, form.BOUND_RIGHT)
    full, full_end = ranges.full, ranges.full_end
    begin, hole = (ranges.begin, full) if form.BOUND_LEFT else (full_end, full_end)
    return Span(full, full_end, full_end, full_end), Span(begin, hole, full_end, ranges.end)


@triton.jit
def factor_of(factors, batch, head):
    """Load a head's factor from HeadScalars; 1 if they are absent."""
    return 1.0 if factors.ptr is None else tl.load(head_of(factors, batch, head))


@triton.jit
def sequence(cu_seqlens, seqused, batch, rows):
    """Return (first row, length) of a sequence, clamped to the rows there are; (0, rows) without cu_seqlens.

    seqused: int32 [batch], of how many of its rows a sequence consists; a pointer of None or null: of all.
    """
    if cu_seqlens is None:
        first, length = 0, rows
    else:
        first = tl.minimum(tl.maximum(tl.load(cu_seqlens + batch), 0), rows)
        length = tl.maximum(tl.minimum(tl.load(cu_seqlens + batch + 1), rows) - first, 0)
    if seqused.ptr is not None:
        used = tl.load(seqused.ptr + batch * seqused.stride_rows, given(seqused.ptr), rows)
        length = tl.minimum(length, tl.maximum(used, 0))
    return first, length


@triton.jit
def head_of(tensor, batch, head):
    """Address of a head."""
    return tensor.ptr + batch * tensor.stride_batch + head * tensor.stride_heads


@triton.jit
def matrix_of(tensor, batch, head, row):
    """Return the Matrix of a head from `row` on."""
    address = head_of(tensor, batch, head) + row * tensor.stride_rows
    return Matrix(address, tensor.stride_rows, tensor.stride_columns)


@triton.jit
def store_lse(lse, batch, head, first_row, rows, row_max, row_sum, stored):
    """Store the natural logarithm of the sum of exponentials of `stored` rows, if it is wanted."""
    if lse.ptr is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if lse.ptr.to(tl.int64) != 0:
            address = head_of(lse, batch, head) + first_row * lse.stride_rows
            tl.store(address + rows * lse.stride_rows, log2_sum(row_max, row_sum) * LN_2, mask=stored)


@triton.jit
def store_tile(out, batch, head, first_row, rows, tile, stored, head_dim, form: tl.constexpr):
    """Store the `stored` rows of a tile [BLOCK_M, HEAD_DIM_V]."""
    columns = tl.arange(0, form.HEAD_DIM_V)
    mask = stored[:, None]
    if form.PADDED:
        mask = mask & (columns[None, :] < head_dim)
    head_out = matrix_of(out, batch, head, first_row)
    offsets = rows[:, None] * head_out.stride_rows + columns[None, :] * head_out.stride_columns
    tl.store(head_out.ptr + offsets, tile.to(out.ptr.dtype.element_ty), mask=mask)
