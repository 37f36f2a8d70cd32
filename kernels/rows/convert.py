"""Casts between dtypes of floats, and transposes."""

import triton
import triton.language as tl

from kernels.rows.quantise import saturate


@triton.jit
def cast_rows(
    x, out, cols, stride_x_rows, stride_out_rows, BLOCK: tl.constexpr, LARGEST: tl.constexpr
):  # fmt: skip
    """out = x in out's dtype, rounded half to even. Grid: (rows, cdiv(cols, BLOCK)).

    x, out: [rows, cols] of float dtypes, columns contiguous. LARGEST: if not 0, what exceeds it, infinities included,
    becomes LARGEST with its sign; NaN stays NaN.
    """
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    values = tl.load(x + row * stride_x_rows + columns, mask=inside).to(tl.float32)
    if LARGEST > 0:
        values = tl.where(values == values, saturate(values, LARGEST), values)
    tl.store(out + row * stride_out_rows + columns, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def transpose_tiles(
    x, out, rows, cols, stride_x_batch, stride_x_rows, stride_out_batch, stride_out_cols,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[b, j, i] = x[b, i, j], a tile at a time. Grid: (cdiv(rows, BLOCK_R) * cdiv(cols, BLOCK_C), batch).

    x: [batch, rows, cols], out: [batch, cols, rows], of one dtype, last dims contiguous.
    """
    tiles = tl.cdiv(cols, BLOCK_C)
    tile, batch = tl.program_id(0), tl.program_id(1)
    row = tile // tiles * BLOCK_R + tl.arange(0, BLOCK_R)
    col = tile % tiles * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    values = tl.load(x + batch * stride_x_batch + row[:, None] * stride_x_rows + col[None, :], mask=inside)
    inside = (col < cols)[:, None] & (row < rows)[None, :]
    out += batch * stride_out_batch + col[:, None] * stride_out_cols + row[None, :]
    tl.store(out, tl.trans(values), mask=inside)
