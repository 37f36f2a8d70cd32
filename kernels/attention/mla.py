"""Multi-head latent attention over a prompt, with the projections of keys and values absorbed.

A row of the cache is a latent vector, of which every head's key and value are projections, and a rotated part that all
heads' keys share. The projection of a head's keys is applied to its queries, and the projection of its values to the
weighted sum of latent vectors. So neither keys nor values are ever made.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.attention.forward import deal, matrix_of, spans, store_lse, tile_of
from kernels.attention.inner import attend_spans, load_tile, rows_from
from kernels.attention.problem import KeyHead, Scoring, make_form
from kernels.common.softmax import inverse
from kernels.common.tensors import HeadRows, Heads, LatentExtents, Matrix, Window


class Latents(NamedTuple):
    """A tensor of [batch, rows, columns] that all heads share."""

    ptr: tl.tensor
    stride_batch: tl.tensor
    stride_rows: tl.tensor
    stride_columns: tl.tensor


class Projections(NamedTuple):
    """A tensor of [heads, rows, columns]."""

    ptr: tl.tensor
    stride_heads: tl.tensor
    stride_rows: tl.tensor
    stride_columns: tl.tensor


@triton.jit
def mla_prefill(
    q_nope: Heads, q_pe: Heads, kv: Latents, k_pe: Latents, wkv_b: Projections, out: Heads, extents: LatentExtents,
    query_blocks, scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, ROPE: tl.constexpr, LATENT: tl.constexpr, PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, NUM_XCDS: tl.constexpr,
    HAS_BF16_CVT: tl.constexpr,
    lse: HeadRows = None, right=0,
):  # fmt: skip
    """out = softmax(scale * (q_nope Wk kv + q_pe k_pe)) kv Wv, a program for each BLOCK_M queries of a head.

    Grid: (query_blocks, heads, batch), query_blocks * BLOCK_M >= seqlen_q.

    q_nope: [batch, heads, seqlen_q, head_dim], q_pe: [batch, heads, seqlen_q, rope], kv: [batch, seqlen_k, latent],
    k_pe: [batch, seqlen_k, rope], wkv_b: [heads, head_dim + head_dim_v, latent], first Wk, then Wv; out: [batch, heads,
    seqlen_q, head_dim_v]. All of float16 or all of bfloat16, with strides in elements, the last one 1. lse: as in
    `attention_forward`. CAUSAL: query i sees keys j <= i + seqlen_k - seqlen_q + right.

    HEAD_DIM, HEAD_DIM_V, ROPE, LATENT: powers of two, at least the dims; PADDED: some are greater. STEP: rows of the
    projections that are multiplied at a time; divides HEAD_DIM and HEAD_DIM_V.
    """
    form: tl.constexpr = make_form(
        LATENT, LATENT, PADDED, BLOCK_M, BLOCK_N, BOUND_RIGHT=CAUSAL, HAS_BF16_CVT=HAS_BF16_CVT, ROTATED_DIM=ROPE
    )
    number = tl.program_id(0) + query_blocks * tl.program_id(1)
    block, head, _ = deal(number, query_blocks, extents.heads, 1, CAUSAL, NUM_XCDS)
    batch = tl.program_id(2)
    seqlen_q, seqlen_k = extents.seqlen_q, extents.seqlen_k
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    stored = rows < seqlen_q

    key_projection = Matrix(wkv_b.ptr + head * wkv_b.stride_heads, wkv_b.stride_rows, wkv_b.stride_columns)
    q_head = matrix_of(q_nope, batch, head, 0)
    q_tile = absorb(q_head, rows, seqlen_q, key_projection, extents.head_dim, extents.latent, HEAD_DIM, STEP, form)
    q_tile = tl.where(scale < 0, -q_tile, q_tile).to(kv.ptr.dtype.element_ty)
    rope_head = matrix_of(q_pe, batch, head, 0)
    rotated = load_tile(rope_head, rows, tl.arange(0, ROPE), seqlen_q, extents.rope, True, PADDED)
    rotated = tl.where(scale < 0, -rotated, rotated)

    shift = seqlen_k - seqlen_q
    window = Window(0, right, True)
    tile = tile_of(batch, head, rows, shift, window, seqlen_q, seqlen_k, rotated, None, False, form)
    keys = KeyHead(
        k=sequence_of(kv, batch), v=None, seqlen=seqlen_k, head_dim=extents.latent, head_dim_v=extents.latent,
        rotated=sequence_of(k_pe, batch), rotated_dim=extents.rope,
    )  # fmt: skip
    last_query = tl.minimum(block * BLOCK_M + BLOCK_M, seqlen_q) - 1
    whole, edges = spans(block * BLOCK_M + shift, last_query + shift, window, seqlen_k, form)
    acc, row_max, row_sum = attend_spans(q_tile, tile, keys, Scoring(tl.abs(scale)), whole, edges, form)

    store_lse(lse, batch, head, 0, rows, row_max, row_sum, stored)
    acc *= inverse(row_sum)[:, None]
    value_projection = rows_from(key_projection, extents.head_dim)
    project(
        acc.to(kv.ptr.dtype.element_ty), matrix_of(out, batch, head, 0), rows, stored, value_projection,
        extents.head_dim_v, extents.latent, HEAD_DIM_V, STEP, form,
    )  # fmt: skip


@triton.jit
def sequence_of(latents, batch):
    """Return the rows of a sequence as a Matrix."""
    return Matrix(latents.ptr + batch * latents.stride_batch, latents.stride_rows, latents.stride_columns)


@triton.jit
def absorb(
    q, rows, seqlen_q, projection, head_dim, latent, HEAD_DIM: tl.constexpr, STEP: tl.constexpr, form: tl.constexpr
):
    """Return q [rows, head_dim] times a projection [head_dim, latent], fp32 [BLOCK_M, LATENT]."""
    product = tl.zeros([form.BLOCK_M, form.HEAD_DIM], tl.float32)
    for start in range(0, HEAD_DIM, STEP):
        at = start + tl.arange(0, STEP)
        q_part = load_tile(q, rows, at, seqlen_q, head_dim, True, form.PADDED)
        columns = tl.arange(0, form.HEAD_DIM)
        part = load_tile(projection, at, columns, head_dim, latent, form.PADDED, form.PADDED)
        product = tl.dot(q_part, part, product)
    return product


@triton.jit
def project(
    sums, out, rows, stored, projection, head_dim_v, latent,
    HEAD_DIM_V: tl.constexpr, STEP: tl.constexpr, form: tl.constexpr,
):  # fmt: skip
    """Store sums [BLOCK_M, LATENT] times the transpose of a projection [head_dim_v, latent], in `stored` rows."""
    for start in range(0, HEAD_DIM_V, STEP):
        at = start + tl.arange(0, STEP)
        columns = tl.arange(0, form.HEAD_DIM)
        part = load_tile(projection, at, columns, head_dim_v, latent, form.PADDED, form.PADDED)
        mask = stored[:, None]
        if form.PADDED:
            mask = mask & (at < head_dim_v)[None, :]
        product = tl.dot(sums, tl.trans(part))
        offsets = rows[:, None] * out.stride_rows + at[None, :] * out.stride_columns
        tl.store(out.ptr + offsets, product.to(out.ptr.dtype.element_ty), mask=mask)
