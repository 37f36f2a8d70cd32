"""Writing new keys and values to a cache, on the way rotated and quantised."""

import triton
import triton.language as tl

from kernels.decode.int4 import store_int4

ROUNDER: tl.constexpr = tl.constexpr(12582912.0)
"""1.5 * 2**23: a float32 sum with it has no bits below 1, so adding and subtracting rounds half to even."""


@triton.jit
def append_rows(
    k_new, v_new, k, v, slots, heads_kv, head_dim, blocks, block_size,
    stride_k_new_tokens, stride_k_new_heads_kv, stride_v_new_tokens, stride_v_new_heads_kv,
    stride_k_blocks, stride_k_block_size, stride_k_heads_kv,
    stride_v_blocks, stride_v_block_size, stride_v_heads_kv,
    HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr,
    # Of caches with scales
    k_scale=None, stride_k_scale_blocks=0, stride_k_scale_block_size=0, stride_k_scale_heads_kv=0,
    v_scale=None, stride_v_scale_blocks=0, stride_v_scale_block_size=0, stride_v_scale_heads_kv=0,
    PER_TOKEN: tl.constexpr = False, INT4: tl.constexpr = False, groups=0, LARGEST: tl.constexpr = 0.0,
    # Of rotary embeddings
    cos=None, sin=None, positions=None, pairs=0, max_position=0, stride_cos_max_position=0, stride_sin_max_position=0,
    interleaved=False,
):  # fmt: skip
    """Copy BLOCK_H heads of one token to its slot of a cache. Grid: (tokens, cdiv(heads_kv, BLOCK_H)).

    k_new, v_new: [tokens, heads_kv, head_dim]; k, v: [blocks, block_size, heads_kv, head_dim], or [.., head_dim / 2]
    with INT4. slots: int32 [tokens], block * block_size + place in it; a token whose slot is not in the cache is left
    out. HEAD_DIM: power of two >= head_dim.

    cos, sin: fp32 [max_position, pairs], null where nothing is rotated: the first 2 * pairs elements of each key are
    rotated by the angles of its position (int32 [tokens], clamped), element i with i + pairs, or where `interleaved`
    2 i with 2 i + 1.

    k_scale, v_scale: fp32; what is stored times its scale is the value; from -LARGEST to LARGEST. PER_TOKEN: the scale
    is made for each row, and stored; else it is given. INT4: k_scale and v_scale are fp16, the `groups` (factor, shift)
    pairs of `store_int4`.
    """
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    if slot < 0 or slot // block_size >= blocks:
        return
    block, place = slot // block_size, slot % block_size
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    known, columns = heads < heads_kv, tl.arange(0, HEAD_DIM)

    k_new += token * stride_k_new_tokens
    k_at = heads * stride_k_new_heads_kv
    keys = _load(k_new, k_at, columns, known, head_dim)
    if cos.to(tl.int64) != 0:
        position = tl.minimum(tl.maximum(tl.load(positions + token), 0), max_position - 1)
        keys = _rotate(
            keys, k_new, k_at, columns, known, cos + position * stride_cos_max_position,
            sin + position * stride_sin_max_position, pairs, interleaved,
        )  # fmt: skip
    values = _load(v_new + token * stride_v_new_tokens, heads * stride_v_new_heads_kv, columns, known, head_dim)

    k_at = block * stride_k_blocks + place * stride_k_block_size + heads * stride_k_heads_kv
    v_at = block * stride_v_blocks + place * stride_v_block_size + heads * stride_v_heads_kv
    k_scale_at = block * stride_k_scale_blocks + place * stride_k_scale_block_size + heads * stride_k_scale_heads_kv
    v_scale_at = block * stride_v_scale_blocks + place * stride_v_scale_block_size + heads * stride_v_scale_heads_kv
    if INT4:
        store_int4(keys, k, k_at, k_scale, k_scale_at, known, groups, HEAD_DIM)
        store_int4(values, v, v_at, v_scale, v_scale_at, known, groups, HEAD_DIM)
    else:
        inside = known[:, None] & (columns < head_dim)[None, :]
        if k.dtype.element_ty.primitive_bitwidth == 8:
            keys = _quantise(keys, k_scale + k_scale_at, known, k.dtype.element_ty, PER_TOKEN, LARGEST)
            values = _quantise(values, v_scale + v_scale_at, known, v.dtype.element_ty, PER_TOKEN, LARGEST)
        tl.store(k + k_at[:, None] + columns[None, :], keys.to(k.dtype.element_ty), inside)
        tl.store(v + v_at[:, None] + columns[None, :], values.to(v.dtype.element_ty), inside)


@triton.jit
def _load(rows, at, columns, known, head_dim):
    """fp32 [len(at), len(columns)]."""
    inside = known[:, None] & (columns < head_dim)[None, :]
    return tl.load(rows + at[:, None] + columns[None, :], inside, 0.0).to(tl.float32)


@triton.jit
def _rotate(x, rows, at, columns, known, cos, sin, pairs, interleaved):
    """x, which was loaded from `rows`, with its elements before 2 * pairs rotated."""
    if interleaved:
        pair, partner, is_first = columns // 2, columns ^ 1, columns % 2 == 0
    else:
        is_first = columns < pairs
        pair = tl.where(is_first, columns, columns - pairs)
        partner = tl.where(is_first, columns + pairs, columns - pairs)
    rotated = columns < 2 * pairs
    other = tl.load(rows + at[:, None] + partner[None, :], known[:, None] & rotated[None, :], 0.0).to(tl.float32)
    c = tl.load(cos + pair, rotated, 1.0)
    s = tl.load(sin + pair, rotated, 0.0)
    return x * c[None, :] + other * tl.where(is_first, -s, s)[None, :]


@triton.jit
def _quantise(x, scales, known, dtype: tl.constexpr, PER_TOKEN: tl.constexpr, LARGEST: tl.constexpr):
    """x / scale between -LARGEST and LARGEST, rounded to integers if the dtype is int8."""
    if PER_TOKEN:
        scale = tl.max(tl.abs(x), 1) * (1.0 / LARGEST)
        tl.store(scales, scale, known)
        scale = tl.where(scale == 0, 1.0, scale)
    else:
        scale = tl.load(scales, known, 1.0)
    x = tl.minimum(tl.maximum(tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape)), -LARGEST), LARGEST)
    if dtype == tl.int8:
        x = (x + ROUNDER) - ROUNDER
    return x
