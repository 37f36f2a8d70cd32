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
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ranks=None,
):  # fmt: skip
    """inner = scale * x downᵀ, for rows that have an adapter, by parts of k.

    Grid: (cdiv(m, BLOCK_M), cdiv(rank, BLOCK_N), adapters * parts). x: [m, k]; down: [adapters, rank, k]; of one dtype.
    inner: [parts, m, rank], of that or fp32. adapter_of: int32 [m]; a null pointer: all have the first. adapter_scales:
    fp32 [adapters], factors beside `scale`; a null pointer: all are 1. ranks: int32 [adapters], the rank of each; None
    or a null pointer: that of all is `rank`.
    """
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    adapter, part = tl.program_id(2) // parts, tl.program_id(2) % parts
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    own_rank = _rank_of(ranks, adapter, rank)
    chosen = _adapters_of(adapter_of, rows, m) == adapter
    if (tl.max(chosen.to(tl.int32), 0) == 0) | (column >= own_rank):
        return
    begin, end = part_of(k, part, parts, BLOCK_K)
    weights = transposed(matrix_of(down, adapter))
    acc = product(x, weights, row, column, m, rank, begin, end, BLOCK_M, BLOCK_N, BLOCK_K)
    scale *= tl.load(adapter_scales + adapter, given(adapter_scales), 1.0)
    at = (part.to(tl.int64) * m + rows[:, None]) * rank + columns[None, :]
    tl.store(inner + at, (acc * scale).to(inner.dtype.element_ty), chosen[:, None] & (columns < own_rank)[None, :])


@triton.jit
def lora_expand(
    x: Matrix, w: Matrix, up: Matrices, adapter_of, inner, e: Matrix, m, n, k, rank, adapters,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1,
):  # fmt: skip
    """e = x wᵀ + inner upᵀ, with each row's adapter. Grid: (tiles of e).

    x: [m, k]; w: [n, k]; up: [adapters, n, rank]; inner: [m, rank]; e: [m, n]; all of one dtype.
    adapter_of: int32 [m], a row whose index is out of range has none; a null pointer: all have the
    first.
    """
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    acc = product(x, transposed(w), row, column, m, n, 0, k, BLOCK_M, BLOCK_N, BLOCK_K)
    acc = _add(acc, inner, up, adapter_of, None, rows, columns, m, n, rank, adapters, 1, BLOCK_R)
    stored = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(e.ptr + rows[:, None] * e.stride_rows + columns[None, :], acc.to(e.ptr.dtype.element_ty), stored)


@triton.jit
def lora_add(
    e: Matrix, up: Matrices, adapter_of, ranks, inner, m, n, rank, adapters, parts,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """e += inner upᵀ, with each row's adapter. Grid: (tiles of e).

    e: [m, n]; up: [adapters, n, rank]; of one dtype. inner: fp32 [parts, m, rank], whose parts are added up, and
    rounded to that dtype. adapter_of is as for `lora_expand`, ranks as for `lora_shrink`. Rows without an adapter
    are not touched.
    """
    tiles_n = tl.cdiv(n, BLOCK_N)
    rows = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    adapters_of_rows = _adapters_of(adapter_of, rows, m)
    there = (adapters_of_rows >= 0) & (adapters_of_rows < adapters)
    if tl.max(there.to(tl.int32), 0) == 0:
        return
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    acc = _add(acc, inner, up, adapter_of, ranks, rows, columns, m, n, rank, adapters, parts, BLOCK_R)
    at = e.ptr + rows[:, None].to(tl.int64) * e.stride_rows + columns[None, :]
    stored = there[:, None] & (columns < n)[None, :]
    acc += tl.load(at, stored, 0.0).to(tl.float32)
    tl.store(at, acc.to(e.ptr.dtype.element_ty), stored)


@triton.jit
def _add(acc, inner, up, adapter_of, ranks, rows, columns, m, n, rank, adapters, parts, BLOCK_R: tl.constexpr):
    """Return acc + inner upᵀ of a tile, fp32 [rows, columns]. Adapters that none of its rows has are skipped."""
    adapters_of_rows = _adapters_of(adapter_of, rows, m)
    there = (adapters_of_rows >= 0) & (adapters_of_rows < adapters)
    lowest, highest = (
        tl.min(tl.where(there, adapters_of_rows, adapters), 0),
        tl.max(tl.where(there, adapters_of_rows, -1), 0),
    )
    dtype: tl.constexpr = up.ptr.dtype.element_ty
    for adapter in range(lowest, highest + 1):
        chosen = adapters_of_rows == adapter
        if tl.max(chosen.to(tl.int32), 0) > 0:
            own_rank = _rank_of(ranks, adapter, rank)
            for start in range(0, own_rank, BLOCK_R):
                at = start + tl.arange(0, BLOCK_R)
                present = chosen[:, None] & (at < own_rank)[None, :]
                left = tl.zeros([acc.shape[0], BLOCK_R], inner.dtype.element_ty)
                for part in range(parts):
                    inner_at = (part * m + rows[:, None].to(tl.int64)) * rank + at[None, :]
                    left += tl.load(inner + inner_at, present, 0.0)
                up_at = tl.cast(adapter, tl.int64) * up.stride_batch + columns[None, :] * up.stride_rows + at[:, None]
                right = tl.load(up.ptr + up_at, (at < own_rank)[:, None] & (columns < n)[None, :], 0.0)
                acc = tl.dot(left.to(dtype), right, acc)
    return acc


@triton.jit
def _adapters_of(adapter_of, rows, m):
    """Load the adapter index of each row; -1 past the last row, and 0 if `adapter_of` is null."""
    adapters_of_rows = tl.load(adapter_of + rows, (rows < m) & given(adapter_of), 0)
    return tl.where(rows < m, adapters_of_rows, -1)


@triton.jit
def _rank_of(ranks, adapter, rank):
    """Load an adapter's own rank, at most `rank`."""
    if ranks is None:
        return rank
    else:
        return tl.minimum(tl.load(ranks + adapter, given(ranks), rank), rank)
