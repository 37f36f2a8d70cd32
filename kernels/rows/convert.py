"""Casts between float dtypes, and transposes."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrices, Matrix
from kernels.rows.quantise import saturate


@triton.jit
def cast_rows(x: Matrix, out: Matrix, cols, BLOCK: tl.constexpr, LARGEST: tl.constexpr):
    """out = x in out's dtype, rounded half to even. Grid: (rows, cdiv(cols, BLOCK)).

    x, out: [rows, cols] of float dtypes, columns contiguous. LARGEST: if not 0, larger magnitudes, infinities included,
    become LARGEST with their sign; NaN stays NaN.
    """
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    values = tl.load(x.ptr + row * x.stride_rows + columns, mask=inside).to(tl.float32)
    if LARGEST > 0:
        values = tl.where(values == values, saturate(values, LARGEST), values)
    tl.store(out.ptr + row * out.stride_rows + columns, values.to(out.ptr.dtype.element_ty), mask=inside)


@triton.jit
def transpose_tiles(x: Matrices, out: Matrices, rows, cols, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """out[b, j, i] = x[b, i, j], a tile at a time. Grid: (cdiv(rows, BLOCK_R) * cdiv(cols, BLOCK_C), batch).

    x: [batch, rows, cols], out: [batch, cols, rows], of one dtype, last dims contiguous.
    """
    tiles = tl.cdiv(cols, BLOCK_C)
    tile, batch = tl.program_id(0), tl.program_id(1)
    row = tile // tiles * BLOCK_R + tl.arange(0, BLOCK_R)
    col = tile % tiles * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    source = x.ptr + batch * x.stride_batch + row[:, None] * x.stride_rows + col[None, :]
    values = tl.load(source, mask=inside)
    inside = (col < cols)[:, None] & (row < rows)[None, :]
    target = out.ptr + batch * out.stride_batch + col[:, None] * out.stride_rows + row[None, :]
    tl.store(target, tl.trans(values), mask=inside)
