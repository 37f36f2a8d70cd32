"""Attention of few queries over listed blocks of keys, with custom functions for scores and masks.

The visible keys are data. Each sequence (and key head) has a list of blocks to which a mask function applies, and a
list of fully visible blocks. The functions are inlined when the kernel is built.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.softmax import LOG2_E, fold, inverse, log2_sum
from kernels.common.tensors import Closure, HeadRows, Heads, HeadScalars
from kernels.decode.cache import columns_of, load_rows
from kernels.decode.parts import Parts, Sequence, load_queries, part, rows_of, store_rows


class Listed(NamedTuple):
    """The blocks of a key head, as tiles of BLOCK_N keys: first those of `masked`, in which a mask function decides,
    then those of `full`, both int32 lists. tiles: of a block; masked_tiles: of all of `masked`; all_tiles: of both.
    """

    masked: tl.tensor
    full: tl.tensor
    tiles: tl.tensor
    masked_tiles: tl.tensor
    all_tiles: tl.tensor


@triton.jit
def flex_split(
    q: Heads, k: Heads, v: Heads, out: Heads, lse: HeadRows, parts: Parts,
    kv_num_blocks: HeadScalars, kv_indices: HeadRows, full_kv_num_blocks: HeadScalars, full_kv_indices: HeadRows,
    heads, heads_kv, seqlen_q, seqlen_k, head_dim, kv_blocks, sparse_block_size, scale,
    HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    first_query=0, score_mod: Closure = None, mask_mod: Closure = None, head_dim_v=None,
):  # fmt: skip
    """Fold one of parts.splits parts of the listed keys into a softmax, for BLOCK_M (token, head) rows of a key head.

    Grid: (cdiv(seqlen_q * heads // heads_kv, BLOCK_M) * splits, heads_kv, batch).

    q, out: [batch, heads, seqlen_q, head_dim]; k, v: [batch, heads_kv, seqlen_k, head_dim], stride 0 along batch where
    one serves all; rows of v and out have head_dim_v elements, if that is given. kv_num_blocks: int32 [batch,
    heads_kv], how many of kv_indices, int32 [batch, heads_kv, kv_blocks], count: blocks of sparse_block_size keys, a
    multiple of BLOCK_N, in any order and none twice. full_*: the same of the blocks that mask_mod is not asked about.
    What lists say is clamped: nothing outside of the cache is read.

    score_mod, mask_mod: functions as in `kernels.attention.mods`, or None; but they get heads as int32 [BLOCK_M, 1],
    and first_query + t as the place of query t. lse: fp32 [batch, heads, seqlen_q], natural, or null. What is written,
    and where, is as in `store_rows`.
    """
    tile, split = tl.program_id(0) // parts.splits, tl.program_id(0) % parts.splits
    head_kv, batch = tl.program_id(1), tl.program_id(2)
    sequence = Sequence(batch, 0, batch * seqlen_q, seqlen_q, seqlen_k)
    rows = rows_of(tile, head_kv, heads // heads_kv, seqlen_q, BLOCK_M)
    queries, heads_q = (first_query + rows.tokens)[:, None], rows.heads[:, None]
    q_tile = load_queries(q, sequence, rows, tl.arange(0, HEAD_DIM), head_dim, PADDED)
    head_dim_v = head_dim if head_dim_v is None else head_dim_v
    columns, columns_v = columns_of(head_dim, HEAD_DIM, PADDED), columns_of(head_dim_v, HEAD_DIM, PADDED)

    listed = make_listed(
        kv_num_blocks,
        kv_indices,
        full_kv_num_blocks,
        full_kv_indices,
        batch,
        head_kv,
        kv_blocks,
        sparse_block_size // BLOCK_N,
    )
    begin, end = part(0, listed.all_tiles, split, parts.splits, 1)
    k_rows = k.ptr + batch * k.stride_batch + head_kv * k.stride_heads
    v_rows = v.ptr + batch * v.stride_batch + head_kv * v.stride_heads
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    last_block = tl.cdiv(seqlen_k, sparse_block_size) - 1
    for at in range(begin, end):
        block, masked = block_of(listed, at)
        block = tl.minimum(tl.maximum(block, 0), last_block)
        keys = block * sparse_block_size + at % listed.tiles * BLOCK_N + tl.arange(0, BLOCK_N)
        # Keys past the last repeat it: loads need no masks, and what is made of them is not seen.
        at_keys = tl.minimum(keys, seqlen_k - 1)
        k_tile = load_rows(k_rows, at_keys * k.stride_rows, columns)
        v_tile = load_rows(v_rows, at_keys * v.stride_rows, columns_v)
        scores = tl.dot(q_tile, tl.trans(k_tile)) * scale
        place = at_keys[None, :]
        if score_mod.function is not None:
            scores = score_mod.function(scores, batch, heads_q, queries, place, *score_mod.operands)
        visible = (keys < seqlen_k)[None, :]
        if mask_mod.function is not None:
            shown = mask_mod.function(batch, heads_q, queries, place, *mask_mod.operands)
            visible = visible & ((shown != 0) | (not masked))
        scores = tl.where(visible, scores * LOG2_E, float("-inf"))
        p, rescale, row_max, row_sum = fold(scores, row_max, row_sum)
        acc = tl.dot(p.to(q_tile.dtype), v_tile, acc * rescale[:, None])

    acc *= inverse(row_sum)[:, None]
    row_lse = log2_sum(row_max, row_sum)
    stored = tl.arange(0, HEAD_DIM)
    store_rows(acc, row_lse, sequence, rows, stored, split, parts, out, lse, heads, head_dim_v, PADDED)


@triton.jit
def make_listed(num_blocks, indices, full_num_blocks, full_indices, batch, head_kv, kv_blocks, tiles):
    """Make the Listed of a key head, with blocks of `tiles` tiles; the lists are as in `flex_split`."""
    masked = indices.ptr + batch * indices.stride_batch + head_kv * indices.stride_heads
    full = full_indices.ptr + batch * full_indices.stride_batch + head_kv * full_indices.stride_heads
    count = tl.load(num_blocks.ptr + batch * num_blocks.stride_batch + head_kv * num_blocks.stride_heads)
    full_count = tl.load(
        full_num_blocks.ptr + batch * full_num_blocks.stride_batch + head_kv * full_num_blocks.stride_heads
    )
    masked_tiles = tl.minimum(tl.maximum(count, 0), kv_blocks) * tiles
    all_tiles = masked_tiles + tl.minimum(tl.maximum(full_count, 0), kv_blocks) * tiles
    return Listed(masked, full, tiles, masked_tiles, all_tiles)


@triton.jit
def block_of(listed: Listed, at):
    """Return (block of tile `at`, is masked by a mask function)."""
    masked = at < listed.masked_tiles
    entry = at // listed.tiles if masked else at // listed.tiles - listed.masked_tiles // listed.tiles
    return tl.load((listed.masked if masked else listed.full) + entry), masked
