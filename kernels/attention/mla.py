"""Multi-head latent attention over a prompt, with the projections of keys and values absorbed.

A row of the cache is a latent vector, of which every head's key and value are projections, and a rotated part that all
heads' keys share. A head's queries take the projection of its keys; what it adds up are latent vectors, and the
projection of its values is applied to the sum. So neither keys nor values are ever made.
"""

import triton
import triton.language as tl

from kernels.attention.forward import attend_spans, head_of, place, spans, store_lse, tile_of
from kernels.attention.inner import KeyHead, Matrix, Scoring, load_tile, make_form


@triton.jit
def mla_prefill(
    q_nope, q_pe, kv, k_pe, wkv_b, out,
    heads, seqlen_q, seqlen_k, head_dim, head_dim_v, rope, latent,
    stride_q_nope_batch, stride_q_nope_heads, stride_q_nope_seqlen_q,
    stride_q_pe_batch, stride_q_pe_heads, stride_q_pe_seqlen_q,
    stride_kv_batch, stride_kv_seqlen_k, stride_k_pe_batch, stride_k_pe_seqlen_k,
    stride_wkv_b_heads, stride_wkv_b_rows,
    stride_out_batch, stride_out_heads, stride_out_seqlen_q,
    query_blocks, scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, ROPE: tl.constexpr, LATENT: tl.constexpr, PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, NUM_XCDS: tl.constexpr,
    HAS_BF16_CVT: tl.constexpr,
    lse=None, stride_lse_batch=0, stride_lse_heads=0, stride_lse_seqlen_q=0,
):  # fmt: skip
    """out = softmax(scale * (q_nope Wk kv + q_pe k_pe)) kv Wv, a program for each BLOCK_M queries of a head.

    Grid: (query_blocks, heads, batch), query_blocks * BLOCK_M >= seqlen_q.

    q_nope: [batch, heads, seqlen_q, head_dim], q_pe: [batch, heads, seqlen_q, rope], kv: [batch, seqlen_k, latent],
    k_pe: [batch, seqlen_k, rope], wkv_b: [heads, head_dim + head_dim_v, latent], first Wk, then Wv; out: [batch, heads,
    seqlen_q, head_dim_v]. All of float16 or all of bfloat16, with strides in elements, the last one 1. lse: as in
    `attention_forward`. CAUSAL: query i sees keys j <= i + seqlen_k - seqlen_q.

    HEAD_DIM, HEAD_DIM_V, ROPE, LATENT: powers of two, at least the dims; PADDED: some are greater. STEP: rows of the
    projections at a time, which divides HEAD_DIM and HEAD_DIM_V.
    """
    form: tl.constexpr = make_form(
        LATENT, LATENT, PADDED, BLOCK_M, BLOCK_N, False, CAUSAL, HAS_BF16_CVT, ROTATED_DIM=ROPE
    )
    block, head = place(query_blocks, heads, CAUSAL, NUM_XCDS)
    batch = tl.program_id(2)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    stored = rows < seqlen_q

    q_head = head_of(Matrix(q_nope, stride_q_nope_batch, stride_q_nope_heads, 0, 1), batch, head, 0)
    rope_head = head_of(Matrix(q_pe, stride_q_pe_batch, stride_q_pe_heads, 0, 1), batch, head, 0)
    projection = wkv_b + head * stride_wkv_b_heads
    q_tile = absorb(
        q_head, stride_q_nope_seqlen_q, rows, seqlen_q, projection, stride_wkv_b_rows, head_dim, latent, HEAD_DIM,
        STEP, form,
    )  # fmt: skip
    q_tile = tl.where(scale < 0, -q_tile, q_tile).to(kv.dtype.element_ty)
    rotated = load_tile(rope_head, rows, stride_q_pe_seqlen_q, tl.arange(0, ROPE), 1, seqlen_q, rope, True, PADDED)
    rotated = tl.where(scale < 0, -rotated, rotated)

    shift = seqlen_k - seqlen_q
    tile = tile_of(batch, head, rows, shift, 0, 0, seqlen_q, seqlen_k, rotated)
    keys = KeyHead(
        kv + batch * stride_kv_batch, None, stride_kv_seqlen_k, 0, 1, seqlen_k, latent, latent,
        k_pe + batch * stride_k_pe_batch, stride_k_pe_seqlen_k, rope,
    )  # fmt: skip
    scoring = Scoring(tl.abs(scale), None, None, None, (), ())
    last_query = tl.minimum(block * BLOCK_M + BLOCK_M, seqlen_q) - 1
    whole, edges = spans(block * BLOCK_M + shift, last_query + shift, 0, 0, seqlen_k, form)
    acc, row_max, row_sum = attend_spans(q_tile, tile, keys, scoring, whole, edges, form)

    store_lse(
        Matrix(lse, stride_lse_batch, stride_lse_heads, stride_lse_seqlen_q, 0), batch, head, 0, rows, row_max,
        row_sum, stored,
    )  # fmt: skip
    acc *= (1.0 / tl.where(row_sum == 0, 1.0, row_sum))[:, None]
    out_head = head_of(Matrix(out, stride_out_batch, stride_out_heads, 0, 1), batch, head, 0)
    project(
        acc.to(kv.dtype.element_ty), out_head, stride_out_seqlen_q, rows, stored,
        projection + head_dim * stride_wkv_b_rows, stride_wkv_b_rows, head_dim_v, latent, HEAD_DIM_V, STEP, form,
    )  # fmt: skip


@triton.jit
def absorb(
    q, stride_q, rows, seqlen_q, projection, stride_projection, head_dim, latent,
    HEAD_DIM: tl.constexpr, STEP: tl.constexpr, form: tl.constexpr,
):  # fmt: skip
    """q [rows, head_dim] times a projection [head_dim, latent]: fp32 [BLOCK_M, LATENT]."""
    product = tl.zeros([form.BLOCK_M, form.HEAD_DIM], tl.float32)
    for start in range(0, HEAD_DIM, STEP):
        at = start + tl.arange(0, STEP)
        q_part = load_tile(q, rows, stride_q, at, 1, seqlen_q, head_dim, True, form.PADDED)
        columns = tl.arange(0, form.HEAD_DIM)
        part = load_tile(projection, at, stride_projection, columns, 1, head_dim, latent, form.PADDED, form.PADDED)
        product = tl.dot(q_part, part, product)
    return product


@triton.jit
def project(
    sums, out, stride_out, rows, stored, projection, stride_projection, head_dim_v, latent,
    HEAD_DIM_V: tl.constexpr, STEP: tl.constexpr, form: tl.constexpr,
):  # fmt: skip
    """Write sums [BLOCK_M, LATENT] times the transpose of a projection [head_dim_v, latent], where `stored`."""
    for start in range(0, HEAD_DIM_V, STEP):
        at = start + tl.arange(0, STEP)
        columns = tl.arange(0, form.HEAD_DIM)
        part = load_tile(projection, at, stride_projection, columns, 1, head_dim_v, latent, form.PADDED, form.PADDED)
        mask = stored[:, None]
        if form.PADDED:
            mask = mask & (at < head_dim_v)[None, :]
        product = tl.dot(sums, tl.trans(part))
        tl.store(out + rows[:, None] * stride_out + at[None, :], product.to(out.dtype.element_ty), mask=mask)
