"""Products of 8-bit matrices for Hopper in Gluon, with scales by row and column.

Hopper's matrix units keep about 14 bits of a sum of float8. So sums over 128 elements of k are added in fp32 registers,
unless a call accepts the matrix units' precision for all of k. The ring of stages is that of `kernels.gemm.hopper`.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernels.common.hopper import GROUP_0, GROUP_1, ROWS, accumulator_layout, next_stage
from kernels.common.tensors import Vector
from kernels.gemm.epilogue import Epilogue
from kernels.gemm.hopper import PIECES, Operands, TileGrid, load_first, load_tiles, make_stages, store, tile_at


class ScalesAndBias(NamedTuple):
    """Factors of the rows and columns of a tile's sums, and a bias that is added, which may be null.

    The bias belongs to the columns or, for a transposed tile, to the rows. height, width: extents of the product.
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
        grid = TileGrid(steps, gl.cdiv(n, BLOCK_N), gl.cdiv(m, BLOCK_M), BAND, m, n, 0)
        scaling = ScalesAndBias(scale_b, scale_a, bias, n, m)
        multiply_maps(b, a, e, scaling, grid, GROUPS, 1, STAGES, REGISTERS, PROMOTED, TRANSPOSED)
    else:
        grid = TileGrid(steps, gl.cdiv(m, BLOCK_M), gl.cdiv(n, BLOCK_N), BAND, m, n, 0)
        scaling = ScalesAndBias(scale_a, scale_b, bias, m, n)
        BLOCKS: gl.constexpr = BLOCK_M // (ROWS * GROUPS)
        multiply_maps(a, b, e, scaling, grid, GROUPS, BLOCKS, STAGES, REGISTERS, PROMOTED, TRANSPOSED)


@gluon.jit
def multiply_maps(
    left, right, e, scaling, grid, GROUPS: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, PROMOTED: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Allocate stages, load the first of them, and start the specialised warps."""
    gl.static_assert(BLOCKS == 1 or (BLOCKS == 2 and PROMOTED))
    stages = make_stages(left, right, e, GROUPS, STAGES, BLOCKS)
    operands = Operands(left, right, None)
    loaded = load_first(operands, stages, grid)
    if GROUPS == 2:
        gl.warp_specialize([
            (multiply_tiles, (e, scaling, stages, grid, PROMOTED, TRANSPOSED, GROUP_0)),
            (multiply_tiles, (e, scaling, stages, grid, PROMOTED, TRANSPOSED, GROUP_1)),
            (load_tiles, (operands, stages, grid, loaded)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.static_assert(GROUPS == 1)
        gl.warp_specialize([
            (multiply_tiles, (e, scaling, stages, grid, PROMOTED, TRANSPOSED, GROUP_0)),
            (load_tiles, (operands, stages, grid, loaded)),
        ], [1], [24])  # fmt: skip


@gluon.jit
def multiply_tiles(
    e, scaling, stages, grid, PROMOTED: gl.constexpr, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """Multiply warpgroup GROUP's blocks of all tiles of a program."""
    if PROMOTED:
        multiply_promoted(e, scaling, stages, grid, TRANSPOSED, GROUP)
    else:
        multiply_whole(e, scaling, stages, grid, TRANSPOSED, GROUP)
    tma.store_wait(0)


@gluon.jit
def multiply_whole(e, scaling, stages, grid, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr):
    """Sum all of k in the matrix units. A group has a block of each tile."""
    STAGES: gl.constexpr = stages.right.shape[0]
    GROUPS: gl.constexpr = stages.left.shape[0] // STAGES
    COLUMNS: gl.constexpr = stages.right.shape[1]
    IS_INT: gl.constexpr = stages.left.dtype.is_int()
    WIDTH: gl.constexpr = min(COLUMNS, 128) if IS_INT else COLUMNS  # Triton has no wgmma of 256 with integers
    LAYOUT: gl.constexpr = accumulator_layout(WIDTH, stages.left.dtype)
    stage, phase, last = 0, 0, 0
    for tile in range(gl.program_id(0), grid.rows * grid.columns, gl.num_programs(0)):
        tile_row, tile_column = tile_at(tile, grid)
        row, column = (tile_row * GROUPS + GROUP) * ROWS, tile_column * COLUMNS
        by_row, by_column = of_rows(scaling, row, TRANSPOSED, LAYOUT), of_columns(scaling, column, COLUMNS, TRANSPOSED)
        acc = gl.zeros([ROWS, COLUMNS], gl.int32 if IS_INT else gl.float32, LAYOUT)
        for step in range(grid.steps):
            mbarrier.wait(stages.ready.index(stage), phase)
            left, right = stages.left.index(stage * GROUPS + GROUP), stages.right.index(stage).permute((1, 0))
            acc = warpgroup_mma(left, right, acc, use_acc=step > 0, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])  # for the product of the stage before
            mbarrier.arrive(stages.free.index(last), pred=step > 0)
            last = stage
            stage, phase = next_stage(stage, phase, STAGES)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(stages.free.index(last))
        store_block(e, finished(acc.to(gl.float32), by_row, by_column), row, column, stages, grid, TRANSPOSED, GROUP)


