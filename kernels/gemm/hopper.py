"""Matrix products for Hopper in Gluon: one warp loads tiles by tensor maps, groups of four warps multiply them.

The operands go through a ring of stages in shared memory. A program computes one tile of the result after the other,
and the warp that loads runs ahead into the next one. A group never waits for the other one. Ragged extents are left to
the tensor maps, which load zeros past the ends and store nothing there.

The rows of a wgmma are 64, its columns 8 to 256. So the operand with few rows is the right one: with TRANSPOSED that is
`a`, and the tile that is multiplied is the transposed one of the result.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.gemm.epilogue import Epilogue, convert, finished

# A number in the arguments of warp_specialize would have no type.
GROUP_0, GROUP_1 = gl.constexpr(0), gl.constexpr(1)
NONE = gl.constexpr(0)
FIRST_STAGES = gl.constexpr(2)
"""Stages that are loaded before warps part."""
PIECES = gl.constexpr(2)
"""Buffers of a group for results on their way out, so that one is filled while the other is stored."""


class Work(NamedTuple):
    """What there is to do.

    steps: blocks of k. rows, columns: tiles of the left and of the right operand. band: rows of tiles that are walked
    together. m, n: extents of the result. more: blocks of what is added to each tile.
    """

    steps: gl.tensor
    rows: gl.tensor
    columns: gl.tensor
    band: gl.tensor
    m: gl.tensor
    n: gl.tensor
    more: gl.tensor


class Operands(NamedTuple):
    """Tensor maps of the left and of the right operand, and, or None, what is added: `More`.

    left_is_ready: whether launches that may still run leave the left operand as it is; None: nobody knows.
    """

    left: gl.tensor
    right: gl.tensor
    more: gl.tensor
    left_is_ready: gl.tensor = None


class More(NamedTuple):
    """Operands whose products are added to each tile: `parts` of them, each of `steps` blocks of k.

    left, right: their tensor maps; left_rows, right_rows: from one part to the next.
    """

    left: gl.tensor
    right: gl.tensor
    left_rows: gl.tensor
    right_rows: gl.tensor
    parts: gl.tensor
    steps: gl.tensor


class Ring(NamedTuple):
    """Shared memory: left [STAGES * GROUPS, rows of a group, BLOCK_K], right [STAGES, its rows, BLOCK_K],
    e [PIECES * GROUPS, block of e]; and for each stage two barriers: it has been filled; all groups have read it."""

    left: gl.shared_memory_descriptor
    right: gl.shared_memory_descriptor
    e: gl.shared_memory_descriptor
    filled: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


@gluon.jit
def make_ring(
    left, right, e, GROUPS: gl.constexpr, STAGES: gl.constexpr, BLOCKS: gl.constexpr = 1, LOADERS: gl.constexpr = 1
):  # fmt: skip
    """A ring for blocks of these tensor maps. BLOCKS: those of the left operand that a group has of a tile. LOADERS:
    warps that fill a stage."""
    ring = Ring(
        gl.allocate_shared_memory(left.dtype, [STAGES * GROUPS * BLOCKS] + left.block_shape, left.layout),  # noqa: RUF005
        gl.allocate_shared_memory(right.dtype, [STAGES] + right.block_shape, right.layout),  # noqa: RUF005
        gl.allocate_shared_memory(e.dtype, [PIECES * GROUPS] + e.block_shape, e.layout),  # noqa: RUF005
        mbarrier.allocate_mbarrier(batch=STAGES), mbarrier.allocate_mbarrier(batch=STAGES),
    )  # fmt: skip
    for stage in gl.static_range(STAGES):
        mbarrier.init(ring.filled.index(stage), count=LOADERS)
        mbarrier.init(ring.empty.index(stage), count=GROUPS)
    return ring


@gluon.jit
def tile_at(tile, work):
    """(row, column) of a tile: bands of rows, each walked column by column.

    A program begins with this, and a division takes as long as many instructions: so there is one where it is needed.
    """
    first = 0
    if work.rows > work.band:
        first = tile // (work.band * work.columns) * work.band
    place = tile - first * work.columns
    height = gl.minimum(work.band, work.rows - first)
    column = place // work.band
    if height < work.band:
        column = place // height
    return first + place - column * height, column


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    is_last = stage == STAGES - 1
    return gl.where(is_last, 0, stage + 1), gl.where(is_last, phase ^ 1, phase)


@gluon.jit
def load_first(operands, ring, work):
    """Begin to load a program's first tile before its warps part, which takes as long as some loads do.

    Returns of how many stages: the left blocks, if these need not wait for earlier launches, or else all blocks.
    """
    STAGES: gl.constexpr = ring.right.shape[0]
    BLOCK_K: gl.constexpr = ring.right.shape[2]
    left, right = operands.left, operands.right
    row, column = first_row_and_column(gl.program_id(0), ring, work)
    count = gl.to_tensor(0)
    if operands.left_is_ready is not None:
        if operands.left_is_ready:
            count = gl.minimum(STAGES, work.steps)
            for stage in range(count):
                load_left(left, right, row, stage * BLOCK_K, ring, stage)
    else:
        gdc_wait()
        gl.static_assert(FIRST_STAGES < STAGES)
        count = gl.minimum(FIRST_STAGES, work.steps)
        for stage in range(count):
            load_left(left, right, row, stage * BLOCK_K, ring, stage)
            load_block(right, column, stage * BLOCK_K, ring.filled.index(stage), ring.right.index(stage))
    return count


@gluon.jit
def load_tiles(operands, ring, work, loaded):
    """The warp that loads. loaded: what `load_first` returned.

    Nothing is stored before it, or `load_first`, has waited for earlier launches. The next launch may begin when all is
    loaded, and no earlier: its programs would take the first multiprocessors that are free, and if they are few,
    share the paths to memory unevenly.
    """
    BLOCK_K: gl.constexpr = ring.right.shape[2]
    left, right, more = operands.left, operands.right, operands.more
    stage, phase, first = 0, 1, 0
    if operands.left_is_ready is None:
        stage, first = loaded, loaded
    else:
        gdc_wait()
    for tile in range(gl.program_id(0), work.rows * work.columns, gl.num_programs(0)):
        row, column = first_row_and_column(tile, ring, work)
        for step in range(first, work.steps):
            if operands.left_is_ready is None:
                stage, phase = load_stage(left, right, row, column, step * BLOCK_K, ring, stage, phase)
            else:
                loads_left = (tile != gl.program_id(0)) | (step >= loaded)
                stage, phase = load_stage(left, right, row, column, step * BLOCK_K, ring, stage, phase, loads_left)
        first = 0
        if more is not None:
            for i in range(more.parts):
                left_row, right_row = row + i * more.left_rows, column + i * more.right_rows
                for step in range(more.steps):
                    stage, phase = load_stage(
                        more.left, more.right, left_row, right_row, step * BLOCK_K, ring, stage, phase
                    )  # fmt: skip
    gdc_launch_dependents()


@gluon.jit
def first_row_and_column(tile, ring, work):
    """Of the left and of the right operand, for a tile."""
    row, column = tile_at(tile, work)
    GROUPS: gl.constexpr = ring.left.shape[0] // ring.right.shape[0]
    return row * (GROUPS * ring.left.shape[1]), column * ring.right.shape[1]


@gluon.jit
def load_stage(left, right, row, column, k, ring, stage, phase, loads_left=True):
    """Load blocks that begin there, as soon as a stage is empty; the next stage, and its phase."""
    mbarrier.wait(ring.empty.index(stage), phase)
    if loads_left:
        load_left(left, right, row, k, ring, stage)
    load_block(right, column, k, ring.filled.index(stage), ring.right.index(stage))
    return next_stage(stage, phase, ring.right.shape[0])


@gluon.jit
def load_left(left, right, row, k, ring, stage):
    """Load the left blocks of a stage, which is full when the right one is there, too."""
    GROUPS: gl.constexpr = ring.left.shape[0] // ring.right.shape[0]
    filled = ring.filled.index(stage)
    mbarrier.expect(filled, GROUPS * left.nbytes_per_cta + right.nbytes_per_cta)
    for group in gl.static_range(GROUPS):
        load_block(left, row + group * ring.left.shape[1], k, filled, ring.left.index(stage * GROUPS + group))


@gluon.jit
def load_block(x, row, k, filled, buffer):
    """Load a block of [rows, k], or of the first of several of these."""
    if len(x.block_shape) == 3:
        tma.async_load(x, [0, row, k], filled, buffer.reshape([1, buffer.shape[0], buffer.shape[1]]))
    else:
        tma.async_load(x, [row, k], filled, buffer)


@gluon.jit
def halves(x):
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def store(e, x, row, column, ring, work, epilogue, FIRST: gl.constexpr, PIECE: gl.constexpr, TRANSPOSED: gl.constexpr):
    """Store what `epilogue` makes of x, a group's part of a tile, in pieces as large as `ring.e` has them.

    They go through the buffers from FIRST on in turns; x begins with piece number PIECE.
    """
    WIDTH: gl.constexpr = ring.e.shape[1] if TRANSPOSED else ring.e.shape[2]
    if x.shape[1] > WIDTH:
        left, right = halves(x)
        store(e, left, row, column, ring, work, epilogue, FIRST, PIECE, TRANSPOSED)
        NEXT: gl.constexpr = PIECE + left.shape[1] // WIDTH
        store(e, right, row, column + left.shape[1], ring, work, epilogue, FIRST, NEXT, TRANSPOSED)
    elif TRANSPOSED:
        store_piece(e, x.permute((1, 0)), column, row, ring.e.index(FIRST + PIECE % PIECES), work, epilogue)
    else:
        store_piece(e, x, row, column, ring.e.index(FIRST + PIECE % PIECES), work, epilogue)


@gluon.jit
def store_piece(e, x, row, column, buffer, work, epilogue):
    LAYOUT: gl.constexpr = x.type.layout
    rows = row + gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, LAYOUT))
    columns = column + gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    x = convert(finished(x, rows, columns, gl.program_id(1), work.m, work.n, e.dtype, epilogue), e.dtype)
    tma.store_wait(PIECES - 1)
    buffer.store(x)
    fence_async_shared()
    tma.async_store(e, [row, column], buffer)


@gluon.jit
def multiply_tiles(e, ring, work, epilogue, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr):
    """The warps that multiply: those of one group, which has its rows of each tile."""
    STAGES: gl.constexpr = ring.right.shape[0]
    GROUPS: gl.constexpr = ring.left.shape[0] // STAGES
    ROWS: gl.constexpr = ring.left.shape[1]
    COLUMNS: gl.constexpr = ring.right.shape[1]
    DTYPE: gl.constexpr = ring.left.dtype
    WIDTH: gl.constexpr = min(COLUMNS, 128) if DTYPE.is_int() else COLUMNS  # Triton has no wgmma of 256 with integers
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 256 // DTYPE.primitive_bitwidth])
    SUM: gl.constexpr = gl.int32 if DTYPE.is_int() else gl.float32
    PRECISION: gl.constexpr = "tf32"  # of float32, which wgmma takes as nothing else
    stage, phase, last = 0, 0, 0
    for tile in range(gl.program_id(0), work.rows * work.columns, gl.num_programs(0)):
        row, column = tile_at(tile, work)
        acc = gl.zeros([ROWS, COLUMNS], SUM, LAYOUT)
        for step in range(work.steps + work.more):
            mbarrier.wait(ring.filled.index(stage), phase)
            left, right = ring.left.index(stage * GROUPS + GROUP), ring.right.index(stage).permute((1, 0))
            acc = warpgroup_mma(left, right, acc, use_acc=step > 0, precision=PRECISION, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])  # for the product of the stage before
            mbarrier.arrive(ring.empty.index(last), pred=step > 0)
            last = stage
            stage, phase = next_stage(stage, phase, STAGES)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(ring.empty.index(last))
        at = (row * GROUPS + GROUP) * ROWS
        store(e, acc, at, column * COLUMNS, ring, work, epilogue, GROUP * PIECES, 0, TRANSPOSED)
    tma.store_wait(0)


@gluon.jit
def matmul_hopper(
    a, b, e, epilogue: Epilogue, m, n, k,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, TRANSPOSED: gl.constexpr, BAND: gl.constexpr,
    BYTES: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    b_is_ready=False,
):  # fmt: skip
    """e = what `epilogue` makes of a b. Grid: (tiles of e, or fewer); a tile is BLOCK_M x BLOCK_N.

    a, b, e: tensor maps of [m, k], [n, k], [m, n]; k > 0. a and b are of one dtype, of 16 bits, or float32, multiplied
    as tf32, or int8, summed in int32. GROUPS: 1 or 2 groups of four warps multiply, each with 64 rows of a tile or, if
    TRANSPOSED, 64 columns. So blocks are [BLOCK_M / GROUPS, BLOCK_K] and [BLOCK_N, BLOCK_K], or, if TRANSPOSED,
    [BLOCK_M, BLOCK_K] and [BLOCK_N / GROUPS, BLOCK_K], where BLOCK_K elements have that many BYTES; those of e are [64,
    width] or [height, 64]. b_is_ready: no launch that may still run writes to b. BAND: rows of tiles that are walked
    together, or columns. REGISTERS: of a thread that multiplies, if there are two groups.
    """
    gl.static_assert(a.block_shape[1] * a.dtype.primitive_bitwidth == 8 * BYTES)
    work = work_of(a, m, n, k, NONE, BLOCK_M, BLOCK_N, BAND, TRANSPOSED)
    operands = Operands(b, a, None, b_is_ready) if TRANSPOSED else Operands(a, b, None)
    multiply_maps(operands, e, work, epilogue, GROUPS, STAGES, REGISTERS, TRANSPOSED)


@gluon.jit
def work_of(
    a, m, n, k, more, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BAND: gl.constexpr, TRANSPOSED: gl.constexpr
):
    rows, columns = gl.cdiv(m, BLOCK_M), gl.cdiv(n, BLOCK_N)
    steps = gl.cdiv(k, a.block_shape[1])
    return Work(steps, columns if TRANSPOSED else rows, rows if TRANSPOSED else columns, BAND, m, n, more)


@gluon.jit
def multiply_maps(
    operands, e, work, epilogue, GROUPS: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The groups of warps."""
    ring = make_ring(operands.left, operands.right, e, GROUPS, STAGES)
    loaded = load_first(operands, ring, work)
    if GROUPS == 2:
        gl.warp_specialize([
            (multiply_tiles, (e, ring, work, epilogue, TRANSPOSED, GROUP_0)),
            (multiply_tiles, (e, ring, work, epilogue, TRANSPOSED, GROUP_1)),
            (load_tiles, (operands, ring, work, loaded)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.static_assert(GROUPS == 1)
        gl.warp_specialize([
            (multiply_tiles, (e, ring, work, epilogue, TRANSPOSED, GROUP_0)),
            (load_tiles, (operands, ring, work, loaded)),
        ], [1], [24])  # fmt: skip
