"""Products of 8-bit numbers for Hopper in Gluon, with scales by row and column.

Hopper's matrix units keep about 14 bits of a sum of float8. So sums of 128 of k are added to fp32 registers, unless a
call accepts what the matrix units make of all of k. The ring of stages and its barriers are those of
`kernels.gemm.hopper`.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernels.common.tensors import Vector
from kernels.gemm.epilogue import Epilogue
from kernels.gemm.hopper import (
    GROUP_0,
    GROUP_1,
    PIECES,
    Operands,
    Work,
    load_first,
    load_tiles,
    make_ring,
    next_stage,
    store,
    tile_at,
)

ROWS = gl.constexpr(64)
"""Rows of a block: those of a wgmma."""


class Finish(NamedTuple):
    """What becomes of a tile's sums: each times the factors of its row and column, plus a bias, which may be null.

    The bias belongs to the columns or, of a transposed tile, to the rows. height, width: extents of the product.
    """

    rows: Vector
    columns: Vector
    bias: gl.tensor
    height: gl.tensor
    width: gl.tensor


@gluon.jit
def scaled_matmul_hopper(
    a, b, e, scale_a: Vector, scale_b: Vector, bias, m, n, k,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, TRANSPOSED: gl.constexpr, BAND: gl.constexpr,
    STAGES: gl.constexpr, REGISTERS: gl.constexpr, PROMOTED: gl.constexpr,
):  # fmt: skip
    """e = scale_a * a b * scale_b + bias. Grid: (tiles of e, or fewer); a tile is BLOCK_M x BLOCK_N.

    a, b, e: tensor maps of [m, k], [n, k], [m, n], in blocks of [64, 128], [BLOCK_N, 128] and [64, 64]; or, if
    TRANSPOSED, [BLOCK_M, 128], [64, 128] and [min(BLOCK_M, 64), 64]. a and b are of one float8, or int8; k > 0.
    scale_a, scale_b: fp32 [m] and [n]. bias: [n], or null. PROMOTED: sums of 128 of k are added in fp32; a group may
    then have two blocks of rows. The others are as in `hopper.matmul_hopper`.
    """
    steps = gl.cdiv(k, a.block_shape[1])
    if TRANSPOSED:
        gl.static_assert(BLOCK_N == ROWS * GROUPS)
        work = Work(steps, gl.cdiv(n, BLOCK_N), gl.cdiv(m, BLOCK_M), BAND, m, n, 0)
        finish = Finish(scale_b, scale_a, bias, n, m)
        multiply_maps(b, a, e, finish, work, GROUPS, 1, STAGES, REGISTERS, PROMOTED, TRANSPOSED)
    else:
        work = Work(steps, gl.cdiv(m, BLOCK_M), gl.cdiv(n, BLOCK_N), BAND, m, n, 0)
        finish = Finish(scale_a, scale_b, bias, m, n)
        BLOCKS: gl.constexpr = BLOCK_M // (ROWS * GROUPS)
        multiply_maps(a, b, e, finish, work, GROUPS, BLOCKS, STAGES, REGISTERS, PROMOTED, TRANSPOSED)


@gluon.jit
def multiply_maps(
    left, right, e, finish, work, GROUPS: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, PROMOTED: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The groups of warps."""
    gl.static_assert(BLOCKS == 1 or (BLOCKS == 2 and PROMOTED))
    ring = make_ring(left, right, e, GROUPS, STAGES, BLOCKS)
    operands = Operands(left, right, None)
    loaded = load_first(operands, ring, work)
    if GROUPS == 2:
        gl.warp_specialize([
            (multiply_tiles, (e, finish, ring, work, PROMOTED, TRANSPOSED, GROUP_0)),
            (multiply_tiles, (e, finish, ring, work, PROMOTED, TRANSPOSED, GROUP_1)),
            (load_tiles, (operands, ring, work, loaded)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.static_assert(GROUPS == 1)
        gl.warp_specialize([
            (multiply_tiles, (e, finish, ring, work, PROMOTED, TRANSPOSED, GROUP_0)),
            (load_tiles, (operands, ring, work, loaded)),
        ], [1], [24])  # fmt: skip


@gluon.jit
def multiply_tiles(
    e, finish, ring, work, PROMOTED: gl.constexpr, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """The warps that multiply: those of one group."""
    if PROMOTED:
        multiply_promoted(e, finish, ring, work, TRANSPOSED, GROUP)
    else:
        multiply_whole(e, finish, ring, work, TRANSPOSED, GROUP)
    tma.store_wait(0)


@gluon.jit
def multiply_whole(e, finish, ring, work, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr):
    """The matrix units sum all of k. A group has a block of each tile."""
    STAGES: gl.constexpr = ring.right.shape[0]
    GROUPS: gl.constexpr = ring.left.shape[0] // STAGES
    COLUMNS: gl.constexpr = ring.right.shape[1]
    IS_INT: gl.constexpr = ring.left.dtype.is_int()
    WIDTH: gl.constexpr = min(COLUMNS, 128) if IS_INT else COLUMNS  # Triton has no wgmma of 256 with integers
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 32])
    stage, phase, last = 0, 0, 0
    for tile in range(gl.program_id(0), work.rows * work.columns, gl.num_programs(0)):
        tile_row, tile_column = tile_at(tile, work)
        row, column = (tile_row * GROUPS + GROUP) * ROWS, tile_column * COLUMNS
        by_row, by_column = of_rows(finish, row, TRANSPOSED, LAYOUT), of_columns(finish, column, COLUMNS, TRANSPOSED)
        acc = gl.zeros([ROWS, COLUMNS], gl.int32 if IS_INT else gl.float32, LAYOUT)
        for step in range(work.steps):
            mbarrier.wait(ring.filled.index(stage), phase)
            left, right = ring.left.index(stage * GROUPS + GROUP), ring.right.index(stage).permute((1, 0))
            acc = warpgroup_mma(left, right, acc, use_acc=step > 0, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])  # for the product of the stage before
            mbarrier.arrive(ring.empty.index(last), pred=step > 0)
            last = stage
            stage, phase = next_stage(stage, phase, STAGES)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(ring.empty.index(last))
        store_block(e, finished(acc.to(gl.float32), by_row, by_column), row, column, ring, work, TRANSPOSED, GROUP)


@gluon.jit
def multiply_promoted(e, finish, ring, work, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr):
    """The matrix units sum 128 of k. A group has one or two blocks of each tile.

    While sums are added to those of earlier blocks of k, the other group's products keep the matrix units at work.
    """
    STAGES: gl.constexpr = ring.right.shape[0]
    GROUPS: gl.constexpr = ring.e.shape[0] // PIECES
    BLOCKS: gl.constexpr = ring.left.shape[0] // (STAGES * GROUPS)
    COLUMNS: gl.constexpr = ring.right.shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 32])
    stage, phase = 0, 0
    for tile in range(gl.program_id(0), work.rows * work.columns, gl.num_programs(0)):
        tile_row, tile_column = tile_at(tile, work)
        row, column = (tile_row * GROUPS + GROUP) * BLOCKS * ROWS, tile_column * COLUMNS
        by_row, by_column = of_rows(finish, row, TRANSPOSED, LAYOUT), of_columns(finish, column, COLUMNS, TRANSPOSED)
        by_row_below = of_rows(finish, row + ROWS, TRANSPOSED, LAYOUT)
        acc = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
        acc_below = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)  # of the second block
        for _ in range(work.steps):
            at, right = (stage * GROUPS + GROUP) * BLOCKS, ring.right.index(stage).permute((1, 0))
            mbarrier.wait(ring.filled.index(stage), phase)
            part = block_product(ring.left.index(at), right, LAYOUT)
            if BLOCKS == 2:
                acc = acc + part
                part = block_product(ring.left.index(at + 1), right, LAYOUT)
                mbarrier.arrive(ring.empty.index(stage))
                acc_below = acc_below + part
            else:
                mbarrier.arrive(ring.empty.index(stage))
                acc = acc + part
            stage, phase = next_stage(stage, phase, STAGES)
        store_block(e, finished(acc, by_row, by_column), row, column, ring, work, TRANSPOSED, GROUP)
        if BLOCKS == 2:
            below = finished(acc_below, by_row_below, by_column)
            store_block(e, below, row + ROWS, column, ring, work, TRANSPOSED, GROUP)


