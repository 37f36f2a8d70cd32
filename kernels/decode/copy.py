"""Copies of whole blocks of a cache."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.tensors import Matrix


@triton.jit
def copy_pairs(x: Matrix, out: Matrix, pairs: Matrix, x_blocks, blocks, words, BLOCK: tl.constexpr):
    """Copy block pairs[i, 0] of x over block pairs[i, 1] of out. Grid: (pairs, cdiv(words, BLOCK)).

    x: int32 [x_blocks, words]; out: int32 [blocks, words]; pairs: int32 [pairs, 2]. A pair of which a block does not
    exist is left out.
    """
    await_earlier_launches()
    pair = pairs.ptr + tl.program_id(0) * pairs.stride_rows
    source, target = tl.load(pair), tl.load(pair + pairs.stride_columns)
    if source < 0 or source >= x_blocks or target < 0 or target >= blocks:
        return
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row, place = x.ptr + source * x.stride_rows, out.ptr + target * out.stride_rows
    tl.store(place + word, tl.load(row + word, word < words), word < words)
