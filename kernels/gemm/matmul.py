"""Matrix products, a program for each tile of the result: e = act(alpha * a b + bias + beta * d)."""

import triton
import triton.language as tl

from kernels.gemm.epilogue import finish
from kernels.gemm.order import tile_of


@triton.jit
def matmul(
    a, b, e, partial,
    m, n, k, splits,
    stride_a_batch, stride_a_m, stride_a_k,
    stride_b_batch, stride_b_k, stride_b_n,
    stride_e_batch, stride_e_m, stride_e_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, SPLIT_K: tl.constexpr, NUM_XCDS: tl.constexpr, PRECISION: tl.constexpr,
    # What an op need not have
    bias=None, d=None, scale_a=None, scale_b=None,
    stride_d_batch=0, stride_d_m=0, stride_d_n=0,
    stride_scale_a_batch=0, stride_scale_a_m=0, stride_scale_b_batch=0, stride_scale_b_n=0,
    alpha=1.0, beta=0.0,
    ACTIVATION: tl.constexpr = "none",
):  # fmt: skip
    """Grid: (cdiv(m, BLOCK_M) * cdiv(n, BLOCK_N), splits, batch).

    a: [batch, m, k], b: [batch, k, n], of one dtype; e: [batch, m, n]; any strides, but one of a's and of b's last two
    is 1. int8 and int32 accumulate in int32, float64 in float64, all others in fp32. d: addend of any strides (0:
    broadcast). bias: [n]. scale_a, scale_b: fp32, for the rows of a and the columns of b (strides 0: one for all).

    EVEN_K: k is a multiple of BLOCK_K * splits. SPLIT_K: writes the sums of a part of k to partial, of the
    accumulator's dtype [splits, batch, m, n], for `split_k_reduce`. PRECISION: of fp32 operands, as `tl.dot` has it.
    """
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    split, batch = tl.program_id(1), tl.program_id(2)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns past the edge read those inside again, which no mask in the loop is needed for.
    row_at, column_at = rows % m, columns % n
    inner = tl.arange(0, BLOCK_K)
    first = split * BLOCK_K
    step = splits * BLOCK_K

    a += batch.to(tl.int64) * stride_a_batch + first * stride_a_k
    b += batch.to(tl.int64) * stride_b_batch + first * stride_b_k
    a_at = a + row_at[:, None] * stride_a_m + inner[None, :] * stride_a_k
    b_at = b + inner[:, None] * stride_b_k + column_at[None, :] * stride_b_n
    wide: tl.constexpr = (
        tl.int32 if a.dtype.element_ty.is_int() else tl.float64 if a.dtype.element_ty == tl.float64 else tl.float32
    )
    acc = tl.zeros([BLOCK_M, BLOCK_N], wide)
    for start in range(first, k, step):
        if EVEN_K:
            left, right = tl.load(a_at), tl.load(b_at)
        else:
            left = tl.load(a_at, mask=inner[None, :] < k - start, other=0)
            right = tl.load(b_at, mask=inner[:, None] < k - start, other=0)
        acc = tl.dot(left, right, acc, input_precision=PRECISION, out_dtype=wide)
        a_at += step * stride_a_k
        b_at += step * stride_b_k

    stored = (rows[:, None] < m) & (columns[None, :] < n)
    if SPLIT_K:
        place = ((split * tl.num_programs(2) + batch).to(tl.int64) * m + rows[:, None]) * n + columns[None, :]
        tl.store(partial + place, acc, mask=stored)
    else:
        finish(
            acc, rows, columns, stored, batch, e, stride_e_batch, stride_e_m, stride_e_n,
            bias, d, stride_d_batch, stride_d_m, stride_d_n, scale_a, stride_scale_a_batch, stride_scale_a_m,
            scale_b, stride_scale_b_batch, stride_scale_b_n, alpha, beta, ACTIVATION,
        )  # fmt: skip


@triton.jit
def split_k_reduce(
    partial, e,
    m, n, splits,
    stride_e_batch, stride_e_m, stride_e_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    bias=None, d=None, scale_a=None, scale_b=None,
    stride_d_batch=0, stride_d_m=0, stride_d_n=0,
    stride_scale_a_batch=0, stride_scale_a_m=0, stride_scale_b_batch=0, stride_scale_b_n=0,
    alpha=1.0, beta=0.0,
    ACTIVATION: tl.constexpr = "none",
):  # fmt: skip
    """Sum the parts that `matmul` wrote, in their order, and finish. Grid: (cdiv(n, BLOCK_N), cdiv(m, BLOCK_M), batch)."""
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    batch = tl.program_id(2)
    stored = (rows[:, None] < m) & (columns[None, :] < n)
    place = partial + (batch.to(tl.int64) * m + rows[:, None]) * n + columns[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], partial.dtype.element_ty)
    for _ in range(splits):
        acc += tl.load(place, mask=stored, other=0)
        place += tl.num_programs(2).to(tl.int64) * m * n
    finish(
        acc, rows, columns, stored, batch, e, stride_e_batch, stride_e_m, stride_e_n,
        bias, d, stride_d_batch, stride_d_m, stride_d_n, scale_a, stride_scale_a_batch, stride_scale_a_m,
        scale_b, stride_scale_b_batch, stride_scale_b_n, alpha, beta, ACTIVATION,
    )  # fmt: skip
