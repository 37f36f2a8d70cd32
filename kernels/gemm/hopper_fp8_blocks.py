"""Products of float8 for Hopper in Gluon, with scales for blocks of 128 of k: of a by row or rows, of b by 128 columns.

Sums of 128 of k are made by the matrix units, scaled, and added in fp32 registers. The warps that multiply copy scales
to a ring of their own in shared memory, AHEAD blocks of k before they use them, one element a thread: so scales may lie
in any way.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernels.common.tensors import Matrix
from kernels.gemm.hopper import GROUP_0, GROUP_1, Work, load_tiles, make_ring, next_stage, tile_at, tiles_of_program
from kernels.gemm.hopper_fp8 import ROWS, spread, store_block

SCALED = gl.constexpr(128)
"""Elements of k, and columns of b, that share a scale."""
AHEAD = gl.constexpr(3)
SLOTS = gl.constexpr(8)
"""Of a group's ring of scales: more than twice AHEAD, as the end of one tile and the start of the next are there."""


class Scales(NamedTuple):
    """fp32: a [cdiv(m, share), cdiv(k, 128)], b [cdiv(k, 128), cdiv(n, 128)]."""

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
        work = Work(steps, gl.cdiv(n, BLOCK_N), gl.cdiv(m, BLOCK_M), BAND, m, n)
        multiply_maps(b, a, e, scales, work, BLOCK_M, GROUPS, STAGES, REGISTERS, TRANSPOSED)
    else:
        gl.static_assert(BLOCK_M == ROWS * GROUPS and BLOCK_N == SCALED)
        work = Work(steps, gl.cdiv(m, BLOCK_M), gl.cdiv(n, BLOCK_N), BAND, m, n)
        multiply_maps(a, b, e, scales, work, BLOCK_M, GROUPS, STAGES, REGISTERS, TRANSPOSED)


@gluon.jit
def multiply_maps(
    left, right, e, scales, work, BLOCK_M: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    HEIGHT: gl.constexpr = right.block_shape[0] if TRANSPOSED else ROWS  # rows of a that a group has
    ring = make_ring(left, right, e, GROUPS, STAGES)
    slots = gl.allocate_shared_memory(
        gl.float32, [GROUPS * SLOTS, 2 * HEIGHT], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )  # fmt: skip
    if GROUPS == 2:
        gl.warp_specialize([
            (multiply_tiles, (e, scales, ring, slots, work, TRANSPOSED, GROUP_0)),
            (multiply_tiles, (e, scales, ring, slots, work, TRANSPOSED, GROUP_1)),
            (load_tiles, (left, right, ring, work)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.static_assert(GROUPS == 1)
        gl.warp_specialize([
            (multiply_tiles, (e, scales, ring, slots, work, TRANSPOSED, GROUP_0)),
            (load_tiles, (left, right, ring, work)),
        ], [1], [24])  # fmt: skip


@gluon.jit
def multiply_tiles(e, scales, ring, slots, work, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr):
    """The warps that multiply: those of one group, which has a block of each tile.

    While a group scales and adds, the other one's products keep the matrix units at work.
    """
    STAGES: gl.constexpr = ring.right.shape[0]
    GROUPS: gl.constexpr = ring.left.shape[0] // STAGES
    COLUMNS: gl.constexpr = ring.right.shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 32])
    HEIGHT: gl.constexpr = slots.shape[1] // 2
    ALONG: gl.constexpr = gl.SliceLayout(0 if TRANSPOSED else 1, LAYOUT)
    stage, phase, slot = 0, 0, 0
    places = scales_of_tile(scales, 0, work, HEIGHT, GROUPS, TRANSPOSED, GROUP)
    copy_first_scales(places, slots, slot, work, GROUP)
    for number in range(tiles_of_program(work)):
        acc = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
        async_copy.wait_group(AHEAD - 1)
        for step in range(work.steps):
            zero = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
            mbarrier.wait(ring.filled.index(stage), phase)
            left, right = ring.left.index(stage * GROUPS + GROUP), ring.right.index(stage).permute((1, 0))
            part = warpgroup_mma(left, right, zero, use_acc=False, is_async=True)
            # All that can be is done while the product is being made: the other group's waits for what follows it.
            copy_scales(places, slots, slot + AHEAD, step + AHEAD, work, GROUP)
            both = slots.index(GROUP * SLOTS + slot % SLOTS)
            factors = both.slice(0, HEIGHT).load(ALONG) * both.slice(HEIGHT, 1).load(ALONG)
            async_copy.wait_group(AHEAD - 1)  # for those of the next step
            part = warpgroup_mma_wait(0, deps=[part])
            mbarrier.arrive(ring.empty.index(stage))
            acc = acc + part * (factors[None, :] if TRANSPOSED else factors[:, None])
            stage, phase = next_stage(stage, phase, STAGES)
            slot += 1
        slot += AHEAD
        places = scales_of_tile(scales, number + 1, work, HEIGHT, GROUPS, TRANSPOSED, GROUP)
        copy_first_scales(places, slots, slot, work, GROUP)
        tile_row, tile_column = tile_at(number, work)
        row, column = (tile_row * GROUPS + GROUP) * ROWS, tile_column * COLUMNS
        store_block(e, acc, row, column, ring, work, TRANSPOSED, GROUP)
    async_copy.wait_group(0)
    tma.store_wait(0)


# Scales


class Places(NamedTuple):
    """Addresses of a tile's scales for the first block of k, those of a and then those of b, and what leads from one
    block of k to the next."""

    first: gl.tensor
    step: gl.tensor


@gluon.jit
def scales_of_tile(
    scales, number, work, HEIGHT: gl.constexpr, GROUPS: gl.constexpr, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """Places for a group's block of this program's tile of that number; past the last tile, of its."""
    tile_row, tile_column = tile_at(gl.minimum(number, tiles_of_program(work) - 1), work)
    row = tile_column * HEIGHT if TRANSPOSED else (tile_row * GROUPS + GROUP) * HEIGHT
    column = (tile_row * GROUPS + GROUP) * ROWS if TRANSPOSED else tile_column * SCALED
    at = gl.arange(0, 2 * HEIGHT, layout=spread(2 * HEIGHT))
    of_a = gl.minimum(row + at % HEIGHT, work.m - 1) // scales.share * scales.a.stride_rows
    of_b = gl.minimum(column, work.n - 1) // SCALED * scales.b.stride_columns
    return Places(
        gl.where(at < HEIGHT, scales.a.ptr + of_a, scales.b.ptr + of_b),
        gl.where(at < HEIGHT, scales.a.stride_columns, scales.b.stride_rows),
    )


@gluon.jit
def copy_first_scales(places, slots, slot, work, GROUP: gl.constexpr):
    for step in gl.static_range(AHEAD):
        copy_scales(places, slots, slot + step, step, work, GROUP)


@gluon.jit
def copy_scales(places, slots, slot, step, work, GROUP: gl.constexpr):
    """Begin to copy the scales for a block of k; past the last one, its."""
    at = places.first + gl.minimum(step, work.steps - 1) * places.step
    async_copy.async_load(slots.index(GROUP * SLOTS + slot % SLOTS), at)
    async_copy.commit_group()
