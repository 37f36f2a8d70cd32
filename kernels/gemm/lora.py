"""Linear layers with low-rank adapters, one for all rows or one for each by an index."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrices, Matrix, given, matrix_of, transposed
from kernels.gemm.matmul import part_of
from kernels.gemm.order import tile_of
from kernels.gemm.product import product


@triton.jit
def lora_shrink(
    x: Matrix, down: Matrices, adapter_of, adapter_scales, inner, m, k, rank, scale, parts,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """inner = scale * x downᵀ, for rows that have an adapter, by parts of k.

    Grid: (cdiv(m, BLOCK_M), cdiv(rank, BLOCK_N), adapters * parts). x: [m, k]; down: [adapters, rank, k]; inner:
    [parts, m, rank]; all of one dtype. adapter_of: int32 [m]; a null pointer: all have the first. adapter_scales:
    fp32 [adapters], factors beside `scale`; a null pointer: all are 1.
    """
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    adapter, part = tl.program_id(2) // parts, tl.program_id(2) % parts
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    chosen = _having(adapter_of, rows, m, adapter)
    if tl.max(chosen.to(tl.int32), 0) == 0:
        return
    begin, end = part_of(k, part, parts, BLOCK_K)
    weights = transposed(matrix_of(down, adapter))
    acc = product(x, weights, row, column, m, rank, begin, end, BLOCK_M, BLOCK_N, BLOCK_K)
    scale *= tl.load(adapter_scales + adapter, given(adapter_scales), 1.0)
    at = (part.to(tl.int64) * m + rows[:, None]) * rank + columns[None, :]
    tl.store(inner + at, (acc * scale).to(inner.dtype.element_ty), chosen[:, None] & (columns < rank)[None, :])


@triton.jit
def lora_expand(
    x: Matrix, w: Matrix, up: Matrices, adapter_of, inner, e: Matrix, m, n, k, rank, adapters,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1,
):  # fmt: skip
    """e = x wᵀ + inner upᵀ, with each row's adapter. Grid: (tiles of e).

    x: [m, k]; w: [n, k]; up: [adapters, n, rank]; inner: [m, rank]; e: [m, n]; all of one dtype.
    adapter_of: int32 [m], a row whose number is none of the adapters' has none; a null pointer: all have the
    first.
    """
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    acc = product(x, transposed(w), row, column, m, n, 0, k, BLOCK_M, BLOCK_N, BLOCK_K)
    for adapter in range(adapters):
        chosen = _having(adapter_of, rows, m, adapter)
        if tl.max(chosen.to(tl.int32), 0) > 0:
            for start in range(0, rank, BLOCK_R):
                at = start + tl.arange(0, BLOCK_R)
                inner_at = rows[:, None].to(tl.int64) * rank + at[None, :]
                left = tl.load(inner + inner_at, chosen[:, None] & (at < rank)[None, :], 0.0)
                up_at = tl.cast(adapter, tl.int64) * up.stride_batch + columns[None, :] * up.stride_rows + at[:, None]
                right = tl.load(up.ptr + up_at, (at < rank)[:, None] & (columns < n)[None, :], 0.0)
                acc = tl.dot(left, right, acc)
    stored = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(e.ptr + rows[:, None] * e.stride_rows + columns[None, :], acc.to(e.ptr.dtype.element_ty), stored)


@triton.jit
def _having(adapter_of, rows, m, adapter):
    """Which rows have an adapter."""
    known = rows < m
    return known & (tl.load(adapter_of + rows, known & given(adapter_of), 0) == adapter)
