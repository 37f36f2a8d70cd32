"""Parts of long rows: where they lie, and the two numbers that are kept of each."""

import triton
import triton.language as tl

MOST_PARTS: tl.constexpr = tl.constexpr(64)


@triton.jit
def share_of(cols, parts, STEP: tl.constexpr):
    """Return the columns of a part, a multiple of STEP; the last parts may have fewer, or none."""
    return tl.cdiv(tl.cdiv(cols, STEP), parts) * STEP


@triton.jit
def store_pair(pairs, row, part, parts, first, second):
    """Store two numbers of a part of a row in fp32 [rows, parts, 2]."""
    at = pairs + (row.to(tl.int64) * parts + part) * 2
    tl.store(at, first)
    tl.store(at + 1, second)


@triton.jit
def load_pairs(pairs, row, parts, first):
    """Load both numbers of all parts of a row, [MOST_PARTS]; `first` and 0 past the last one."""
    part = tl.arange(0, MOST_PARTS)
    at = pairs + (row.to(tl.int64) * parts + part) * 2
    return tl.load(at, part < parts, first), tl.load(at + 1, part < parts, 0.0)
