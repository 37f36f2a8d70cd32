"""Keys that a query sees, and ranges of keys that a tile of queries sees, in whole blocks."""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.attention.problem import Window


class KeyRange(NamedTuple):
    """Keys of a tile of queries, in whole blocks except for the end: keys in [begin, end) are seen by some of the
    queries, keys in [full, full_end) by all."""

    begin: tl.tensor
    full: tl.tensor
    full_end: tl.tensor
    end: tl.tensor


class Bounds(NamedTuple):
    """First and last key that a query sees; either may lie outside of the keys."""

    first: tl.tensor
    last: tl.tensor


@triton.jit
def bounds(diagonal, window: Window, CHUNKS: tl.constexpr):
    """Make the Bounds of queries with these diagonals. CHUNKS: there may be chunks, which is tested at run time."""
    first = diagonal - window.left
    last = diagonal + window.right
    if CHUNKS and window.chunk > 0:
        begin = tl.maximum(diagonal, 0) // window.chunk * window.chunk
        first = tl.maximum(first, begin)
        last = tl.where(diagonal < 0, -1, tl.minimum(last, begin + window.chunk - 1))
    return Bounds(first, last)


@triton.jit
def key_range(
    first_query: Bounds, last_query: Bounds, seqlen_k,
    BLOCK_N: tl.constexpr, BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr,
):  # fmt: skip
    """Return the KeyRange, of seqlen_k keys, of a tile whose first and last query have these Bounds, as far as the
    sides are bound."""
    end = seqlen_k
    full_end = seqlen_k // BLOCK_N * BLOCK_N
    if BOUND_RIGHT:
        end = tl.minimum(tl.maximum(last_query.last + 1, 0), seqlen_k)
        full_end = tl.minimum(tl.maximum(first_query.last + 1, 0), seqlen_k) // BLOCK_N * BLOCK_N
    begin = 0
    full = 0
    if BOUND_LEFT:
        begin = tl.maximum(first_query.first, 0) // BLOCK_N * BLOCK_N
        full = tl.cdiv(tl.maximum(last_query.first, 0), BLOCK_N) * BLOCK_N
        full = tl.minimum(full, tl.maximum(full_end, begin))
        full_end = tl.maximum(full, full_end)
        end = tl.maximum(end, full_end)
    return KeyRange(begin, full, full_end, end)
