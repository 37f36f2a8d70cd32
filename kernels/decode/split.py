"""Attention of few queries over a cache of keys and values: each program folds a part of them (flash decoding)."""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.softmax import LOG2_E, add_logit, cap, fold, inverse, log2_sum
from kernels.common.tensors import Extents, HeadRows, Heads, HeadScalars
from kernels.decode.cache import BlockTables, columns_of, find, load_rows
from kernels.decode.int4 import deinterleave, in_eighths, interleave, load_int4
from kernels.decode.masks import CacheMask, first_key_of, is_seen, is_shown, seen_keys, tile_keys, within
from kernels.decode.parts import Parts, given_sinks, load_queries, part, rows_of, sequence_of, store_rows
from kernels.decode.rotation import CacheRotation, rotated_keys, rotated_queries

GAIN: tl.constexpr = tl.constexpr(128.0)
"""Probabilities times the scale of a quantised value are small; this keeps them in float16's normal range."""


class DecodeScoring(NamedTuple):
    """Steps from a product of a query and a key to a score. slopes: fp32, of each row, in units of log2, or None."""

    scale: tl.tensor
    softcap: tl.tensor
    slopes: tl.tensor


class Factors(NamedTuple):
    """Factors of scores and results.

    scale: of the products of q and k. q_factor, k_factor, v_factor: fp32 [batch, heads_kv], of all values of a key
    head; None or null: 1. out_factor: of the result; out_scale: fp32 [1], by which it is divided; None or null: 1.
    """

    scale: tl.tensor
    q_factor: tl.tensor = None
    k_factor: tl.tensor = None
    v_factor: tl.tensor = None
    q_stride_batch: tl.tensor = 0
    q_stride_heads: tl.tensor = 0
    k_stride_batch: tl.tensor = 0
    k_stride_heads: tl.tensor = 0
    v_stride_batch: tl.tensor = 0
    v_stride_heads: tl.tensor = 0
    out_scale: tl.tensor = None
    out_factor: tl.tensor = 1.0


