"""A kernel that returns the results of `key_range` to a test."""

import triton
import triton.language as tl

from kernels.attention.masks import bounds, key_range
from kernels.attention.problem import Window


@triton.jit
def key_ranges(out, windows, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """out: int32 [windows, blocks, 4]; windows: int32 [windows, 5], seqlen_q, seqlen_k, left, right and chunk of
    each.

    Grid: (windows, blocks), a program for each BLOCK_M queries, whose diagonals are the keys of the same number.
    """
    window = windows + tl.program_id(0) * 5
    first = tl.program_id(1) * BLOCK_M
    last = tl.minimum(first + BLOCK_M, tl.load(window)) - 1
    given = Window(tl.load(window + 2), tl.load(window + 3), False, tl.load(window + 4))
    found = key_range(
        bounds(first, given, True), bounds(last, given, True), tl.load(window + 1), BLOCK_N, True, True
    )  # fmt: skip
    row = out + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * 4
    tl.store(row, found.begin)
    tl.store(row + 1, found.full)
    tl.store(row + 2, found.full_end)
    tl.store(row + 3, found.end)
