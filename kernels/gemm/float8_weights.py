"""Linear layers with weights of float8 and activations of 16 bits, to whose dtype weights are converted."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrices, Matrix, matrix_of
from kernels.gemm.block_scaled import accumulate_blocks
from kernels.gemm.epilogue import Epilogue, finish
from kernels.gemm.order import tile_of
from kernels.gemm.product import accumulate


@triton.jit
def float8_linear(
    x: Matrices, w: Matrices, scales: Matrices, bias: Matrix, e: Matrices, m, n, k, rows_per_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, BLOCKS: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1,
):  # fmt: skip
    """e = x (scales w)ᵀ + bias, summed in fp32. Grid: (tiles of e; batch).

    x: [batch, m, k]; w: float8 [batch, n, k]; e: [batch, m, n]; bias: [batch, n], or a null pointer. scales: fp32
    [batch, cdiv(n, rows_per_scale), cdiv(k, 128) if BLOCKS else 1]. With BLOCKS, BLOCK_K divides 128.
    """
    batch = tl.program_id(1)
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    left, right, scale = matrix_of(x, batch), matrix_of(w, batch), matrix_of(scales, batch)
    # Rows and columns past the edges wrap to ones inside, so that no load in the loop needs a mask for them.
    x_at = left.ptr + (rows % m)[:, None] * left.stride_rows + inner[None, :] * left.stride_columns
    w_at = right.ptr + (columns % n)[None, :] * right.stride_rows + inner[:, None] * right.stride_columns
    scale_at = scale.ptr + columns % n // rows_per_scale * scale.stride_rows
    if BLOCKS:
        acc = accumulate_blocks(
            x_at, w_at, left.stride_columns, right.stride_columns, None, scale_at, 0, scale.stride_columns, k, BLOCK_K
        )
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        acc = accumulate(x_at, w_at, left.stride_columns, right.stride_columns, acc, k, BLOCK_K)
        acc *= tl.load(scale_at)[None, :]
    finish(
        acc, rows, columns, batch, m, n, matrix_of(e, batch),
        Epilogue(bias=bias.ptr, stride_bias_batch=bias.stride_rows, EPILOGUE="bias"),
    )  # fmt: skip