@triton.jit
def decode_split(
    q: Heads, k: Heads, v: Heads, out: Heads, lse: HeadRows, parts: Parts,
    extents: Extents, factors: Factors,
    HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    # Where sequences have other numbers of keys or queries, and caches are in blocks
    seqlens_k=None, cu_seqlens_q=None, total_q=0, block_tables: BlockTables = None,
    # Of quantised caches
    k_scale: HeadRows = None, v_scale: HeadRows = None,
    groups=0, GROUPS: tl.constexpr = 0, WORDS: tl.constexpr = False,
    # Of scores
    mask: CacheMask = None, alibi_slopes: HeadScalars = None, softcap=0.0, sinks=None, rotation: CacheRotation = None,
):  # fmt: skip
    """Fold one of parts.splits parts of a sequence's keys into a softmax, for BLOCK_M (token, head) rows of a key head.

    Grid: (cdiv(seqlen_q * heads // heads_kv, BLOCK_M) * splits, heads_kv, batch).

    q, out: [batch, heads, tokens, head_dim] of seqlen_q tokens, of float8 to float32; or, where cu_seqlens_q (int32
    [batch + 1]) is given, of all sequences' total_q tokens, of which one has at most seqlen_q, the stride along batch
    0. k, v: [batch, heads_kv, tokens, head_dim] of seqlen_k tokens; or, with block_tables, [blocks, heads_kv,
    block_size, head_dim]. Rows of v and out have head_dim_v elements instead, if that is given. seqlens_k: int32
    [batch], how many keys each sequence has; None, or null: seqlen_k. Its queries are its last tokens: query t has key
    t + keys - queries on its diagonal, around which `mask` shows keys.

    k_scale, v_scale: fp32, factors of the cached values, a stride 0 where one serves all. With GROUPS the cache has 4
    bits a value, uint8 [.., head_dim / 2], the even ones low, and each token has `groups` (factor, shift) pairs, fp16
    [.., groups, 2], contiguous; GROUPS: a multiple of it; WORDS: as `load_int4` has it.

    softcap: if > 0, scores become softcap * tanh(score / softcap). alibi_slopes: fp32 [batch, heads], None or null;
    adds -slope * |distance from the diagonal|. sinks: as in `merge_parts`, added here if there is but one part.
    rotation: of queries by their diagonals, and of keys by their numbers.

    lse: fp32 [batch, heads, tokens], natural, or null. What is written, and where, is as in `store_rows`.
    What a length or a block table says is clamped: nothing outside of the cache is read.
    """
    SCALED: tl.constexpr = k_scale.ptr is not None and not GROUPS and k.ptr.dtype.element_ty.primitive_bitwidth == 8
    heads, seqlen_q, head_dim = extents.heads, extents.seqlen_q, extents.head_dim
    head_dim_v = head_dim if extents.head_dim_v is None else extents.head_dim_v
    tile, split = tl.program_id(0) // parts.splits, tl.program_id(0) % parts.splits
    head_kv, batch = tl.program_id(1), tl.program_id(2)
    group = heads // extents.heads_kv
    sequence = sequence_of(batch, seqlen_q, extents.seqlen_k, cu_seqlens_q, total_q, seqlens_k)
    if tile * BLOCK_M >= sequence.queries * group:
        return
    rows = rows_of(tile, head_kv, group, sequence.queries, BLOCK_M)
    columns = in_eighths(head_dim, HEAD_DIM) if GROUPS and PADDED and not WORDS else tl.arange(0, HEAD_DIM)
    q_tile = load_queries(q, sequence, rows, columns, head_dim, PADDED)
    if WORDS:
        q_tile = interleave(q_tile)

    diagonal = rows.tokens + (sequence.keys - sequence.queries)
    if rotation.cos is not None:
        q_tile = rotated_queries(q_tile, q, sequence, rows, diagonal, columns, head_dim, rotation, PADDED)
    first_key = first_key_of(mask, sequence)
    seen = seen_keys(rows.tokens, mask, first_key, sequence)
    scale = score_factor(factors, batch, head_kv)
    scoring = make_scoring(scale, softcap, alibi_slopes, batch, rows.heads[:, None])
    begin, end = tile_keys(tile * BLOCK_M, BLOCK_M, group, mask, first_key, sequence, BLOCK_N)
    begin, end = part(begin, end, split, parts.splits, BLOCK_N)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        # Keys outside repeat the nearest inside: loads need no masks, and what is made of them is not seen.
        block, place = find(block_tables, batch, start, within(keys, first_key, sequence), block_tables.WHOLE_BLOCKS)
        k_factors = factors_at(k_scale, block, head_kv, place)
        v_factors = factors_at(v_scale, block, head_kv, place)
        if block_tables.PACK:
            present, piece_columns = keys == within(keys, first_key, sequence), columns_of(head_dim, HEAD_DIM, PADDED)
            k_tile = load_key_pieces(k, block, head_kv, place, piece_columns, block_tables)
            v_tile = load_value_pieces(v, block, head_kv, start, present, piece_columns, block_tables)
        else:
            k_tile = load_cache(k, k_factors, block, head_kv, place, head_dim, groups, HEAD_DIM, PADDED, GROUPS, WORDS)
            v_tile = load_cache(
                v, v_factors, block, head_kv, place, head_dim_v, groups, HEAD_DIM, PADDED, GROUPS, WORDS
            )
        if rotation.cos is not None:
            k_columns, positions = columns_of(head_dim, HEAD_DIM, PADDED), within(keys, first_key, sequence)
            k_tile = rotated_keys(k_tile, k, block, head_kv, place, positions, k_columns, q_tile.dtype, rotation)
        products = tl.dot(q_tile, tl.trans(k_tile.to(q_tile.dtype)), input_precision="ieee")
        if SCALED:
            products *= tl.load(k_factors)[None, :]
        scores = scores_of(products, diagonal[:, None] - keys[None, :], scoring)
        visible = is_seen(keys, seen)
        if mask.custom_mask is not None:
            visible = visible & is_shown(start, BLOCK_N, sequence.first_query + rows.tokens, mask)
        scores = tl.where(visible, scores, float("-inf"))
        p, rescale, row_max, row_sum = fold(scores, row_max, row_sum)
        if SCALED:
            p *= (tl.load(v_factors) * GAIN)[None, :]
        acc = tl.dot(p.to(q_tile.dtype), v_tile.to(q_tile.dtype), acc * rescale[:, None], input_precision="ieee")

    if not parts.always and given_sinks(sinks) and parts.splits == 1:
        acc, row_max, row_sum = add_logit(acc, row_max, row_sum, tl.load(sinks + rows.heads) * LOG2_E)
    acc *= (inverse(row_sum) * result_factor(factors, batch, head_kv))[:, None]
    if SCALED:
        acc *= 1.0 / GAIN
    if WORDS:
        acc = deinterleave(acc)
    row_lse = log2_sum(row_max, row_sum)
    store_rows(acc, row_lse, sequence, rows, columns, split, parts, out, lse, heads, head_dim_v, PADDED)


