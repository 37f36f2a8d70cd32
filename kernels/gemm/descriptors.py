"""Matrix products whose operands are loaded by the units for tensors that Hopper and later have (TMA)."""

import triton
import triton.language as tl

from kernels.gemm.epilogue import finish
from kernels.gemm.order import tile_of
from kernels.gemm.product import dot


@triton.jit
def described_tiles(
    a, b, e, epilogue, batch, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr, B_COLUMNS: tl.constexpr, SPECIALISED: tl.constexpr,
):  # fmt: skip
    """Compute the tiles of a program of `matmul`, one after the other; a, b and e: each a `Matrix`, of this batch.

    Rows of a, and columns of b (B_COLUMNS) or its rows, begin at multiples of 16 bytes; k > 0. Elements past the
    edges are loaded as 0. SPECIALISED: some warps load and the others multiply.
    """
    a_matrix = tl.make_tensor_descriptor(a.ptr, [m, k], [a.stride_rows, 1], [BLOCK_M, BLOCK_K])
    if B_COLUMNS:
        b_matrix = tl.make_tensor_descriptor(b.ptr, [n, k], [b.stride_columns, 1], [BLOCK_N, BLOCK_K])
    else:
        b_matrix = tl.make_tensor_descriptor(b.ptr, [k, n], [b.stride_rows, 1], [BLOCK_K, BLOCK_N])
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(
        tl.program_id(0), tiles, tl.num_programs(0), flatten=not SPECIALISED, warp_specialize=SPECIALISED
    ):
        tile_m, tile_n = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M, 1)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if a.ptr.dtype.element_ty.is_int() else tl.float32)
        for start in range(0, k, BLOCK_K):
            left = a_matrix.load([row, start])
            right = b_matrix.load([column, start]).T if B_COLUMNS else b_matrix.load([start, column])
            acc = dot(left, right, acc, PRECISION)
        finish(acc, row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N), batch, m, n, e, epilogue)
