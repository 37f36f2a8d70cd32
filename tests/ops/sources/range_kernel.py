"""A kernel around `key_range`, so that a test sees what it gives."""

import triton
import triton.language as tl

from kernels.attention.masks import key_range


@triton.jit
def key_ranges(out, seqlen_q, seqlen_k, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """out: int32 [blocks, 4]. A program for each BLOCK_M queries, whose diagonals are the keys of the same number."""
    first = tl.program_id(0) * BLOCK_M
    last = tl.minimum(first + BLOCK_M, seqlen_q) - 1
    found = key_range(first, last, left, right, seqlen_k, BLOCK_N, True, True)
    row = out + tl.program_id(0) * 4
    tl.store(row, found.begin)
    tl.store(row + 1, found.full)
    tl.store(row + 2, found.full_end)
    tl.store(row + 3, found.end)