@triton.jit
def score_factor(factors: Factors, batch, head_kv):
    """Return the factor of the products of a key head."""
    at = batch * factors.q_stride_batch + head_kv * factors.q_stride_heads
    scale = factors.scale * one_or(factors.q_factor, at)
    at = batch * factors.k_stride_batch + head_kv * factors.k_stride_heads
    return scale * one_or(factors.k_factor, at)


@triton.jit
def result_factor(factors: Factors, batch, head_kv):
    """Return the factor of a key head's results."""
    at = batch * factors.v_stride_batch + head_kv * factors.v_stride_heads
    return factors.out_factor * one_or(factors.v_factor, at) / one_or(factors.out_scale, 0)


@triton.jit
def one_or(values, at):
    """Load a value; 1 if their address is None or null."""
    return 1.0 if values is None else tl.load(values + at, values.to(tl.int64) != 0, 1.0)


@triton.jit
def factors_at(factors: HeadRows, block, head_kv, place):
    """Return addresses of the factors (or of the first pairs) of a key head's tokens; None if there are none."""
    if factors.ptr is None:
        return None
    else:
        at = block * factors.stride_batch + head_kv * factors.stride_heads + place * factors.stride_rows
        return factors.ptr + at


@triton.jit
def load_cache(
    cache: Heads, factors, block, head_kv, place, head_dim, groups,
    HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, GROUPS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Load rows of a key head, [len(place), HEAD_DIM], as they are, or fp16 for 4 bits.

    factors: as from `factors_at`; other arguments are as in `decode_split`.
    """
    rows = cache.ptr + head_kv * cache.stride_heads
    at = block * cache.stride_batch + place * cache.stride_rows
    if GROUPS:
        return load_int4(rows, at, factors, groups, head_dim, HEAD_DIM, GROUPS, WORDS, PADDED)
    else:
        return load_rows(rows, at, columns_of(head_dim, HEAD_DIM, PADDED))


@triton.jit
def load_key_pieces(k: Heads, block, head_kv, place, columns, tables: BlockTables):
    """Load keys, [len(place), len(columns)], of which PACK elements lie together. k: [blocks, heads_kv, block_size,
    head_dim / PACK] pieces."""
    PACK: tl.constexpr = tables.PACK
    at = block * k.stride_batch + place * k.stride_rows
    columns = columns // PACK * k.stride_columns + columns % PACK
    return load_rows(k.ptr + head_kv * k.stride_heads, at, tl.max_contiguous(tl.multiple_of(columns, PACK), PACK))


@triton.jit
def load_value_pieces(v: Heads, block, head_kv, start, present, columns, tables: BlockTables):
    """Load values, [len(block), len(columns)], of which those of PACK keys lie together; 0 where not `present`.

    v: [blocks, heads_kv, block_size / PACK, head_dim] pieces; start: first of the keys, a multiple of their number.
    """
    PACK: tl.constexpr = tables.PACK
    keys = start // block.shape[0] * block.shape[0] + tl.arange(0, block.shape[0])
    piece = keys // PACK % (tables.block_size // PACK)
    at = block * v.stride_batch + piece * v.stride_rows + keys % PACK
    at = tl.max_contiguous(tl.multiple_of(at, PACK), PACK)  # as the keys of a piece are of one block
    tile = load_rows(v.ptr + head_kv * v.stride_heads, at, columns * v.stride_columns)
    return tl.where(present[:, None], tile, tl.zeros_like(tile))


@triton.jit
def make_scoring(scale, softcap, alibi_slopes: HeadScalars, batch, heads):
    """Make the DecodeScoring of rows of these query heads; arguments as in `decode_split`."""
    slopes = None
    if alibi_slopes.ptr is not None:
        at = batch * alibi_slopes.stride_batch + heads * alibi_slopes.stride_heads
        slopes = tl.load(alibi_slopes.ptr + at, alibi_slopes.ptr.to(tl.int64) != 0, 0.0) * LOG2_E
    return DecodeScoring(scale, softcap, slopes)


@triton.jit
def scores_of(products, distance, scoring: DecodeScoring):
    """Return scores in units of log2; distance: int32, from the key to the diagonal."""
    if scoring.softcap > 0:
        scores = cap(products, scoring.scale, scoring.softcap) * LOG2_E
    else:
        scores = products * (scoring.scale * LOG2_E)
    if scoring.slopes is not None:
        scores -= scoring.slopes * tl.abs(distance.to(tl.float32))  # as abs is free there
    return scores
