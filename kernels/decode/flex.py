"""Attention of few queries over the blocks of keys that lists name, with functions of one's own for scores and masks.

Which keys there are to see is data: for each sequence (and key head) one list of blocks in which a mask function
decides, and one of blocks that are seen in full. The functions are inlined when the kernel is built.
"""

import triton
import triton.language as tl

from kernels.decode.parts import LN_2, LOG2_E, finish, fold, load_rows, part


@triton.jit
def flex_split(
    q, k, v, out, lse, partial, partial_lse, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices,
    heads, heads_kv, seqlen_q, seqlen_k, head_dim, kv_blocks, sparse_block_size, splits,
    stride_q_batch, stride_q_heads, stride_q_tokens,
    stride_k_batch, stride_k_heads, stride_k_tokens,
    stride_v_batch, stride_v_heads, stride_v_tokens,
    stride_out_batch, stride_out_heads, stride_out_tokens,
    stride_lse_batch, stride_lse_heads, stride_lse_tokens,
    stride_num_batch, stride_num_heads, stride_indices_batch, stride_indices_heads,
    stride_full_num_batch, stride_full_num_heads, stride_full_indices_batch, stride_full_indices_heads,
    scale,
    HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    first_query=0,
    SCORE_MOD: tl.constexpr = None, score_0=None, score_1=None, score_2=None, score_3=None,
    SCORE_OPERANDS: tl.constexpr = 0,
    MASK_MOD: tl.constexpr = None, mask_0=None, mask_1=None, mask_2=None, mask_3=None, MASK_OPERANDS: tl.constexpr = 0,
):  # fmt: skip
    """Fold one of `splits` parts of the listed keys into a softmax, for BLOCK_M (token, head) rows of a key head.

    Grid: (cdiv(seqlen_q * heads // heads_kv, BLOCK_M) * splits, heads_kv, batch).

    q, out: [batch, heads, seqlen_q, head_dim]; k, v: [batch, heads_kv, seqlen_k, head_dim], stride 0 along batch where
    one serves all. kv_num_blocks: int32 [batch, heads_kv], how many of kv_indices, int32 [batch, heads_kv, kv_blocks],
    count: blocks of sparse_block_size keys, a multiple of BLOCK_N, in any order and none twice. full_*: the same of the
    blocks that MASK_MOD is not asked about. What lists say is clamped: nothing outside of the cache is read.

    SCORE_MOD, MASK_MOD: functions as in `kernels.attention.mods`, or None, and their operands; but they get heads as
    int32 [BLOCK_M, 1], and first_query + t as the place of query t. What is written is as in `decode_split`.
    """
    tile, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    head_kv, batch = tl.program_id(1), tl.program_id(2)
    group = heads // heads_kv
    # Rows and keys past the last repeat it: loads need no masks, and what is made of them is neither seen nor stored.
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    tokens, heads_q = tl.minimum(rows // group, seqlen_q - 1), head_kv * group + rows % group
    present = rows < seqlen_q * group
    queries = first_query + tokens
    columns = tl.arange(0, HEAD_DIM)
    q_at = batch * stride_q_batch + tokens * stride_q_tokens + heads_q * stride_q_heads
    q_tile = load_rows(q, q_at, columns, head_dim, PADDED)

    k += batch * stride_k_batch + head_kv * stride_k_heads
    v += batch * stride_v_batch + head_kv * stride_v_heads
    partial_count = tl.load(kv_num_blocks + batch * stride_num_batch + head_kv * stride_num_heads)
    full_count = tl.load(full_kv_num_blocks + batch * stride_full_num_batch + head_kv * stride_full_num_heads)
    kv_indices += batch * stride_indices_batch + head_kv * stride_indices_heads
    full_kv_indices += batch * stride_full_indices_batch + head_kv * stride_full_indices_heads
    # Both lists, one behind the other, as tiles of BLOCK_N keys.
    tiles = sparse_block_size // BLOCK_N
    masked_tiles = tl.minimum(tl.maximum(partial_count, 0), kv_blocks) * tiles
    all_tiles = masked_tiles + tl.minimum(tl.maximum(full_count, 0), kv_blocks) * tiles
    begin, end = part(0, all_tiles, split, splits, 1)

    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    last_block = tl.cdiv(seqlen_k, sparse_block_size) - 1
    for at in range(begin, end):
        masked = at < masked_tiles
        entry = at // tiles if masked else at // tiles - masked_tiles // tiles
        block = tl.load((kv_indices if masked else full_kv_indices) + entry)
        block = tl.minimum(tl.maximum(block, 0), last_block)
        keys = block * sparse_block_size + at % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
        at_keys = tl.minimum(keys, seqlen_k - 1)
        k_tile = load_rows(k, at_keys * stride_k_tokens, columns, head_dim, PADDED)
        v_tile = load_rows(v, at_keys * stride_v_tokens, columns, head_dim, PADDED)
        scores = tl.dot(q_tile, tl.trans(k_tile)) * scale
        place = at_keys[None, :]
        if SCORE_MOD is not None:
            operands = (score_0, score_1, score_2, score_3)[:SCORE_OPERANDS]
            scores = SCORE_MOD(scores, batch, heads_q[:, None], queries[:, None], place, *operands)
        visible = (keys < seqlen_k)[None, :]
        if MASK_MOD is not None:
            operands = (mask_0, mask_1, mask_2, mask_3)[:MASK_OPERANDS]
            shown = MASK_MOD(batch, heads_q[:, None], queries[:, None], place, *operands)
            visible = visible & ((shown != 0) | (not masked))
        scores = tl.where(visible, scores * LOG2_E, float("-inf"))
        p, rescale, row_max, row_sum = fold(scores, row_max, row_sum)
        acc = tl.dot(p.to(q_tile.dtype), v_tile, acc * rescale[:, None])

    acc, row_lse = finish(acc, row_max, row_sum)
    if splits > 1:
        place = ((batch * seqlen_q + tokens).to(tl.int64) * heads + heads_q) * splits + split
        tl.store(partial_lse + place, row_lse, mask=present)
        tl.store(partial + place[:, None] * HEAD_DIM + columns[None, :], acc, mask=present[:, None])
    else:
        # Before out, whose stores take all the scalar registers that there are.
        if lse.to(tl.int64) != 0:
            lse_at = batch * stride_lse_batch + tokens * stride_lse_tokens + heads_q * stride_lse_heads
            tl.store(lse + lse_at, row_lse * LN_2, mask=present)
        out_at = batch * stride_out_batch + tokens * stride_out_tokens + heads_q * stride_out_heads
        stored = present[:, None] & (columns < head_dim)[None, :] if PADDED else present[:, None]
        tl.store(out + out_at[:, None] + columns[None, :], acc.to(out.dtype.element_ty), stored)
