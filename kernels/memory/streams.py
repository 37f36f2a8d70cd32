"""Copy, read and write memory as fast as a device can.

Any number of programs take whole blocks in turn, and the next one takes the remainder.
"""

import triton
import triton.language as tl


@triton.jit
def copy_blocks(x, out, n, BLOCK: tl.constexpr):
    """out[i] = x[i]. x, out: int32 [n], n of 64 bits."""
    block = tl.arange(0, BLOCK)
    whole = n // BLOCK * BLOCK
    for start in tl.range(_first(BLOCK), whole, _stride(BLOCK)):
        tl.store(out + start + block, tl.load(x + start + block))
    if _has_rest(n, BLOCK):
        at = whole + block
        tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def read_blocks(x, sums, n, BLOCK: tl.constexpr):
    """sums[p] = the sum, modulo 2**32, of the blocks of x that program p reads; together they read all of x once.

    x: int32 [n], n of 64 bits; sums: int32 [programs].
    """
    block = tl.arange(0, BLOCK)
    whole = n // BLOCK * BLOCK
    lanes = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(_first(BLOCK), whole, _stride(BLOCK)):
        lanes += tl.load(x + start + block)
    if _has_rest(n, BLOCK):
        at = whole + block
        lanes += tl.load(x + at, mask=at < n, other=0)
    tl.store(sums + tl.program_id(0), tl.sum(lanes, 0))


@triton.jit
def write_blocks(out, value, n, BLOCK: tl.constexpr):
    """out[i] = value. out: int32 [n], n of 64 bits."""
    block = tl.arange(0, BLOCK)
    whole = n // BLOCK * BLOCK
    values = tl.zeros([BLOCK], tl.int32) + value
    for start in tl.range(_first(BLOCK), whole, _stride(BLOCK)):
        tl.store(out + start + block, values)
    if _has_rest(n, BLOCK):
        at = whole + block
        tl.store(out + at, values, mask=at < n)


@triton.jit
def _first(BLOCK: tl.constexpr):
    return tl.program_id(0).to(tl.int64) * BLOCK


@triton.jit
def _stride(BLOCK: tl.constexpr):
    return tl.num_programs(0).to(tl.int64) * BLOCK


@triton.jit
def _has_rest(n, BLOCK: tl.constexpr):
    return tl.program_id(0) == n // BLOCK % tl.num_programs(0)