@gluon.jit
def multiply_promoted(e, scaling, stages, grid, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr):
    """Sum 128 elements of k at a time in the matrix units, and add these sums in fp32. A group has one or two blocks of
    each tile.

    While one group adds its sums to those of earlier blocks of k, the other group's products keep the matrix units
    busy.
    """
    STAGES: gl.constexpr = stages.right.shape[0]
    GROUPS: gl.constexpr = stages.e.shape[0] // PIECES
    BLOCKS: gl.constexpr = stages.left.shape[0] // (STAGES * GROUPS)
    COLUMNS: gl.constexpr = stages.right.shape[1]
    LAYOUT: gl.constexpr = accumulator_layout(COLUMNS, stages.left.dtype)
    stage, phase = 0, 0
    for tile in range(gl.program_id(0), grid.rows * grid.columns, gl.num_programs(0)):
        tile_row, tile_column = tile_at(tile, grid)
        row, column = (tile_row * GROUPS + GROUP) * BLOCKS * ROWS, tile_column * COLUMNS
        by_row, by_column = of_rows(scaling, row, TRANSPOSED, LAYOUT), of_columns(scaling, column, COLUMNS, TRANSPOSED)
        by_row_below = of_rows(scaling, row + ROWS, TRANSPOSED, LAYOUT)
        acc = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
        acc_below = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)  # of the second block
        for _ in range(grid.steps):
            at, right = (stage * GROUPS + GROUP) * BLOCKS, stages.right.index(stage).permute((1, 0))
            mbarrier.wait(stages.ready.index(stage), phase)
            part = block_product(stages.left.index(at), right, LAYOUT)
            if BLOCKS == 2:
                acc = acc + part
                part = block_product(stages.left.index(at + 1), right, LAYOUT)
                mbarrier.arrive(stages.free.index(stage))
                acc_below = acc_below + part
            else:
                mbarrier.arrive(stages.free.index(stage))
                acc = acc + part
            stage, phase = next_stage(stage, phase, STAGES)
        store_block(e, finished(acc, by_row, by_column), row, column, stages, grid, TRANSPOSED, GROUP)
        if BLOCKS == 2:
            below = finished(acc_below, by_row_below, by_column)
            store_block(e, below, row + ROWS, column, stages, grid, TRANSPOSED, GROUP)


@gluon.jit
def block_product(left, right, LAYOUT: gl.constexpr):
    """Multiply two blocks in shared memory, and wait for the product."""
    zero = gl.zeros([left.shape[0], right.shape[1]], gl.float32, LAYOUT)
    part = warpgroup_mma(left, right, zero, use_acc=False, is_async=True)
    return warpgroup_mma_wait(0, deps=[part])


# Scales and bias


class Affine(NamedTuple):
    """Factors of the rows, or of the columns, of a block, and the bias that is added, or None."""

    factor: gl.tensor
    offset: gl.tensor


@gluon.jit
def of_rows(scaling, row, TRANSPOSED: gl.constexpr, LAYOUT: gl.constexpr):
    """Load the Affine of a block's rows, from this row on."""
    rows = row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    known = rows < scaling.height
    return Affine(
        gl.load(scaling.rows.ptr + rows * scaling.rows.stride_rows, mask=known, other=0.0),
        bias_at(scaling, rows, known) if TRANSPOSED else None,
    )


@gluon.constexpr_function
def spread(size):
    """Layout of a vector over the threads of a warpgroup."""
    return gl.BlockedLayout([max(size // 128, 1)], [32], [4], [0])


@gluon.jit
def of_columns(scaling, column, COLUMNS: gl.constexpr, TRANSPOSED: gl.constexpr):
    """Load the Affine of columns from this one on, spread over the threads, which have many columns each."""
    columns = column + gl.arange(0, COLUMNS, layout=spread(COLUMNS))
    known = columns < scaling.width
    return Affine(
        gl.load(scaling.columns.ptr + columns * scaling.columns.stride_rows, mask=known, other=0.0),
        None if TRANSPOSED else bias_at(scaling, columns, known),
    )


@gluon.jit
def bias_at(scaling, at, known):
    """Load the bias; 0 if none is given."""
    given = scaling.bias.to(gl.int64) != 0
    return gl.load(scaling.bias + at, mask=known & given, other=0.0).to(gl.float32)


@gluon.jit
def finished(x, by_row, by_column):
    """Apply factors and bias to a block."""
    LAYOUT: gl.constexpr = gl.SliceLayout(0, x.type.layout)
    x = x * by_row.factor[:, None] * gl.convert_layout(by_column.factor, LAYOUT)[None, :]
    if by_column.offset is None:
        return x + by_row.offset[:, None]
    else:
        return x + gl.convert_layout(by_column.offset, LAYOUT)[None, :]


@gluon.jit
def store_block(e, x, row, column, stages, grid, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr):
    """Store a block of a group without an epilogue."""
    store(e, x, row, column, stages, grid, Epilogue(EPILOGUE="none"), GROUP * PIECES, 0, TRANSPOSED)
