"""Linear layers with low-rank adapters, one for all rows or one for each by an index."""

import triton
import triton.language as tl

from kernels.gemm.order import tile_of
from kernels.gemm.product import product


@triton.jit
def lora_shrink(
    x, down, inner, m, k, rank, scale, stride_x_m, stride_down_adapters, stride_down_rank,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, adapter_of=None,
):  # fmt: skip
    """inner = scale * x downᵀ, for rows that have an adapter. Grid: (cdiv(m, BLOCK_M), cdiv(rank, BLOCK_N), adapters).

    x: [m, k]; down: [adapters, rank, k], of one dtype; inner: fp32 [m, rank]; adapter_of: int32 [m]; None: all
    have the first.
    """
    row, column, adapter = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N, tl.program_id(2)
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    chosen = _having(adapter_of, rows, m, adapter)
    if tl.max(chosen.to(tl.int32), 0) == 0:
        return
    down += adapter.to(tl.int64) * stride_down_adapters
    acc = product(
        x, down, row, column, m, rank, 0, k, stride_x_m, 1, 1, stride_down_rank, BLOCK_M, BLOCK_N, BLOCK_K, "ieee"
    )
    at = rows[:, None].to(tl.int64) * rank + columns[None, :]
    tl.store(inner + at, acc * scale, chosen[:, None] & (columns < rank)[None, :])


@triton.jit
def lora_expand(
    x, w, up, inner, e, m, n, k, rank, adapters, stride_x_m, stride_w_n, stride_up_adapters, stride_up_n, stride_e_m,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1, adapter_of=None,
):  # fmt: skip
    """e = x wᵀ + inner upᵀ, with each row's adapter. Grid: (tiles of e).

    x: [m, k]; w: [n, k]; up: [adapters, n, rank], of one dtype; inner: fp32 [m, rank], rounded to it; e: [m, n].
    adapter_of: int32 [m], a row whose number is none of the adapters' has none; None: all have the first.
    """
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = product(
        x, w, tile_m * BLOCK_M, tile_n * BLOCK_N, m, n, 0, k, stride_x_m, 1, 1, stride_w_n, BLOCK_M, BLOCK_N, BLOCK_K,
        "ieee",
    )  # fmt: skip
    for adapter in range(adapters):
        chosen = _having(adapter_of, rows, m, adapter)
        if tl.max(chosen.to(tl.int32), 0) > 0:
            for start in range(0, rank, BLOCK_R):
                at = start + tl.arange(0, BLOCK_R)
                inner_at = rows[:, None].to(tl.int64) * rank + at[None, :]
                left = tl.load(inner + inner_at, chosen[:, None] & (at < rank)[None, :], 0.0).to(x.dtype.element_ty)
                up_at = tl.cast(adapter, tl.int64) * stride_up_adapters + columns[None, :] * stride_up_n + at[:, None]
                right = tl.load(up + up_at, (at < rank)[:, None] & (columns < n)[None, :], 0.0)
                acc = tl.dot(left, right, acc)
    stored = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(e + rows[:, None] * stride_e_m + columns[None, :], acc.to(e.dtype.element_ty), stored)


@triton.jit
def _having(adapter_of, rows, m, adapter):
    """Which rows have an adapter."""
    known = rows < m
    return known & (adapter == 0) if adapter_of is None else tl.load(adapter_of + rows, known, -1) == adapter
