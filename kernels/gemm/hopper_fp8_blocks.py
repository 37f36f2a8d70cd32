"""Products of float8 for Hopper in Gluon, with scales for blocks of 128 of k: of a by rows, of b by 128 columns.

The matrix units sum 128 elements of k; these sums are scaled, and added in fp32 registers. A stage also has the scales
of its rows, multiplied by that of its columns. A separate warp loads them one by one, so they may have any strides.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernels.common.hopper import GROUP_0, GROUP_1, ROWS, accumulator_layout, next_stage
from kernels.common.tensors import Matrix
from kernels.gemm.hopper import Operands, TileGrid, load_first, load_tiles, make_stages, tile_at
from kernels.gemm.hopper_fp8 import store_block

SCALED = gl.constexpr(128)
"""Elements of k, and columns of b, that share a scale."""
LOADING = gl.constexpr(88)
"""Registers of a thread that loads."""


class Scales(NamedTuple):
    """Scales of blocks, fp32: a [cdiv(m, share), cdiv(k, 128)], b [cdiv(k, 128), cdiv(n, 128)]."""

    a: Matrix
    b: Matrix
    share: gl.tensor


@gluon.jit
def block_scaled_matmul_hopper(
    a, b, e, scale_a: Matrix, scale_b: Matrix, rows_per_scale, m, n, k,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, TRANSPOSED: gl.constexpr, BAND: gl.constexpr,
    STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """e = (scale_a a) (scale_b b). Grid: (tiles of e, or fewer); a tile is BLOCK_M x BLOCK_N, of at most 128 columns.

    a, b and e, of float8, and all else are as in `hopper_fp8.scaled_matmul_hopper`. scale_a: fp32
    [cdiv(m, rows_per_scale), cdiv(k, 128)]; scale_b: fp32 [cdiv(k, 128), cdiv(n, 128)].
    """
    steps = gl.cdiv(k, SCALED)
    scales = Scales(scale_a, scale_b, rows_per_scale)
    if TRANSPOSED:
        gl.static_assert(BLOCK_N == ROWS * GROUPS)
        grid = TileGrid(steps, gl.cdiv(n, BLOCK_N), gl.cdiv(m, BLOCK_M), BAND, m, n, 0)
        multiply_maps(b, a, e, scales, grid, BLOCK_M, GROUPS, STAGES, REGISTERS, TRANSPOSED)
    else:
        gl.static_assert(BLOCK_M == ROWS * GROUPS and BLOCK_N == SCALED)
        grid = TileGrid(steps, gl.cdiv(m, BLOCK_M), gl.cdiv(n, BLOCK_N), BAND, m, n, 0)
        multiply_maps(a, b, e, scales, grid, BLOCK_M, GROUPS, STAGES, REGISTERS, TRANSPOSED)


@gluon.jit
def multiply_maps(
    left, right, e, scales, grid, BLOCK_M: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Allocate stages and vectors of scales, load the first stages, and start the specialised warps."""
    stages = make_stages(left, right, e, GROUPS, STAGES, LOADERS=2)
    vectors = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    operands = Operands(left, right, None)
    loaded = load_first(operands, stages, grid)
    if GROUPS == 2:
        gl.warp_specialize([
            (multiply_tiles, (e, stages, vectors, grid, TRANSPOSED, GROUP_0)),
            (multiply_tiles, (e, stages, vectors, grid, TRANSPOSED, GROUP_1)),
            (load_tiles, (operands, stages, grid, loaded)),
            (load_scales, (scales, stages, vectors, grid, TRANSPOSED)),
        ], [4, 1, 1], [REGISTERS, LOADING, LOADING])  # fmt: skip
    else:
        gl.static_assert(GROUPS == 1)
        gl.warp_specialize([
            (multiply_tiles, (e, stages, vectors, grid, TRANSPOSED, GROUP_0)),
            (load_tiles, (operands, stages, grid, loaded)),
            (load_scales, (scales, stages, vectors, grid, TRANSPOSED)),
        ], [1, 1], [LOADING, LOADING])  # fmt: skip


