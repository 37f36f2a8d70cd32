"""Products of 8-bit matrices with a scale for each block of 128 along k."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrix
from kernels.gemm.epilogue import Epilogue, finish
from kernels.gemm.order import tile_of
from kernels.gemm.product import dot

BLOCK: tl.constexpr = tl.constexpr(128)
"""Elements of k, and of n, that share a scale."""


@triton.jit
def block_scaled_matmul(
    a: Matrix, b: Matrix, scale_a: Matrix, scale_b: Matrix, e: Matrix, m, n, k, rows_per_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1,
):  # fmt: skip
    """e = (scale_a a) (scale_b b). Grid: (tiles of e). BLOCK_K divides 128, BLOCK_N divides it or is a multiple.

    a: [m, k], b: [k, n], both int8 or float8; e: [m, n]. scale_a: fp32 [cdiv(m, rows_per_scale), cdiv(k, 128)],
    scale_b: fp32 [cdiv(k, 128), cdiv(n, 128)]. Within a block of 128 int8 is summed in int32; blocks in fp32.
    """
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = block_scaled_product(a, b, scale_a, scale_b, rows % m, columns % n, rows_per_scale, k, BLOCK_K)
    finish(acc, rows, columns, tl.program_id(1), m, n, e, Epilogue())


@triton.jit
def block_scaled_product(a, b, scale_a, scale_b, rows, columns, rows_per_scale, k, BLOCK_K: tl.constexpr):
    """Return the product of these rows of a and columns of b, each a `Matrix` with one of scales, in fp32.

    All are inside, so that no load in the loop needs a mask for them: those past the edges have wrapped.
    """
    inner = tl.arange(0, BLOCK_K)
    a_at = a.ptr + rows[:, None] * a.stride_rows + inner[None, :] * a.stride_columns
    b_at = b.ptr + inner[:, None] * b.stride_rows + columns[None, :] * b.stride_columns
    scale_a_at = scale_a.ptr + rows // rows_per_scale * scale_a.stride_rows
    scale_b_at = scale_b.ptr + columns // BLOCK * scale_b.stride_columns
    return accumulate_blocks(
        a_at, b_at, a.stride_columns, b.stride_rows, scale_a_at, scale_b_at, scale_a.stride_columns,
        scale_b.stride_rows, k, BLOCK_K,
    )  # fmt: skip


@triton.jit
def accumulate_blocks(
    a_at, b_at, a_step, b_step, scale_a_at, scale_b_at, scale_a_step, scale_b_step, k, BLOCK_K: tl.constexpr
):
    """Multiply the `k` columns of a and rows of b at these addresses, [.., BLOCK_K] and [BLOCK_K, ..], scaling each
    block; fp32. BLOCK_K divides 128.

    scale_a_at, scale_b_at: addresses of the first block's scales, of the rows of a and of the columns of b; a has none
    if its are None. The steps lead from a column of a, row of b or block of scales to the next, in elements.
    """
    inner = tl.arange(0, BLOCK_K)
    wide: tl.constexpr = tl.int32 if a_at.dtype.element_ty.is_int() else tl.float32
    acc = tl.zeros([a_at.shape[0], b_at.shape[1]], tl.float32)
    for start in range(0, k, BLOCK_K):
        known = inner < k - start
        left = tl.load(a_at, known[None, :], 0.0)
        right = tl.load(b_at, known[:, None], 0.0)
        if scale_a_at is None:
            factor = tl.load(scale_b_at + start // BLOCK * scale_b_step)[None, :]
        else:
            factor_a = tl.load(scale_a_at + start // BLOCK * scale_a_step)
            factor = factor_a[:, None] * tl.load(scale_b_at + start // BLOCK * scale_b_step)[None, :]
        block = dot(left, right, tl.zeros([a_at.shape[0], b_at.shape[1]], wide), "ieee")
        acc += block.to(tl.float32) * factor
        a_at += BLOCK_K * a_step
        b_at += BLOCK_K * b_step
    return acc
