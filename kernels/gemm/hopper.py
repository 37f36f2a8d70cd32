"""Matrix products for Hopper in Gluon: one warp loads tiles by tensor maps, two groups of four warps multiply them.

The operands go through a ring of stages in shared memory. A program computes one tile of the result after the other,
and the warp that loads runs ahead into the next one. A group never waits for the other one. Ragged extents are left to
the tensor maps, which load zeros past the ends and store nothing there.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

GROUPS = gl.constexpr(2)
"""Groups of four warps that multiply; each has the rows of one wgmma, 64."""
# A number in the arguments of warp_specialize would have no type.
GROUP_0, GROUP_1 = gl.constexpr(0), gl.constexpr(1)
PIECES = gl.constexpr(2)
"""Buffers of a group for results on their way out, so that one is filled while the other is stored."""


class Work(NamedTuple):
    """What there is to do.

    steps: blocks of k. rows, columns: tiles of the result. band: rows of tiles that are walked together.
    """

    steps: gl.tensor
    rows: gl.tensor
    columns: gl.tensor
    band: gl.tensor


class Ring(NamedTuple):
    """Shared memory: a [STAGES * GROUPS, 64, BLOCK_K], b [STAGES, BLOCK_N, BLOCK_K], e [PIECES * GROUPS, 64, width];
    and for each stage two barriers: it has been filled; it has been read by all groups."""

    a: gl.shared_memory_descriptor
    b: gl.shared_memory_descriptor
    e: gl.shared_memory_descriptor
    filled: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


@gluon.jit
def tiles_of_program(work):
    return gl.cdiv(work.rows * work.columns - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def tile_at(number, work):
    """(row, column) of this program's tile of that number: bands of rows, each walked column by column."""
    tile = gl.program_id(0) + number * gl.num_programs(0)
    first = tile // (work.band * work.columns) * work.band
    height = gl.minimum(work.band, work.rows - first)
    place = tile - first * work.columns
    return first + place % height, place // height


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    is_last = stage == STAGES - 1
    return gl.where(is_last, 0, stage + 1), gl.where(is_last, phase ^ 1, phase)


@gluon.jit
def load_tiles(a, b, ring, work):
    """The warp that loads."""
    STAGES: gl.constexpr = ring.b.shape[0]
    ROWS: gl.constexpr = ring.a.shape[1]
    BLOCK_N: gl.constexpr = ring.b.shape[1]
    BLOCK_K: gl.constexpr = ring.b.shape[2]
    stage, phase = 0, 1
    for number in range(tiles_of_program(work)):
        row, column = tile_at(number, work)
        for step in range(work.steps):
            mbarrier.wait(ring.empty.index(stage), phase)
            filled = ring.filled.index(stage)
            mbarrier.expect(filled, GROUPS * a.nbytes_per_cta + b.nbytes_per_cta)
            for group in gl.static_range(GROUPS):
                at = [(row * GROUPS + group) * ROWS, step * BLOCK_K]
                tma.async_load(a, at, filled, ring.a.index(stage * GROUPS + group))
            tma.async_load(b, [column * BLOCK_N, step * BLOCK_K], filled, ring.b.index(stage))
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def halves(x):
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def store(e, x, row, column, ring, FIRST: gl.constexpr, PIECE: gl.constexpr):
    """Store x in pieces as wide as those of `ring.e`, from FIRST on in turns; this is piece number PIECE of them."""
    WIDTH: gl.constexpr = ring.e.shape[2]
    if x.shape[1] > WIDTH:
        left, right = halves(x)
        store(e, left, row, column, ring, FIRST, PIECE)
        store(e, right, row, column + left.shape[1], ring, FIRST, PIECE + left.shape[1] // WIDTH)
    else:
        buffer = ring.e.index(FIRST + PIECE % PIECES)
        tma.store_wait(PIECES - 1)
        buffer.store(x.to(e.dtype))
        fence_async_shared()
        tma.async_store(e, [row, column], buffer)


@gluon.jit
def multiply_tiles(e, alpha, ring, work, GROUP: gl.constexpr):
    """The warps that multiply: those of one group, which has 64 x BLOCK_N of each tile."""
    STAGES: gl.constexpr = ring.b.shape[0]
    ROWS: gl.constexpr = ring.a.shape[1]
    BLOCK_N: gl.constexpr = ring.b.shape[1]
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    stage, phase, last = 0, 0, 0
    for number in range(tiles_of_program(work)):
        row, column = tile_at(number, work)
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, ACC)
        for step in range(work.steps):
            mbarrier.wait(ring.filled.index(stage), phase)
            left, right = ring.a.index(stage * GROUPS + GROUP), ring.b.index(stage).permute((1, 0))
            acc = warpgroup_mma(left, right, acc, use_acc=step > 0, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])  # for the product of the stage before
            mbarrier.arrive(ring.empty.index(last), pred=step > 0)
            last = stage
            stage, phase = next_stage(stage, phase, STAGES)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(ring.empty.index(last))
        store(e, acc * alpha, (row * GROUPS + GROUP) * ROWS, column * BLOCK_N, ring, GROUP * PIECES, 0)
    tma.store_wait(0)


@gluon.jit
def matmul_hopper(
    a, b, e, alpha, m, n, k, BAND: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """e = alpha a b, summed in fp32. Grid: (tiles of e, or fewer); a tile is 128 rows by the block of b.

    a, b, e: tensor maps of [m, k], [n, k], [m, n], of one 16-bit dtype, in blocks [64, BLOCK_K], [BLOCK_N, BLOCK_K]
    and [64, 64]; k > 0. BAND: rows of tiles that are walked together. REGISTERS: of a thread that multiplies.
    """
    ROWS: gl.constexpr = a.block_shape[0]
    BLOCK_N: gl.constexpr = b.block_shape[0]
    BLOCK_K: gl.constexpr = b.block_shape[1]
    work = Work(gl.cdiv(k, BLOCK_K), gl.cdiv(m, ROWS * GROUPS), gl.cdiv(n, BLOCK_N), BAND)
    ring = Ring(
        gl.allocate_shared_memory(a.dtype, [STAGES * GROUPS] + a.block_shape, a.layout),  # noqa: RUF005
        gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_shape, b.layout),  # noqa: RUF005
        gl.allocate_shared_memory(e.dtype, [PIECES * GROUPS] + e.block_shape, e.layout),  # noqa: RUF005
        mbarrier.allocate_mbarrier(batch=STAGES), mbarrier.allocate_mbarrier(batch=STAGES),
    )  # fmt: skip
    for stage in gl.static_range(STAGES):
        mbarrier.init(ring.filled.index(stage), count=1)
        mbarrier.init(ring.empty.index(stage), count=GROUPS)
    gl.warp_specialize([
        (multiply_tiles, (e, alpha, ring, work, GROUP_0)),
        (multiply_tiles, (e, alpha, ring, work, GROUP_1)),
        (load_tiles, (a, b, ring, work)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip
