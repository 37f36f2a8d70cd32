"""Copies of operands whose rows are not aligned."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrix


@triton.jit
def copy_rows(x: Matrix, out, rows, columns, padded, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Copy x, [rows, columns], to rows of `padded` columns without gaps; the columns beyond those of x are zeros.

    Grid: (cdiv(padded, BLOCK_N), cdiv(rows, BLOCK_M)).
    """
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = x.ptr + row[:, None].to(tl.int64) * x.stride_rows + column[None, :].to(tl.int64) * x.stride_columns
    value = tl.load(at, (row < rows)[:, None] & (column < columns)[None, :], 0.0)
    at = out + row[:, None].to(tl.int64) * padded + column[None, :]
    tl.store(at, value, (row < rows)[:, None] & (column < padded)[None, :])
