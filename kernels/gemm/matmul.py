"""Matrix products: a program for each tile of the result, for several, or for a part of k of each (split-K)."""

import triton
import triton.language as tl

from kernels.gemm.descriptors import described_tiles
from kernels.gemm.epilogue import finish
from kernels.gemm.order import tile_of
from kernels.gemm.product import product


@triton.jit
def matmul(
    a, b, e, m, n, k, stride_a_m, stride_a_k, stride_b_k, stride_b_n, stride_e_m, stride_e_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1, PERSISTENT: tl.constexpr = False, PRECISION: tl.constexpr = "ieee",
    WHOLE_M: tl.constexpr = False, DESCRIPTORS: tl.constexpr = False, B_COLUMNS: tl.constexpr = False,
    SPECIALISED: tl.constexpr = False,
    # Of batches
    stride_a_batch=0, stride_b_batch=0, stride_e_batch=0, stride_d_batch=0,
    # Of epilogues
    bias=None, d=None, stride_d_m=0, stride_d_n=0, scale_a=None, stride_scale_a_m=0, scale_b=None, stride_scale_b_n=0,
    alpha=1, beta=1, activation=0,
):  # fmt: skip
    """e = act(alpha * scale_a * a b * scale_b + bias + beta * d). Grid: (tiles of e, or fewer if PERSISTENT; batch).

    a: [batch, m, k], b: [batch, k, n], of one dtype; e: [batch, m, n]; int8 is summed in int32, all others in fp32.
    d: addend, [batch, m, n], strides 0 where it is broadcast. bias: [n]. scale_a: fp32 [m], scale_b: fp32 [n].
    PERSISTENT: a program computes one tile after the other. WHOLE_M: as `product` has it. DESCRIPTORS: as
    `described_tiles` has it, with B_COLUMNS and SPECIALISED.
    """
    batch = tl.program_id(1)
    a += batch.to(tl.int64) * stride_a_batch
    b += batch.to(tl.int64) * stride_b_batch
    if DESCRIPTORS:
        described_tiles(
            a, b, e, batch, m, n, k, stride_a_m, stride_b_k, stride_b_n, stride_e_m, stride_e_n,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PRECISION, B_COLUMNS, SPECIALISED, stride_e_batch, stride_d_batch,
            bias, d, stride_d_m, stride_d_n, scale_a, stride_scale_a_m, scale_b, stride_scale_b_n, alpha, beta,
            activation,
        )  # fmt: skip
    elif PERSISTENT:
        for tile in range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), tl.num_programs(0)):
            _tile(
                a, b, e, tile, batch, m, n, k, stride_a_m, stride_a_k, stride_b_k, stride_b_n, stride_e_m, stride_e_n,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, NUM_XCDS, PRECISION, WHOLE_M, stride_e_batch, stride_d_batch,
                bias, d, stride_d_m, stride_d_n, scale_a, stride_scale_a_m, scale_b, stride_scale_b_n, alpha, beta,
                activation,
            )  # fmt: skip
    else:
        _tile(
            a, b, e, tl.program_id(0), batch, m, n, k, stride_a_m, stride_a_k, stride_b_k, stride_b_n,
            stride_e_m, stride_e_n, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, NUM_XCDS, PRECISION, WHOLE_M,
            stride_e_batch, stride_d_batch, bias, d, stride_d_m, stride_d_n, scale_a, stride_scale_a_m,
            scale_b, stride_scale_b_n, alpha, beta, activation,
        )  # fmt: skip


@triton.jit
def _tile(
    a, b, e, tile, batch, m, n, k, stride_a_m, stride_a_k, stride_b_k, stride_b_n, stride_e_m, stride_e_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr, PRECISION: tl.constexpr, WHOLE_M: tl.constexpr, stride_e_batch, stride_d_batch,
    bias, d, stride_d_m, stride_d_n, scale_a, stride_scale_a_m, scale_b, stride_scale_b_n, alpha, beta, activation,
):  # fmt: skip
    """One tile of `matmul`; a and b of this batch."""
    tile_m, tile_n = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    acc = product(
        a, b, tile_m * BLOCK_M, tile_n * BLOCK_N, m, n, 0, k, stride_a_m, stride_a_k, stride_b_k, stride_b_n,
        BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, WHOLE_M,
    )  # fmt: skip
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    finish(
        acc, rows, columns, batch, m, n, e, stride_e_batch, stride_e_m, stride_e_n,
        bias, d, stride_d_batch, stride_d_m, stride_d_n, scale_a, stride_scale_a_m, scale_b, stride_scale_b_n,
        alpha, beta, activation,
    )  # fmt: skip


@triton.jit
def matmul_parts(
    a, b, partial, m, n, k, parts, stride_a_m, stride_a_k, stride_b_k, stride_b_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1, PRECISION: tl.constexpr = "ieee", WHOLE_M: tl.constexpr = False,
):  # fmt: skip
    """Products of each of `parts` runs of k, for `reduce_parts`. Grid: (tiles of the result, parts).

    a: [m, k], b: [k, n], of one dtype. partial: fp32 or int32 [parts, m, n].
    """
    part = tl.program_id(1)
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    share = tl.cdiv(tl.cdiv(k, BLOCK_K), parts) * BLOCK_K
    acc = product(
        a, b, tile_m * BLOCK_M, tile_n * BLOCK_N, m, n, part * share, tl.minimum(part * share + share, k),
        stride_a_m, stride_a_k, stride_b_k, stride_b_n, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, WHOLE_M,
    )  # fmt: skip
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    at = (part.to(tl.int64) * m + rows[:, None]) * n + columns[None, :]
    tl.store(partial + at, acc, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def reduce_parts(
    partial, e, m, n, parts, stride_e_m, stride_e_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    bias=None, d=None, stride_d_m=0, stride_d_n=0, scale_a=None, stride_scale_a_m=0, scale_b=None, stride_scale_b_n=0,
    alpha=1, beta=1, activation=0,
):  # fmt: skip
    """Add what `matmul_parts` wrote, in the order of k, and finish. Grid: (cdiv(m, BLOCK_M), cdiv(n, BLOCK_N))."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    stored = (rows[:, None] < m) & (columns[None, :] < n)
    size = tl.cast(m, tl.int64) * n
    at = partial + rows[:, None].to(tl.int64) * n + columns[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], partial.dtype.element_ty)
    for _ in range(parts):
        acc += tl.load(at, stored, 0)
        at += size
    finish(
        acc, rows, columns, tl.program_id(2), m, n, e, 0, stride_e_m, stride_e_n,
        bias, d, 0, stride_d_m, stride_d_n, scale_a, stride_scale_a_m, scale_b, stride_scale_b_n,
        alpha, beta, activation,
    )  # fmt: skip
