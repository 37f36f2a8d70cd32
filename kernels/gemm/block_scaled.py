"""Matrix products of 8-bit numbers with a scale for each block of 128 of k."""

import triton
import triton.language as tl

from kernels.gemm.epilogue import finish
from kernels.gemm.order import tile_of
from kernels.gemm.product import dot

BLOCK: tl.constexpr = tl.constexpr(128)
"""Elements of k, and of n, that share a scale."""


@triton.jit
def block_scaled_matmul(
    a, b, e, scale_a, scale_b, m, n, k, rows_per_scale, stride_a_m, stride_a_k, stride_b_k, stride_b_n,
    stride_e_m, stride_e_n, stride_scale_a_rows, stride_scale_a_k, stride_scale_b_k, stride_scale_b_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1, bias=None,
):  # fmt: skip
    """e = (scale_a a) (scale_b b) + bias. Grid: (tiles of e). BLOCK_K divides 128, BLOCK_N divides it or is a multiple.

    a: [m, k], b: [k, n], both int8 or float8; e: [m, n]. scale_a: fp32 [cdiv(m, rows_per_scale), cdiv(k, 128)],
    scale_b: fp32 [cdiv(k, 128), cdiv(n, 128)]. bias: [n]. Within a block of 128 int8 is summed in int32; blocks in
    fp32.
    """
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    # Rows and columns past the edges wrap to ones inside, so that no load in the loop needs a mask for them.
    inside_rows, inside_columns = rows % m, columns % n
    a_at = a + inside_rows[:, None] * stride_a_m + inner[None, :] * stride_a_k
    b_at = b + inner[:, None] * stride_b_k + inside_columns[None, :] * stride_b_n
    scale_a += inside_rows // rows_per_scale * stride_scale_a_rows
    scale_b += inside_columns // BLOCK * stride_scale_b_n
    wide: tl.constexpr = tl.int32 if a.dtype.element_ty.is_int() else tl.float32
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        known = inner < k - start
        left = tl.load(a_at, known[None, :], 0.0)
        right = tl.load(b_at, known[:, None], 0.0)
        factor_a = tl.load(scale_a + start // BLOCK * stride_scale_a_k)
        factor_b = tl.load(scale_b + start // BLOCK * stride_scale_b_k)
        block = dot(left, right, tl.zeros([BLOCK_M, BLOCK_N], wide), "ieee")
        acc += block.to(tl.float32) * (factor_a[:, None] * factor_b[None, :])
        a_at += BLOCK_K * stride_a_k
        b_at += BLOCK_K * stride_b_k
    finish(
        acc, rows, columns, tl.program_id(1), m, n, e, 0, stride_e_m, stride_e_n,
        bias, None, 0, 0, 0, None, 0, None, 0, 1, 1, 0,
    )  # fmt: skip
