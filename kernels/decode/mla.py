"""Multi-head latent attention while decoding, with the projections absorbed into the queries.

A cached row is a latent vector, of which every head's key and value are projections, and a rotated part that all heads'
keys share. The key projections are applied to the queries beforehand, and the value projections afterwards. So all
heads have the same keys (the whole rows) and the same values (the latent vectors), and one tile in LDS serves as both.
"""

import triton
import triton.language as tl

from kernels.common.softmax import LOG2_E, add_logit, fold, inverse, log2_sum
from kernels.common.tensors import HeadRows, Heads
from kernels.decode.cache import BlockTables, columns_of, find, load_rows
from kernels.decode.masks import CacheMask, first_key_of, is_seen, seen_keys, tile_keys, within
from kernels.decode.parts import Parts, given_sinks, offsets_of, part, rows_of, sequence_of, store_rows
from kernels.decode.split import Factors, result_factor, score_factor


@triton.jit
def mla_split(
    q: Heads, cache: Heads, out: Heads, lse: HeadRows, parts: Parts,
    block_tables: BlockTables, seqlens_k, cu_seqlens_q, heads, total_q, max_seqlen_q, seqlen_k, latent, rope,
    factors: Factors,
    LATENT: tl.constexpr, ROPE: tl.constexpr, PADDED: tl.constexpr, WHOLE: tl.constexpr,
    WHOLE_BLOCKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, mask: CacheMask = None, sinks=None,
):  # fmt: skip
    """Fold one of parts.splits parts of a sequence's rows into a softmax, for BLOCK_M (token, head) rows of queries.

    Grid: (cdiv(max_seqlen_q * heads, BLOCK_M) * splits, batch).

    q: [1, heads, total_q, latent + rope]; cache: [blocks, 1, block_size, latent + rope]; out: [1, heads, total_q,
    latent]; strides along what is 1 are 0. LATENT, ROPE: powers of two >= latent and rope, not PADDED where they are
    these. WHOLE: both are multiples of 16. Rows of float8 get the dtype of q. Tables, lengths, masks, factors, sinks,
    lse and what is written are as in `decode_split`.
    """
    tile, split = tl.program_id(0) // parts.splits, tl.program_id(0) % parts.splits
    batch = tl.program_id(1)
    sequence = sequence_of(batch, max_seqlen_q, seqlen_k, cu_seqlens_q, total_q, seqlens_k)
    if tile * BLOCK_M >= sequence.queries * heads:
        return
    rows = rows_of(tile, 0, heads, sequence.queries, BLOCK_M)
    if WHOLE:  # which wide loads have to know
        latent, rope = latent // 16 * 16, rope // 16 * 16
    # Columns of a row: of the latent vector, and of the rotated part.
    of_latent = columns_of(latent, LATENT, PADDED)
    of_rope = (latent if PADDED else LATENT) + columns_of(rope, ROPE, PADDED)
    q_at = offsets_of(q, sequence, rows)
    q_latent = load_rows(q.ptr, q_at, of_latent)
    q_rope = load_rows(q.ptr, q_at, of_rope)
    if PADDED:
        q_latent = tl.where((tl.arange(0, LATENT) < latent)[None, :], q_latent, 0.0)
        q_rope = tl.where((tl.arange(0, ROPE) < rope)[None, :], q_rope, 0.0)

    first_key = first_key_of(mask, sequence)
    seen = seen_keys(rows.tokens, mask, first_key, sequence)
    begin, end = tile_keys(tile * BLOCK_M, BLOCK_M, heads, mask, first_key, sequence, BLOCK_N)
    begin, end = part(begin, end, split, parts.splits, BLOCK_N)
    scale_log2 = score_factor(factors, batch, 0) * LOG2_E
    acc = tl.zeros([BLOCK_M, LATENT], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        # Rows outside repeat the nearest inside: loads need no masks, and what is made of them is not seen.
        block, place = find(block_tables, batch, start, within(keys, first_key, sequence), WHOLE_BLOCKS)
        rows_at = block * cache.stride_batch + place * cache.stride_rows
        latent_tile = load_rows(cache.ptr, rows_at, of_latent).to(q_latent.dtype)
        rope_tile = load_rows(cache.ptr, rows_at, of_rope).to(q_latent.dtype)
        scores = tl.dot(q_latent, tl.trans(latent_tile), input_precision="ieee")
        scores = tl.dot(q_rope, tl.trans(rope_tile), scores, input_precision="ieee") * scale_log2
        p, rescale, row_max, row_sum = fold(tl.where(is_seen(keys, seen), scores, float("-inf")), row_max, row_sum)
        acc = tl.dot(p.to(latent_tile.dtype), latent_tile, acc * rescale[:, None], input_precision="ieee")

    if not parts.always and given_sinks(sinks) and parts.splits == 1:
        acc, row_max, row_sum = add_logit(acc, row_max, row_sum, tl.load(sinks + rows.heads) * LOG2_E)
    acc *= (inverse(row_sum) * result_factor(factors, batch, 0))[:, None]
    row_lse = log2_sum(row_max, row_sum)
    columns = tl.arange(0, LATENT)
    store_rows(acc, row_lse, sequence, rows, columns, split, parts, out, lse, heads, latent, PADDED)