@gluon.jit
def block_product(left, right, LAYOUT: gl.constexpr):
    """The product of two blocks in shared memory, once it is there."""
    zero = gl.zeros([left.shape[0], right.shape[1]], gl.float32, LAYOUT)
    part = warpgroup_mma(left, right, zero, use_acc=False, is_async=True)
    return warpgroup_mma_wait(0, deps=[part])


# What follows the sums


class Affine(NamedTuple):
    """Factors of the rows, or the columns, of a block, and what is added to them, which may be None."""

    factor: gl.tensor
    offset: gl.tensor


@gluon.jit
def of_rows(finish, row, TRANSPOSED: gl.constexpr, LAYOUT: gl.constexpr):
    """Those of a block's rows, from this one on."""
    rows = row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    known = rows < finish.height
    return Affine(
        gl.load(finish.rows.ptr + rows * finish.rows.stride_rows, mask=known, other=0.0),
        bias_at(finish, rows, known) if TRANSPOSED else None,
    )


@gluon.constexpr_function
def spread(size):
    """The layout of a vector over the threads of a group."""
    return gl.BlockedLayout([max(size // 128, 1)], [32], [4], [0])


@gluon.jit
def of_columns(finish, column, COLUMNS: gl.constexpr, TRANSPOSED: gl.constexpr):
    """Those of columns from this one on, spread over the threads: each would have to load many of its own columns."""
    columns = column + gl.arange(0, COLUMNS, layout=spread(COLUMNS))
    known = columns < finish.width
    return Affine(
        gl.load(finish.columns.ptr + columns * finish.columns.stride_rows, mask=known, other=0.0),
        None if TRANSPOSED else bias_at(finish, columns, known),
    )


@gluon.jit
def bias_at(finish, at, known):
    """The bias, which is 0 if none is given."""
    given = finish.bias.to(gl.int64) != 0
    return gl.load(finish.bias + at, mask=known & given, other=0.0).to(gl.float32)


@gluon.jit
def finished(x, by_row, by_column):
    """A block with its factors and its bias."""
    LAYOUT: gl.constexpr = gl.SliceLayout(0, x.type.layout)
    x = x * by_row.factor[:, None] * gl.convert_layout(by_column.factor, LAYOUT)[None, :]
    if by_column.offset is None:
        return x + by_row.offset[:, None]
    else:
        return x + gl.convert_layout(by_column.offset, LAYOUT)[None, :]


@gluon.jit
def store_block(e, x, row, column, ring, work, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr):
    """Store a block of a group, as it is."""
    store(e, x, row, column, ring, work, Epilogue(EPILOGUE="none"), GROUP * PIECES, 0, TRANSPOSED)
