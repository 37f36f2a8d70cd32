"""Matrix products whose operands are loaded by the units for tensors that Hopper and later have (TMA)."""

import triton
import triton.language as tl

from kernels.gemm.epilogue import finish
from kernels.gemm.order import tile_of
from kernels.gemm.product import dot


@triton.jit
def described_tiles(
    a, b, e, batch, m, n, k, stride_a_m, stride_b_k, stride_b_n, stride_e_m, stride_e_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr, B_COLUMNS: tl.constexpr, SPECIALISED: tl.constexpr, stride_e_batch, stride_d_batch,
    bias, d, stride_d_m, stride_d_n, scale_a, stride_scale_a_m, scale_b, stride_scale_b_n, alpha, beta, activation,
):  # fmt: skip
    """The tiles that a program of `matmul` computes, one after the other; a and b of this batch.

    Rows of a, and columns of b (B_COLUMNS) or its rows, begin at multiples of 16 bytes; k > 0. What lies past the
    edges is loaded as 0. SPECIALISED: some warps load and the others multiply.
    """
    a_matrix = tl.make_tensor_descriptor(a, [m, k], [stride_a_m, 1], [BLOCK_M, BLOCK_K])
    if B_COLUMNS:
        b_matrix = tl.make_tensor_descriptor(b, [n, k], [stride_b_n, 1], [BLOCK_N, BLOCK_K])
    else:
        b_matrix = tl.make_tensor_descriptor(b, [k, n], [stride_b_k, 1], [BLOCK_K, BLOCK_N])
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(
        tl.program_id(0), tiles, tl.num_programs(0), flatten=not SPECIALISED, warp_specialize=SPECIALISED
    ):
        tile_m, tile_n = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M, 1)
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if a.dtype.element_ty.is_int() else tl.float32)
        for start in range(0, k, BLOCK_K):
            left = a_matrix.load([tile_m * BLOCK_M, start])
            if B_COLUMNS:
                right = b_matrix.load([tile_n * BLOCK_N, start]).T
            else:
                right = b_matrix.load([start, tile_n * BLOCK_N])
            acc = dot(left, right, acc, PRECISION)
        rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        finish(
            acc, rows, columns, batch, m, n, e, stride_e_batch, stride_e_m, stride_e_n,
            bias, d, stride_d_batch, stride_d_m, stride_d_n, scale_a, stride_scale_a_m, scale_b, stride_scale_b_n,
            alpha, beta, activation,
        )  # fmt: skip
