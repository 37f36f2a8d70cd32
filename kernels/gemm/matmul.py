"""Matrix products. A program computes a tile of the result, several tiles, or a part of k of a tile (split-K)."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrices, Matrix, matrix_of
from kernels.gemm.descriptors import described_tiles
from kernels.gemm.epilogue import Epilogue, finish
from kernels.gemm.order import tile_of
from kernels.gemm.product import product


@triton.jit
def matmul(
    a: Matrices, b: Matrices, e: Matrices, epilogue: Epilogue, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1, PERSISTENT: tl.constexpr = False, PRECISION: tl.constexpr = "ieee",
    WHOLE_M: tl.constexpr = False, WHOLE_N: tl.constexpr = False, DESCRIPTORS: tl.constexpr = False,
    B_COLUMNS: tl.constexpr = False, SPECIALISED: tl.constexpr = False,
):  # fmt: skip
    """e = epilogue(a b). Grid: (tiles of e, or fewer if PERSISTENT; batch).

    a: [batch, m, k], b: [batch, k, n], of one dtype; e: [batch, m, n]; int8 is summed in int32, all others in fp32.
    PERSISTENT: a program computes one tile after the other. WHOLE_M, WHOLE_N: as `product` has them. DESCRIPTORS: as
    `described_tiles` has it, with B_COLUMNS and SPECIALISED.
    """
    batch = tl.program_id(1)
    left, right, out = matrix_of(a, batch), matrix_of(b, batch), matrix_of(e, batch)
    if DESCRIPTORS:
        described_tiles(
            left, right, out, epilogue, batch, m, n, k, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PRECISION, B_COLUMNS,
            SPECIALISED,
        )  # fmt: skip
    elif PERSISTENT:
        for tile in range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), tl.num_programs(0)):
            _tile(
                left, right, out, epilogue, tile, batch, m, n, k, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, NUM_XCDS,
                PRECISION, WHOLE_M, WHOLE_N,
            )  # fmt: skip
    else:
        _tile(
            left, right, out, epilogue, tl.program_id(0), batch, m, n, k, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M,
            NUM_XCDS, PRECISION, WHOLE_M, WHOLE_N,
        )  # fmt: skip


@triton.jit
def _tile(
    a, b, e, epilogue, tile, batch, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr, PRECISION: tl.constexpr, WHOLE_M: tl.constexpr,
    WHOLE_N: tl.constexpr,
):  # fmt: skip
    """Compute one tile of `matmul`; a, b and e: each a `Matrix`, of this batch."""
    tile_m, tile_n = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = product(a, b, row, column, m, n, 0, k, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, WHOLE_M, WHOLE_N)
    finish(acc, row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N), batch, m, n, e, epilogue)


@triton.jit
def matmul_parts(
    a: Matrix, b: Matrix, partial, m, n, k, parts,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1, PRECISION: tl.constexpr = "ieee", WHOLE_M: tl.constexpr = False,
    WHOLE_N: tl.constexpr = False,
):  # fmt: skip
    """Multiply each of `parts` runs of k, for `reduce_parts`. Grid: (tiles of the result, parts).

    a: [m, k], b: [k, n], of one dtype. partial: fp32 or int32 [parts, m, n].
    """
    part = tl.program_id(1)
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
    begin, end = part_of(k, part, parts, BLOCK_K)
    acc = product(a, b, row, column, m, n, begin, end, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, WHOLE_M, WHOLE_N)
    store_part(acc, row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N), part, m, n, partial)


@triton.jit
def part_of(k, part, parts, BLOCK_K: tl.constexpr):
    """Return (begin, end) of one of `parts` runs of k, in elements; in the last, end may be below begin."""
    share = tl.cdiv(tl.cdiv(k, BLOCK_K), parts) * BLOCK_K
    return part * share, tl.minimum(part * share + share, k)


@triton.jit
def store_part(acc, rows, columns, part, m, n, partial):
    """Store a tile of one part's product in `partial`, [parts, m, padded(n)]."""
    at = (part.to(tl.int64) * m + rows[:, None]) * padded(n) + columns[None, :]
    tl.store(partial + at, acc, mask=(rows[:, None] < m) & (columns[None, :] < padded(n)))


@triton.jit
def padded(n):
    """Return the next multiple of 8, so that rows of `partial` are aligned whatever n is."""
    return tl.cdiv(n, 8) * 8


@triton.jit
def reduce_parts(partial, e: Matrix, epilogue: Epilogue, m, n, parts, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Add the parts of `matmul_parts`, in the order of k, and apply the epilogue.

    Grid: (cdiv(m, BLOCK_M), cdiv(n, BLOCK_N)).
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    stored = (rows[:, None] < m) & (columns[None, :] < padded(n))
    size = tl.cast(m, tl.int64) * padded(n)
    at = partial + rows[:, None].to(tl.int64) * padded(n) + columns[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], partial.dtype.element_ty)
    for _ in range(parts):
        acc += tl.load(at, stored, 0)
        at += size
    finish(acc, rows, columns, tl.program_id(2), m, n, e, epilogue)
