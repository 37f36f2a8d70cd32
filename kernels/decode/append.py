"""Append new keys and values to a cache, rotated and quantised on the way, and rotate the queries beside them."""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.rounding import half_to_even, quotient, scale_of
from kernels.common.tensors import HeadRows, Heads, Vector, given
from kernels.decode.int4 import in_eighths, store_int4
from kernels.decode.rotation import partners


class Slot(NamedTuple):
    """Destination of a program: a block, a place in it, heads (int32 [BLOCK_H]) and a mask of the heads that exist."""

    block: tl.tensor
    place: tl.tensor
    heads: tl.tensor
    present: tl.tensor


class TokenRotation(NamedTuple):
    """Rotary embedding of new tokens: the first 2 * pairs elements of a head are rotated by the angles of its token's
    position, element i with i + pairs, or where `interleaved` 2 i with 2 i + 1.

    cos, sin: fp32 [max_position, pairs], null where nothing is rotated; by_element: they are [max_position, 2 * pairs],
    of each rotated element. positions: int32 [tokens], clamped to the table. The strides are along first dims.
    """

    cos: tl.tensor
    sin: tl.tensor
    positions: tl.tensor
    stride_cos_0: tl.tensor
    stride_sin_0: tl.tensor
    stride_positions_0: tl.tensor
    pairs: tl.tensor
    max_position: tl.tensor
    interleaved: tl.tensor
    by_element: tl.tensor


class Angles(NamedTuple):
    """Rotation of a token's heads, if it is `given`. cos, sin: addresses of a number for each of `pairs`, or for each
    of their elements if by_element."""

    given: tl.tensor
    cos: tl.tensor
    sin: tl.tensor
    pairs: tl.tensor
    interleaved: tl.tensor
    by_element: tl.tensor


