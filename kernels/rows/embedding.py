"""Gather rows of a table."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.tensors import Matrix


@triton.jit
def gather_rows(table: Matrix, ids, out: Matrix, vocabulary, cols, scale, BLOCK: tl.constexpr):
    """out[i, :] = scale * table[ids[i], :], or 0 if there is no such row. Grid: (tokens, cdiv(cols, BLOCK)).

    table: [vocabulary, cols], out: [tokens, cols] of one dtype, columns contiguous; ids: int32 or int64 [tokens]. scale
    is rounded to that dtype, and so is the product; 1 copies.
    """
    await_earlier_launches()
    token = tl.program_id(0)
    row = tl.load(ids + token)
    known = (row >= 0) & (row < vocabulary)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    source = table.ptr + tl.where(known, row, 0) * table.stride_rows
    values = tl.load(source + columns, mask=inside & known, other=0.0)
    factor = scale.to(values.dtype).to(tl.float32)
    values = tl.where(factor == 1.0, values, (values.to(tl.float32) * factor).to(values.dtype))
    tl.store(out.ptr + token * out.stride_rows + columns, values, mask=inside)
