"""A matrix product without masks, for extents that are multiples of the blocks."""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a, b, c, k, stride_a_m, stride_b_k, stride_c_m,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    left = a + rows[:, None] * stride_a_m + inner[None, :]
    right = b + inner[:, None] * stride_b_k + columns[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, k, BLOCK_K):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BLOCK_K
        right += BLOCK_K * stride_b_k
    tl.store(c + rows[:, None] * stride_c_m + columns[None, :], total)
