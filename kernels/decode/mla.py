"""Multi-head latent attention while decoding, with the projections absorbed into the queries.

A cached row is a latent vector, of which every head's key and value are projections, and a rotated part that all heads'
keys share. With the projections taken into the queries (and those of the values left for after), every head has the
same keys, the whole rows, and the same values, the latent vectors: one tile in LDS serves as both, for all heads.
"""

import triton
import triton.language as tl

from kernels.decode.parts import LN_2, LOG2_E, find, finish, fold, part, queries_of


@triton.jit
def mla_split(
    q, cache, out, lse, partial, partial_lse, block_tables, seqlens_k, cu_seqlens_q,
    heads, total_q, max_seqlen_q, seqlen_k, splits, blocks, block_size,
    stride_q_tokens, stride_q_heads, stride_cache_blocks, stride_cache_block_size, stride_block_tables_batch,
    stride_out_tokens, stride_out_heads, stride_lse_tokens, stride_lse_heads,
    scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, WHOLE_BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Fold one of `splits` parts of a sequence's rows into a softmax, for BLOCK_M (token, head) rows of queries.

    Grid: (cdiv(max_seqlen_q * heads, BLOCK_M) * splits, batch).

    q: [total_q, heads, LATENT + ROPE]; cache: [blocks, block_size, LATENT + ROPE]; out: [total_q, heads, LATENT].
    LATENT and ROPE are powers of two. Tables, lengths, masks and what is written are as in `decode_split`; partial is
    fp32 [token, head, splits, LATENT].
    """
    tile, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    batch = tl.program_id(1)
    first_token, queries = queries_of(cu_seqlens_q, batch, total_q)
    keys = tl.minimum(tl.maximum(tl.load(seqlens_k + batch), 0), seqlen_k)
    if tile * BLOCK_M >= queries * heads:
        return

    # Rows past the last repeat it, those of the cache too: loads need no masks, and nothing is made of them.
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    tokens, head = tl.minimum(rows // heads, queries - 1), rows % heads
    present = rows < queries * heads
    latent, rope = tl.arange(0, LATENT), LATENT + tl.arange(0, ROPE)
    q_at = (first_token + tokens) * stride_q_tokens + head * stride_q_heads
    q_latent = tl.load(q + q_at[:, None] + latent[None, :])
    q_rope = tl.load(q + q_at[:, None] + rope[None, :])

    last = tokens + (keys - queries)  # the last row that each query sees
    end = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // heads + 1 + keys - queries, keys)
    begin, end = part(0, end, split, splits, BLOCK_N)
    table = block_tables + batch * stride_block_tables_batch
    scale_log2 = scale * LOG2_E
    acc = tl.zeros([BLOCK_M, LATENT], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(begin, end, BLOCK_N):
        visible = (start + tl.arange(0, BLOCK_N))[None, :] <= last[:, None]
        at = tl.minimum(start + tl.arange(0, BLOCK_N), keys - 1)
        block, place = find(table, start, at, blocks, block_size, WHOLE_BLOCKS)
        rows_at = block * stride_cache_blocks + place * stride_cache_block_size
        latent_tile = tl.load(cache + rows_at[:, None] + latent[None, :])
        rope_tile = tl.load(cache + rows_at[:, None] + rope[None, :])
        scores = tl.dot(q_latent, tl.trans(latent_tile))
        scores = tl.dot(q_rope, tl.trans(rope_tile), scores) * scale_log2
        p, rescale, row_max, row_sum = fold(tl.where(visible, scores, float("-inf")), row_max, row_sum)
        acc = tl.dot(p.to(latent_tile.dtype), latent_tile, acc * rescale[:, None])

    acc, row_lse = finish(acc, row_max, row_sum)
    if splits > 1:
        place = ((first_token + tokens).to(tl.int64) * heads + head) * splits + split
        tl.store(partial_lse + place, row_lse, mask=present)
        tl.store(partial + place[:, None] * LATENT + latent[None, :], acc, mask=present[:, None])
    else:
        # Before out, whose stores take all the scalar registers that there are.
        if lse.to(tl.int64) != 0:
            lse_at = (first_token + tokens) * stride_lse_tokens + head * stride_lse_heads
            tl.store(lse + lse_at, row_lse * LN_2, mask=present)
        out_at = (first_token + tokens) * stride_out_tokens + head * stride_out_heads
        tl.store(out + out_at[:, None] + latent[None, :], acc.to(out.dtype.element_ty), mask=present[:, None])
