"""Copies of matrices whose rows are not aligned: of operands before a product, and of a result after it."""

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


@triton.jit
def copy_result(x, e: Matrix, m, n, padded, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Copy x, [m, n] in rows of `padded` columns, to e, unless the product was `stored_by_maps` in e itself.

    Grid: (cdiv(n, BLOCK_N), cdiv(m, BLOCK_M)).
    """
    if stored_by_maps(e.ptr, e.stride_rows):
        return
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row < m)[:, None] & (column < n)[None, :]
    value = tl.load(x + row[:, None].to(tl.int64) * padded + column[None, :], inside)
    tl.store(e.ptr + row[:, None].to(tl.int64) * e.stride_rows + column[None, :], value, inside)


@triton.jit
def stored_by_maps(pointer, stride_rows):
    """Tell whether a tensor map can have rows of a matrix: address and stride are multiples of 16 bytes."""
    BYTES: tl.constexpr = pointer.dtype.element_ty.primitive_bitwidth // 8
    return (pointer.to(tl.int64) | stride_rows.to(tl.int64) * BYTES) % 16 == 0
