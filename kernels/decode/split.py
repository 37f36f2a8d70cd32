"""Attention of few queries over a cache of keys and values: each program folds a part of them (flash decoding).

The query heads that share a key head are rows of one tile, so each byte of the cache is read once.
"""

import triton
import triton.language as tl

from kernels.decode.int4 import deinterleave, interleave, load_int4
from kernels.decode.parts import LN_2, LOG2_E, cap, find, finish, fold, load_rows, part, queries_of

GAIN: tl.constexpr = tl.constexpr(128.0)
"""Probabilities times the scale of a quantised value are small; this keeps them in float16's normal range."""


@triton.jit
def decode_split(
    q, k, v, out, lse, partial, partial_lse,
    heads, heads_kv, seqlen_q, seqlen_k, head_dim, splits,
    stride_q_heads, stride_q_tokens,
    stride_k_batch, stride_k_heads, stride_k_tokens,
    stride_v_batch, stride_v_heads, stride_v_tokens,
    stride_out_heads, stride_out_tokens,
    stride_lse_heads, stride_lse_tokens,
    scale,
    HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    # Of batches whose sequences have the same number of queries
    stride_q_batch=0, stride_out_batch=0, stride_lse_batch=0, seqlens_k=None,
    # Of paged caches
    cu_seqlens_q=None, total_q=0, block_tables=None, blocks=0, block_size=0, stride_tables_batch=0,
    WHOLE_BLOCKS: tl.constexpr = False,
    # Of quantised caches
    GROUPS: tl.constexpr = 0, WORDS: tl.constexpr = False, groups=0,
    k_scale=None, stride_k_scale_batch=0, stride_k_scale_heads=0, stride_k_scale_tokens=0,
    v_scale=None, stride_v_scale_batch=0, stride_v_scale_heads=0, stride_v_scale_tokens=0,
    # Of scores
    alibi_slopes=None, window=-1, softcap=0.0,
):  # fmt: skip
    """Fold one of `splits` parts of a sequence's keys into a softmax, for BLOCK_M (token, head) rows of a key head.

    Grid: (cdiv(seqlen_q * heads // heads_kv, BLOCK_M) * splits, heads_kv, batch).

    q, out: [batch, heads, tokens, head_dim] of seqlen_q tokens; or, where cu_seqlens_q (int32 [batch + 1]) is given,
    [heads, total_q, head_dim] of all sequences' tokens, of which one has at most seqlen_q. k, v: [batch, heads_kv,
    tokens, head_dim] of seqlen_k tokens; or, with block_tables (int32 [batch, seqlen_k / block_size]), [blocks,
    heads_kv, block_size, head_dim], the stride along blocks as that along batch. seqlens_k: int32 [batch], how many
    keys each sequence has; None, or null: seqlen_k. Its queries are its last tokens: query t sees keys
    j <= t + keys - queries and, if window >= 0, only those with j >= t + keys - queries - window.

    k_scale, v_scale: fp32, factors of the cache's numbers, with strides along its batch (or blocks), heads_kv and
    tokens, 0 where one serves all. With GROUPS the cache has 4 bits a number, uint8 [.., head_dim / 2], the even ones
    low, and each token has `groups` (factor, shift) pairs, fp16 [.., groups, 2], contiguous; GROUPS: a multiple of it;
    WORDS: its rows are at multiples of 4 bytes. softcap: if > 0, scores become softcap * tanh(score / softcap).
    alibi_slopes: fp32 [heads], None or null; adds -slope * |distance|.

    splits > 1: writes partial fp32 [row, splits, HEAD_DIM], each part normalised, and partial_lse fp32 [row, splits] in
    units of log2, with row = (batch * seqlen_q + token) * heads + head, for `merge_parts`; else out, and lse (natural)
    unless it is null. WHOLE_BLOCKS: block_size is a multiple of 64. What a length or a block table says is clamped:
    nothing outside of the cache is read.
    """
    SCALED: tl.constexpr = k.dtype.element_ty.primitive_bitwidth == 8 and not GROUPS
    tile, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    head_kv, batch = tl.program_id(1), tl.program_id(2)
    group = heads // heads_kv

    first_token, queries = 0, seqlen_q
    first_row = batch * seqlen_q
    if cu_seqlens_q is not None:
        first_token, queries = queries_of(cu_seqlens_q, batch, total_q)
        first_row = first_token
    keys = seqlen_k
    if seqlens_k is not None and seqlens_k.to(tl.int64) != 0:
        keys = tl.minimum(tl.maximum(tl.load(seqlens_k + batch), 0), seqlen_k)
    if tile * BLOCK_M >= queries * group:
        return

    # Rows and keys past the last repeat it: loads need no masks, and what is made of them is neither seen nor stored.
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    tokens, heads_q = tl.minimum(rows // group, queries - 1), head_kv * group + rows % group
    present = rows < queries * group
    columns = tl.arange(0, HEAD_DIM)
    q += batch * stride_q_batch
    q_at = (first_token + tokens) * stride_q_tokens + heads_q * stride_q_heads
    q_tile = load_rows(q, q_at, columns, head_dim, PADDED)
    if WORDS:
        q_tile = interleave(q_tile)

    last = tokens + (keys - queries)  # the last key that each row sees
    end = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // group + 1 + keys - queries, keys)
    reach = window if window >= 0 else 2147483647
    first_last = tl.maximum(tile * BLOCK_M // group + keys - queries, 0)
    begin = tl.maximum(first_last - reach, 0) // BLOCK_N * BLOCK_N
    begin, end = part(begin, end, split, splits, BLOCK_N)

    k += head_kv * stride_k_heads
    v += head_kv * stride_v_heads
    scale_log2 = scale * LOG2_E
    if alibi_slopes is not None:
        slopes = tl.load(alibi_slopes + heads_q, alibi_slopes.to(tl.int64) != 0, 0.0) * LOG2_E
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(begin, end, BLOCK_N):
        distance = last[:, None] - (start + tl.arange(0, BLOCK_N))[None, :]
        at = tl.minimum(start + tl.arange(0, BLOCK_N), keys - 1)
        block, place = batch, at
        if block_tables is not None:
            table = block_tables + batch * stride_tables_batch
            block, place = find(table, start, at, blocks, block_size, WHOLE_BLOCKS)
        k_at = block * stride_k_batch + place * stride_k_tokens
        v_at = block * stride_v_batch + place * stride_v_tokens
        k_factors = block * stride_k_scale_batch + head_kv * stride_k_scale_heads + place * stride_k_scale_tokens
        v_factors = block * stride_v_scale_batch + head_kv * stride_v_scale_heads + place * stride_v_scale_tokens
        if GROUPS:
            k_tile = load_int4(k, k_at, k_scale, k_factors, groups, HEAD_DIM, GROUPS, WORDS)
            v_tile = load_int4(v, v_at, v_scale, v_factors, groups, HEAD_DIM, GROUPS, WORDS)
        else:
            k_tile = load_rows(k, k_at, columns, head_dim, PADDED)
            v_tile = load_rows(v, v_at, columns, head_dim, PADDED)

        scores = tl.dot(q_tile, tl.trans(k_tile.to(q_tile.dtype)))
        if SCALED:
            scores *= tl.load(k_scale + k_factors)[None, :]
        if softcap > 0:
            scores = cap(scores * scale, softcap) * LOG2_E
        else:
            scores *= scale_log2
        if alibi_slopes is not None:
            scores -= slopes[:, None] * tl.abs(distance).to(tl.float32)
        visible = (distance | (reach - distance)) >= 0  # both, by their signs
        p, rescale, row_max, row_sum = fold(tl.where(visible, scores, float("-inf")), row_max, row_sum)
        if SCALED:
            p *= (tl.load(v_scale + v_factors) * GAIN)[None, :]
        acc = tl.dot(p.to(q_tile.dtype), v_tile.to(q_tile.dtype), acc * rescale[:, None])

    acc, row_lse = finish(acc, row_max, row_sum)
    if SCALED:
        acc *= 1.0 / GAIN
    if WORDS:
        acc = deinterleave(acc)
    if splits > 1:
        place = ((first_row + tokens).to(tl.int64) * heads + heads_q) * splits + split
        tl.store(partial_lse + place, row_lse, mask=present)
        tl.store(partial + place[:, None] * HEAD_DIM + columns[None, :], acc, mask=present[:, None])
    else:
        # Before out, whose stores take all the scalar registers that there are.
        if lse.to(tl.int64) != 0:
            lse += batch * stride_lse_batch
            lse_at = (first_token + tokens) * stride_lse_tokens + heads_q * stride_lse_heads
            tl.store(lse + lse_at, row_lse * LN_2, mask=present)
        out += batch * stride_out_batch
        out_at = (first_token + tokens) * stride_out_tokens + heads_q * stride_out_heads
        stored = present[:, None] & (columns < head_dim)[None, :] if PADDED else present[:, None]
        tl.store(out + out_at[:, None] + columns[None, :], acc.to(out.dtype.element_ty), mask=stored)
