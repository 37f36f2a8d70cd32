"""Rotary embedding of queries and of cached keys within attention, for caches of keys that were not rotated."""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.tensors import Heads
from kernels.decode.cache import load_rows
from kernels.decode.parts import Rows, Sequence, load_queries


class CacheRotation(NamedTuple):
    """Angles by position: cos, sin: fp32 [max_position, pairs], rows `stride` apart, or None: nothing is rotated.

    The first 2 * pairs elements of a row are rotated, element i with i + pairs, or where `interleaved` 2 i with
    2 i + 1.
    """

    cos: tl.tensor = None
    sin: tl.tensor = None
    stride_cos: tl.tensor = 0
    stride_sin: tl.tensor = 0
    max_position: tl.tensor = 0
    pairs: tl.tensor = 0
    interleaved: tl.tensor = False


@triton.jit
def rotated_queries(
    x,
    q: Heads,
    sequence: Sequence,
    rows: Rows,
    positions,
    columns,
    head_dim,
    rotation: CacheRotation,
    PADDED: tl.constexpr,
):
    """Rotate Rows of q, of which x has the columns [HEAD_DIM]."""
    partner = known_partners(columns, rotation)
    other = load_queries(q, sequence, rows, partner, head_dim, PADDED)
    return turned(x, other, positions, columns, rotation)


@triton.jit
def rotated_keys(x, k: Heads, block, head_kv, place, positions, columns, dtype: tl.constexpr, rotation: CacheRotation):
    """Rotate keys of a cache, of which x has these columns, in `dtype`."""
    partner = known_partners(columns, rotation)
    at = block * k.stride_batch + place * k.stride_rows
    other = load_rows(k.ptr + head_kv * k.stride_heads, at, partner)
    return turned(x.to(dtype), other.to(dtype), positions, columns, rotation)


@triton.jit
def turned(x, other, positions, columns, rotation: CacheRotation):
    """Rotate x [rows, columns], where `other` has each element's partner, by the angles of positions [rows]."""
    _, pair, is_first = partners(columns, rotation.pairs, rotation.interleaved)
    sign = tl.where(is_first, -1.0, 1.0)
    known = (columns < 2 * rotation.pairs)[None, :]
    row = tl.minimum(tl.maximum(positions, 0), rotation.max_position - 1)[:, None]
    c = tl.load(rotation.cos + row * rotation.stride_cos + pair[None, :], known, 1.0)
    s = tl.load(rotation.sin + row * rotation.stride_sin + pair[None, :], known, 0.0)
    return (x.to(tl.float32) * c + other.to(tl.float32) * (s * sign[None, :])).to(x.dtype)


@triton.jit
def partners(columns, pairs, interleaved):
    """Return (partner, pair, whether it is the first of its pair) of each column before 2 * pairs."""
    if interleaved:
        is_first, pair, partner = columns % 2 == 0, columns // 2, columns ^ 1
    else:
        is_first = columns < pairs
        pair = tl.where(is_first, columns, columns - pairs)
        partner = tl.where(is_first, columns + pairs, columns - pairs)
    return partner, pair, is_first


@triton.jit
def known_partners(columns, rotation: CacheRotation):
    """Return the partner of each column; a column that is not rotated is its own."""
    partner, _, _ = partners(columns, rotation.pairs, rotation.interleaved)
    return tl.where(columns < 2 * rotation.pairs, partner, columns)
