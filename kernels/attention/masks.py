"""Ranges of keys that a tile of queries sees, in whole blocks."""

from typing import NamedTuple

import triton
import triton.language as tl


class KeyRange(NamedTuple):
    """Keys of a tile of queries, in whole blocks except for the end: keys in [begin, end) are seen by some of the
    queries, keys in [full, full_end) by all."""

    begin: tl.tensor
    full: tl.tensor
    full_end: tl.tensor
    end: tl.tensor


@triton.jit
def key_range(
    first_diagonal, last_diagonal, left, right, seqlen_k,
    BLOCK_N: tl.constexpr, BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr,
):  # fmt: skip
    """Return the KeyRange of queries whose diagonals are the keys first_diagonal to last_diagonal.

    A query with diagonal d sees keys d - left <= j <= d + right, on the sides that are bound, of seqlen_k keys.
    """
    end = seqlen_k
    full_end = seqlen_k // BLOCK_N * BLOCK_N
    if BOUND_RIGHT:
        end = tl.minimum(tl.maximum(last_diagonal + right + 1, 0), seqlen_k)
        full_end = tl.minimum(tl.maximum(first_diagonal + right + 1, 0), seqlen_k) // BLOCK_N * BLOCK_N
    begin = 0
    full = 0
    if BOUND_LEFT:
        begin = tl.maximum(first_diagonal - left, 0) // BLOCK_N * BLOCK_N
        full = tl.cdiv(tl.maximum(last_diagonal - left, 0), BLOCK_N) * BLOCK_N
        full = tl.minimum(full, tl.maximum(full_end, begin))
        full_end = tl.maximum(full, full_end)
        end = tl.maximum(end, full_end)
    return KeyRange(begin, full, full_end, end)