@triton.jit
def append_rows(
    k_new: Heads, v_new: Heads, k: Heads, v: Heads, slots: Vector, heads_kv, head_dim, blocks, block_size,
    HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr, rotation: TokenRotation,
    # Of caches with scales
    k_scale: HeadRows = None, v_scale: HeadRows = None,
    PER_TOKEN: tl.constexpr = False, INT4: tl.constexpr = False, groups=0, LARGEST: tl.constexpr = 0.0,
    PADDED: tl.constexpr = True,
    # Of caches in pieces
    PACK: tl.constexpr = 0,
    # Of queries
    q: Heads = None, q_out: Heads = None, q_quantised: Heads = None, q_scale: Vector = None, heads=0,
):  # fmt: skip
    """Copy BLOCK_H heads of one token to its slot of a cache, or rotate its queries.

    Grid: (tokens, cdiv(heads_kv, BLOCK_H) + cdiv(heads, BLOCK_H)); the last ones are for q.

    k_new, v_new: [1, heads_kv, tokens, head_dim]; k, v: [blocks, heads_kv, block_size, head_dim], or [.., head_dim / 2]
    with INT4. slots: int32 [tokens], block * block_size + place in it; a token whose slot is not in the cache is left
    out. HEAD_DIM: power of two >= head_dim, and not PADDED where it is head_dim.

    k_scale, v_scale: fp32 [blocks, heads_kv, block_size]; a stored value, -LARGEST to LARGEST, times its scale is the
    value. PER_TOKEN: the scale is made for each row, and stored; else it is given. INT4: they are fp16, the `groups`
    (factor, shift) pairs of `store_int4`.

    PACK: the caches are in pieces, as in `split.load_key_pieces` and `split.load_value_pieces`.

    q: [1, heads, tokens, head_dim], None or null. It is rotated as keys are, also for tokens without a slot, and stored
    in q_out, if that is given, and in q_quantised, of the cache's dtype, divided by q_scale, fp32 [heads], null for 1.
    """
    await_earlier_launches()
    token, tile = tl.program_id(0), tl.program_id(1)
    angles = angles_of(token, rotation)
    key_tiles = tl.cdiv(heads_kv, BLOCK_H)
    if q.ptr is not None and tile >= key_tiles:
        append_queries(
            q, q_out, q_quantised, q_scale, (tile - key_tiles) * BLOCK_H, heads, token, angles, head_dim,
            HEAD_DIM, BLOCK_H, LARGEST,
        )  # fmt: skip
        return
    place = tl.load(slots.ptr + token * slots.stride_rows)
    if place < 0 or place // block_size >= blocks:
        return
    key_heads = tile * BLOCK_H + tl.arange(0, BLOCK_H)
    slot = Slot(place // block_size, place % block_size, key_heads, key_heads < heads_kv)
    columns = in_eighths(head_dim, HEAD_DIM) if INT4 and PADDED else tl.arange(0, HEAD_DIM)
    k_row, k_at = k_new.ptr + token * k_new.stride_rows, key_heads * k_new.stride_heads
    keys = load_rotated(k_row, k_at, columns, slot.present, head_dim, angles)
    v_row = v_new.ptr + token * v_new.stride_rows
    values = load_heads(v_row, key_heads * v_new.stride_heads, columns, slot.present, head_dim)
    store_row(keys, k, k_scale, slot, head_dim, groups, PER_TOKEN, INT4, LARGEST, PADDED, KEY_PACK=PACK)
    store_row(values, v, v_scale, slot, head_dim, groups, PER_TOKEN, INT4, LARGEST, PADDED, VALUE_PACK=PACK)


@triton.jit
def append_queries(
    q: Heads, q_out: Heads, q_quantised: Heads, q_scale: Vector, first, heads, token, angles: Angles, head_dim,
    HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Rotate the queries of BLOCK_H heads from `first` on, and quantise them; arguments as in `append_rows`."""
    dtype: tl.constexpr = q_quantised.ptr.dtype.element_ty
    head, columns = first + tl.arange(0, BLOCK_H), tl.arange(0, HEAD_DIM)
    present = head < heads
    x = load_rotated(q.ptr + token * q.stride_rows, head * q.stride_heads, columns, present, head_dim, angles)
    if given(q_out.ptr):
        store_heads(x, q_out.ptr + token * q_out.stride_rows, head * q_out.stride_heads, columns, present, head_dim)
    if dtype.primitive_bitwidth == 8 and given(q_quantised.ptr):
        scales = q_scale.ptr + head * q_scale.stride_rows
        x = quantise(x, scales, present & given(q_scale.ptr), dtype, False, LARGEST)
        row, at = q_quantised.ptr + token * q_quantised.stride_rows, head * q_quantised.stride_heads
        store_heads(x, row, at, columns, present, head_dim)


@triton.jit
def angles_of(token, rotation: TokenRotation):
    """Make the Angles of a token."""
    position, present = 0, given(rotation.cos)
    if present:
        position = tl.load(rotation.positions + token * rotation.stride_positions_0)
        position = tl.minimum(tl.maximum(position, 0), rotation.max_position - 1)
    cos, sin = rotation.cos + position * rotation.stride_cos_0, rotation.sin + position * rotation.stride_sin_0
    return Angles(present, cos, sin, rotation.pairs, rotation.interleaved, rotation.by_element)


@triton.jit
def store_heads(x, row, at, columns, present, head_dim):
    """Store fp32 [len(at), len(columns)] in the dtype of `row`."""
    inside = present[:, None] & (columns < head_dim)[None, :]
    tl.store(row + at[:, None] + columns[None, :], x.to(row.dtype.element_ty), inside)


@triton.jit
def load_rotated(row, at, columns, present, head_dim, angles: Angles):
    """Load fp32 [len(at), len(columns)], rotated if there are angles."""
    x = load_heads(row, at, columns, present, head_dim)
    if angles.given:
        x = rotate(x, row, at, columns, present, angles)
    return x


@triton.jit
def load_heads(row, at, columns, present, head_dim):
    """Load fp32 [len(at), len(columns)]; 0 where there is no element."""
    inside = present[:, None] & (columns < head_dim)[None, :]
    return tl.load(row + at[:, None] + columns[None, :], inside, 0.0).to(tl.float32)


@triton.jit
def rotate(x, row, at, columns, present, angles: Angles):
    """Rotate the elements of x before 2 * pairs; x was loaded from `row`."""
    partner, pair, is_first = partners(columns, angles.pairs, angles.interleaved)
    rotated = columns < 2 * angles.pairs
    other = tl.load(row + at[:, None] + partner[None, :], present[:, None] & rotated[None, :], 0.0).to(tl.float32)
    if angles.by_element:
        pair = columns
    c = tl.load(angles.cos + pair, rotated, 1.0)
    s = tl.load(angles.sin + pair, rotated, 0.0)
    return x * c[None, :] + other * tl.where(is_first, -s, s)[None, :]


@triton.jit
def store_row(
    x, cache: Heads, scales: HeadRows, slot: Slot, head_dim, groups,
    PER_TOKEN: tl.constexpr, INT4: tl.constexpr, LARGEST: tl.constexpr, PADDED: tl.constexpr,
    KEY_PACK: tl.constexpr = 0, VALUE_PACK: tl.constexpr = 0,
):  # fmt: skip
    """Store fp32 [BLOCK_H, HEAD_DIM] in a slot, in the format of the cache; arguments as in `append_rows`."""
    dtype: tl.constexpr = cache.ptr.dtype.element_ty
    place = slot.place // VALUE_PACK if VALUE_PACK else slot.place
    at = slot.block * cache.stride_batch + place * cache.stride_rows + slot.heads * cache.stride_heads
    scale_at = slot.block * scales.stride_batch + slot.place * scales.stride_rows + slot.heads * scales.stride_heads
    if INT4:
        store_int4(x, cache.ptr, at, scales.ptr + scale_at, slot.present, groups, head_dim, x.shape[1], PADDED)
    else:
        if dtype.primitive_bitwidth == 8:
            x = quantise(x, scales.ptr + scale_at, slot.present, dtype, PER_TOKEN, LARGEST)
        columns = tl.arange(0, x.shape[1])
        inside = slot.present[:, None] & (columns < head_dim)[None, :]
        if KEY_PACK:
            columns = columns // KEY_PACK * cache.stride_columns + columns % KEY_PACK
        if VALUE_PACK:
            columns = columns * cache.stride_columns + slot.place % VALUE_PACK
        tl.store(cache.ptr + at[:, None] + columns[None, :], x.to(dtype), inside)


@triton.jit
def quantise(x, scales, present, dtype: tl.constexpr, PER_TOKEN: tl.constexpr, LARGEST: tl.constexpr):
    """x / scale between -LARGEST and LARGEST, rounded to integers if the dtype is int8; scales: addresses."""
    if PER_TOKEN:
        scale = scale_of(tl.max(tl.abs(x), 1), LARGEST)
        tl.store(scales, scale, present)
        scale = tl.where(scale == 0, 1.0, scale)
    else:
        scale = tl.load(scales, present, 1.0)
    x = tl.minimum(tl.maximum(quotient(x, scale[:, None]), -LARGEST), LARGEST)
    if dtype == tl.int8:
        x = half_to_even(x)
    return x