@gluon.jit
def multiply_tiles(e, stages, vectors, grid, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr):
    """Multiply warpgroup GROUP's block of all tiles of a program.

    While one group scales and adds, the other group's products keep the matrix units busy.
    """
    STAGES: gl.constexpr = stages.right.shape[0]
    GROUPS: gl.constexpr = stages.left.shape[0] // STAGES
    COLUMNS: gl.constexpr = stages.right.shape[1]
    LAYOUT: gl.constexpr = accumulator_layout(COLUMNS, stages.left.dtype)
    stage, phase = 0, 0
    for tile in range(gl.program_id(0), grid.rows * grid.columns, gl.num_programs(0)):
        tile_row, tile_column = tile_at(tile, grid)
        row, column = (tile_row * GROUPS + GROUP) * ROWS, tile_column * COLUMNS
        acc = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
        for _ in range(grid.steps):
            zero = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
            mbarrier.wait(stages.ready.index(stage), phase)
            left, right = stages.left.index(stage * GROUPS + GROUP), stages.right.index(stage).permute((1, 0))
            part = warpgroup_mma(left, right, zero, use_acc=False, is_async=True)
            if TRANSPOSED:
                factors = vectors.index(stage).load(gl.SliceLayout(0, LAYOUT))[None, :]
            else:
                factors = vectors.index(stage).slice(GROUP * ROWS, ROWS).load(gl.SliceLayout(1, LAYOUT))[:, None]
            part = warpgroup_mma_wait(0, deps=[part])
            mbarrier.arrive(stages.free.index(stage))
            acc = acc + part * factors
            stage, phase = next_stage(stage, phase, STAGES)
        store_block(e, acc, row, column, stages, grid, TRANSPOSED, GROUP)
    tma.store_wait(0)


# Scales


class Places(NamedTuple):
    """Addresses of a tile's scales for the first block of k, and the strides from one block of k to the next."""

    a: gl.tensor
    b: gl.tensor
    step_a: gl.tensor
    step_b: gl.tensor


class Pair(NamedTuple):
    """Scales of a block of k: of a by rows, and of b."""

    a: gl.tensor
    b: gl.tensor


@gluon.jit
def load_scales(scales, stages, vectors, grid, TRANSPOSED: gl.constexpr):
    """Load the scales of all tiles, four blocks of k at a time and as many ahead of storing them."""
    STAGES: gl.constexpr = stages.right.shape[0]
    BLOCK_M: gl.constexpr = vectors.shape[1]
    COLUMNS: gl.constexpr = stages.left.shape[0] // STAGES * ROWS if TRANSPOSED else stages.right.shape[1]
    stage, phase = 0, 1
    for tile in range(gl.program_id(0), grid.rows * grid.columns, gl.num_programs(0)):
        tile_row, tile_column = tile_at(tile, grid)
        row = (tile_column if TRANSPOSED else tile_row) * BLOCK_M
        column = (tile_row if TRANSPOSED else tile_column) * COLUMNS
        rows = row + gl.arange(0, BLOCK_M, layout=gl.BlockedLayout([1], [32], [1], [0]))
        # Rows past the end, which are not stored, have the scale of the last row.
        places = Places(
            scales.a.ptr + gl.minimum(rows, grid.m - 1) // scales.share * scales.a.stride_rows,
            scales.b.ptr + column // SCALED * scales.b.stride_columns,
            scales.a.stride_columns, scales.b.stride_rows,
        )  # fmt: skip
        these = four_scales(places, 0, grid)
        for first in range(0, grid.steps, 4):
            following = four_scales(places, first + 4, grid)
            for i in gl.static_range(4):
                if first + i < grid.steps:
                    mbarrier.wait(stages.free.index(stage), phase)
                    vectors.index(stage).store(these[i].a * these[i].b)
                    mbarrier.arrive(stages.ready.index(stage))
                    stage, phase = next_stage(stage, phase, STAGES)
            these = following


@gluon.jit
def four_scales(places, first, grid):
    return (
        scales_at(places, first, grid), scales_at(places, first + 1, grid), scales_at(places, first + 2, grid),
        scales_at(places, first + 3, grid),
    )  # fmt: skip


@gluon.jit
def scales_at(places, step, grid):
    """Load the scales of one block of k; past the end, those of the last block again."""
    step = gl.minimum(step, grid.steps - 1)
    return Pair(gl.load(places.a + step * places.step_a), gl.load(places.b + step * places.step_b))
