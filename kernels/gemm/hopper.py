"""Matrix products for Hopper in Gluon: one warp loads tiles by tensor maps, one or two warpgroups multiply them.

The operands go through a ring of stages in shared memory. A program computes one tile of the result after the other,
and the warp that loads runs ahead into the next one. A warpgroup never waits for the other one. Ragged extents are left
to the tensor maps, which load zeros past the ends and store nothing there.

A wgmma has 64 rows and 8 to 256 columns. So the operand with few rows is the right one: with TRANSPOSED that is `a`,
and the tile that is multiplied is that of the transposed result.

Blocks in shared memory are [rows, BLOCK_K]. Those of an operand that is MN-major, contiguous across k, lie there as
[BLOCK_K, rows], which wgmma reads transposed; the layout says so.
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

from kernels.common.hopper import GROUP_0, GROUP_1, accumulator_layout, halves, make_barriers, next_stage
from kernels.common.tensors import Matrix
from kernels.gemm.copy import stored_by_maps
from kernels.gemm.epilogue import Epilogue, convert, finished

NONE = gl.constexpr(0)
FIRST_STAGES = gl.constexpr(2)
"""Stages that are loaded before the warps part."""
PIECES = gl.constexpr(2)
"""Buffers of a warpgroup for results on their way out, so that one is ready while the other is stored."""


class TileGrid(NamedTuple):
    """The tiles of a product.

    Attributes:
        steps: blocks of k.
        rows, columns: tiles of the left and of the right operand.
        band: rows of tiles that are walked together.
        m, n: extents of the result.
        more: blocks of k of the operands in `More`.
    """

    steps: gl.tensor
    rows: gl.tensor
    columns: gl.tensor
    band: gl.tensor
    m: gl.tensor
    n: gl.tensor
    more: gl.tensor


class Operands(NamedTuple):
    """Tensor maps of the left and of the right operand; more: a `More`, or None.

    left_is_ready: launches that may still run do not write to the left operand; None: not known.
    """

    left: gl.tensor
    right: gl.tensor
    more: gl.tensor
    left_is_ready: gl.tensor = None


class More(NamedTuple):
    """Operands whose products are added to each tile, in `parts` parts of `steps` blocks of k.

    left, right: tensor maps; left_rows, right_rows: rows from one part to the next.
    """

    left: gl.tensor
    right: gl.tensor
    left_rows: gl.tensor
    right_rows: gl.tensor
    parts: gl.tensor
    steps: gl.tensor


class Stages(NamedTuple):
    """Shared memory: a ring of stages, each with a `ready` and a `free` barrier, and buffers for results.

    left: [STAGES * GROUPS, rows of a group, BLOCK_K]; right: [STAGES, rows, BLOCK_K]; e: [PIECES * GROUPS, block of e].
    """

    left: gl.shared_memory_descriptor
    right: gl.shared_memory_descriptor
    e: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor


@gluon.constexpr_function
def buffers_shape(count, block, is_mn):
    return [count, *(reversed(block) if is_mn else block)]


@gluon.constexpr_function
def buffers_layout(layout, is_mn):
    """Return the layout of [rows, BLOCK_K] for that of a tensor map."""
    return gl.NVMMASharedLayout(layout.swizzle_byte_width, layout.element_bitwidth, layout.rank, is_mn)


@gluon.jit
def make_buffers(x, COUNT: gl.constexpr, IS_MN: gl.constexpr):
    """Allocate buffers [COUNT, rows, BLOCK_K] for blocks of a tensor map of [rows, k], or of [k, rows] if IS_MN."""
    SHAPE: gl.constexpr = buffers_shape(COUNT, x.block_shape, IS_MN)
    return gl.allocate_shared_memory(x.dtype, SHAPE, buffers_layout(x.layout, IS_MN))


@gluon.jit
def make_stages(
    left, right, e, GROUPS: gl.constexpr, STAGES: gl.constexpr, BLOCKS: gl.constexpr = 1, LOADERS: gl.constexpr = 1,
    LEFT_IS_MN: gl.constexpr = False, RIGHT_IS_MN: gl.constexpr = False,
):  # fmt: skip
    """Allocate Stages for blocks of these tensor maps. BLOCKS: blocks of the left operand in a group's part of a tile.
    LOADERS: warps that fill a stage. LEFT_IS_MN, RIGHT_IS_MN: the map is of [k, rows]."""
    left_buffers = make_buffers(left, STAGES * GROUPS * BLOCKS, LEFT_IS_MN)
    right_buffers = make_buffers(right, STAGES, RIGHT_IS_MN)
    e_buffers = gl.allocate_shared_memory(e.dtype, [PIECES * GROUPS] + e.block_shape, e.layout)  # noqa: RUF005
    ready, free = make_barriers(STAGES, LOADERS, GROUPS)
    return Stages(left_buffers, right_buffers, e_buffers, ready, free)


@gluon.jit
def tile_at(tile, grid):
    """Return the (row, column) of a tile, in bands of rows, each walked column by column.

    A program begins with this, and divisions are slow, so each is made only where it is needed.
    """
    first = 0
    if grid.rows > grid.band:
        first = tile // (grid.band * grid.columns) * grid.band
    place = tile - first * grid.columns
    height = gl.minimum(grid.band, grid.rows - first)
    column = place // grid.band
    if height < grid.band:
        column = place // height
    return first + place - column * height, column


@gluon.jit
def load_first(operands, stages, grid):
    """Begin to load a program's first tile before its warps part, which takes as long as some loads do.

    Returns the number of stages loaded: their left blocks, if these need not wait for earlier launches, else all.
    """
    STAGES: gl.constexpr = stages.right.shape[0]
    BLOCK_K: gl.constexpr = stages.right.shape[2]
    left, right = operands.left, operands.right
    row, column = first_row_and_column(gl.program_id(0), stages, grid)
    count = gl.to_tensor(0)
    if operands.left_is_ready is not None:
        if operands.left_is_ready:
            count = gl.minimum(STAGES, grid.steps)
            for stage in range(count):
                load_left(left, right, row, stage * BLOCK_K, stages, stage)
    else:
        gdc_wait()
        gl.static_assert(FIRST_STAGES < STAGES)
        count = gl.minimum(FIRST_STAGES, grid.steps)
        for stage in range(count):
            load_left(left, right, row, stage * BLOCK_K, stages, stage)
            load_block(right, column, stage * BLOCK_K, stages.ready.index(stage), stages.right.index(stage))
    return count


@gluon.jit
def load_tiles(operands, stages, grid, loaded):
    """Load all tiles of a program. loaded: the result of `load_first`.

    Nothing is stored before this, or `load_first`, has waited for earlier launches. The next launch may begin when all
    is loaded, and no earlier: its programs would take the first multiprocessors that are free, and, if they are few,
    share the paths to memory unevenly.
    """
    BLOCK_K: gl.constexpr = stages.right.shape[2]
    left, right, more = operands.left, operands.right, operands.more
    stage, phase, first = 0, 1, 0
    if operands.left_is_ready is None:
        stage, first = loaded, loaded
    else:
        gdc_wait()
    for tile in range(gl.program_id(0), grid.rows * grid.columns, gl.num_programs(0)):
        row, column = first_row_and_column(tile, stages, grid)
        for step in range(first, grid.steps):
            if operands.left_is_ready is None:
                stage, phase = load_stage(left, right, row, column, step * BLOCK_K, stages, stage, phase)
            else:
                loads_left = (tile != gl.program_id(0)) | (step >= loaded)
                stage, phase = load_stage(left, right, row, column, step * BLOCK_K, stages, stage, phase, loads_left)
        first = 0
        if more is not None:
            for i in range(more.parts):
                left_row, right_row = row + i * more.left_rows, column + i * more.right_rows
                for step in range(more.steps):
                    stage, phase = load_stage(
                        more.left, more.right, left_row, right_row, step * BLOCK_K, stages, stage, phase
                    )  # fmt: skip
    gdc_launch_dependents()


@gluon.jit
def first_row_and_column(tile, stages, grid):
    """Return the first rows of the left and of the right operand for a tile."""
    row, column = tile_at(tile, grid)
    GROUPS: gl.constexpr = stages.left.shape[0] // stages.right.shape[0]
    return row * (GROUPS * stages.left.shape[1]), column * stages.right.shape[1]


@gluon.jit
def load_stage(left, right, row, column, k, stages, stage, phase, loads_left=True):
    """Load blocks from these rows and k on, once the stage is free; return the next (stage, phase)."""
    mbarrier.wait(stages.free.index(stage), phase)
    if loads_left:
        load_left(left, right, row, k, stages, stage)
    load_block(right, column, k, stages.ready.index(stage), stages.right.index(stage))
    return next_stage(stage, phase, stages.right.shape[0])


@gluon.jit
def load_left(left, right, row, k, stages, stage):
    """Load the left blocks of a stage. Its barrier expects the right block, too."""
    GROUPS: gl.constexpr = stages.left.shape[0] // stages.right.shape[0]
    ready = stages.ready.index(stage)
    mbarrier.expect(ready, GROUPS * left.nbytes_per_cta + right.nbytes_per_cta)
    for group in gl.static_range(GROUPS):
        load_block(left, row + group * stages.left.shape[1], k, ready, stages.left.index(stage * GROUPS + group))


@gluon.jit
def load_block(x, row, k, ready, buffer):
    """Load a block of a map of [rows, k], of [k, rows] as the buffer's layout has it, or of the first of several
    matrices."""
    if buffer.type.layout.transposed:
        tma.async_load(x, [k, row], ready, buffer.permute((1, 0)))
    elif len(x.block_shape) == 3:
        tma.async_load(x, [0, row, k], ready, buffer.reshape([1, buffer.shape[0], buffer.shape[1]]))
    else:
        tma.async_load(x, [row, k], ready, buffer)


@gluon.jit
def store(
    e, x, row, column, stages, grid, epilogue, FIRST: gl.constexpr, PIECE: gl.constexpr, TRANSPOSED: gl.constexpr
):
    """Apply the epilogue to x, a group's part of a tile, and store it in pieces as large as the buffers in `stages.e`.

    Pieces take turns through the buffers from FIRST on; x begins with piece PIECE.
    """
    WIDTH: gl.constexpr = stages.e.shape[1] if TRANSPOSED else stages.e.shape[2]
    if x.shape[1] > WIDTH:
        left, right = halves(x)
        store(e, left, row, column, stages, grid, epilogue, FIRST, PIECE, TRANSPOSED)
        NEXT: gl.constexpr = PIECE + left.shape[1] // WIDTH
        store(e, right, row, column + left.shape[1], stages, grid, epilogue, FIRST, NEXT, TRANSPOSED)
    elif TRANSPOSED:
        store_piece(e, x.permute((1, 0)), column, row, stages.e.index(FIRST + PIECE % PIECES), grid, epilogue)
    else:
        store_piece(e, x, row, column, stages.e.index(FIRST + PIECE % PIECES), grid, epilogue)


@gluon.jit
def store_piece(e, x, row, column, buffer, grid, epilogue):
    LAYOUT: gl.constexpr = x.type.layout
    rows = row + gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, LAYOUT))
    columns = column + gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    x = convert(finished(x, rows, columns, gl.program_id(1), grid.m, grid.n, e.dtype, epilogue), e.dtype)
    tma.store_wait(PIECES - 1)
    buffer.store(x)
    fence_async_shared()
    tma.async_store(e, [row, column], buffer)


@gluon.jit
def multiply_tiles(e, stages, grid, epilogue, TRANSPOSED: gl.constexpr, GROUP: gl.constexpr):
    """Multiply warpgroup GROUP's rows of all tiles of a program."""
    STAGES: gl.constexpr = stages.right.shape[0]
    GROUPS: gl.constexpr = stages.left.shape[0] // STAGES
    ROWS: gl.constexpr = stages.left.shape[1]
    COLUMNS: gl.constexpr = stages.right.shape[1]
    DTYPE: gl.constexpr = stages.left.dtype
    WIDTH: gl.constexpr = min(COLUMNS, 128) if DTYPE.is_int() else COLUMNS  # Triton has no wgmma of 256 with integers
    LAYOUT: gl.constexpr = accumulator_layout(WIDTH, DTYPE)
    SUM: gl.constexpr = gl.int32 if DTYPE.is_int() else gl.float32
    PRECISION: gl.constexpr = "tf32"  # of float32 operands: wgmma knows no other
    stage, phase, last = 0, 0, 0
    for tile in range(gl.program_id(0), grid.rows * grid.columns, gl.num_programs(0)):
        row, column = tile_at(tile, grid)
        acc = gl.zeros([ROWS, COLUMNS], SUM, LAYOUT)
        for step in range(grid.steps + grid.more):
            mbarrier.wait(stages.ready.index(stage), phase)
            left, right = stages.left.index(stage * GROUPS + GROUP), stages.right.index(stage).permute((1, 0))
            acc = warpgroup_mma(left, right, acc, use_acc=step > 0, precision=PRECISION, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])  # for the product of the stage before
            mbarrier.arrive(stages.free.index(last), pred=step > 0)
            last = stage
            stage, phase = next_stage(stage, phase, STAGES)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(stages.free.index(last))
        at = (row * GROUPS + GROUP) * ROWS
        store(e, acc, at, column * COLUMNS, stages, grid, epilogue, GROUP * PIECES, 0, TRANSPOSED)
    tma.store_wait(0)


@gluon.jit
def matmul_hopper(
    a, b, e, epilogue: Epilogue, m, n, k,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, TRANSPOSED: gl.constexpr, BAND: gl.constexpr,
    BYTES: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    b_is_ready=False, B_ROWS: gl.constexpr = False,
):  # fmt: skip
    """e = epilogue(a b). Grid: (tiles of e, or fewer); a tile is BLOCK_M x BLOCK_N.

    a, b, e: tensor maps of [m, k], [n, k] or, with B_ROWS, [k, n], and [m, n]; k > 0. a and b are of one dtype, of 16
    bits, or, without B_ROWS, float32, multiplied as tf32, or int8, summed in int32. GROUPS: 1 or 2 groups of four warps
    multiply, each with 64 rows of a tile or, if TRANSPOSED, 64 columns. So blocks are [BLOCK_M / GROUPS, BLOCK_K] and
    [BLOCK_N, BLOCK_K], or, if TRANSPOSED, [BLOCK_M, BLOCK_K] and [BLOCK_N / GROUPS, BLOCK_K], where BLOCK_K elements
    take BYTES bytes; those of a row-major b are [BLOCK_K, BLOCK_N], or [BLOCK_K, BLOCK_N / GROUPS]. Blocks of e are
    [64, width] or [height, 64]. b_is_ready: no launch that may still run writes to b. BAND: rows of tiles that are
    walked together, or columns. REGISTERS: registers of a thread that multiplies, if there are two groups.
    """
    gl.static_assert(a.block_shape[1] * a.dtype.primitive_bitwidth == 8 * BYTES)
    grid = grid_of(a, m, n, k, NONE, BLOCK_M, BLOCK_N, BAND, TRANSPOSED)
    operands = Operands(b, a, None, b_is_ready) if TRANSPOSED else Operands(a, b, None)
    multiply_maps(operands, e, grid, epilogue, GROUPS, STAGES, REGISTERS, TRANSPOSED, B_ROWS)


@gluon.jit
def grid_of(
    a, m, n, k, more, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BAND: gl.constexpr, TRANSPOSED: gl.constexpr
):
    rows, columns = gl.cdiv(m, BLOCK_M), gl.cdiv(n, BLOCK_N)
    steps = gl.cdiv(k, a.block_shape[1])
    return TileGrid(steps, columns if TRANSPOSED else rows, rows if TRANSPOSED else columns, BAND, m, n, more)


@gluon.jit
def multiply_maps(
    operands, e, grid, epilogue, GROUPS: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    TRANSPOSED: gl.constexpr, B_ROWS: gl.constexpr = False,
):  # fmt: skip
    """Allocate stages, load the first of them, and start the specialised warps."""
    stages = make_stages(
        operands.left, operands.right, e, GROUPS, STAGES,
        LEFT_IS_MN=B_ROWS and TRANSPOSED, RIGHT_IS_MN=B_ROWS and not TRANSPOSED,
    )  # fmt: skip
    loaded = load_first(operands, stages, grid)
    if GROUPS == 2:
        gl.warp_specialize([
            (multiply_tiles, (e, stages, grid, epilogue, TRANSPOSED, GROUP_0)),
            (multiply_tiles, (e, stages, grid, epilogue, TRANSPOSED, GROUP_1)),
            (load_tiles, (operands, stages, grid, loaded)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.static_assert(GROUPS == 1)
        gl.warp_specialize([
            (multiply_tiles, (e, stages, grid, epilogue, TRANSPOSED, GROUP_0)),
            (load_tiles, (operands, stages, grid, loaded)),
        ], [1], [24])  # fmt: skip


@gluon.jit
def copied_matmul_hopper(
    a, b, e: Matrix, copy_of_e, epilogue: Epilogue, m, n, k, padded_n,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, BAND: gl.constexpr, BYTES: gl.constexpr,
    STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """e = epilogue(a b) of operands that were copied: a is [m, k], and b is [n, k], without gaps, and k * 2 a multiple
    of 16 bytes. If e has rows that a tensor map cannot have, copy_of_e, with rows of padded_n columns, is written in
    its stead.

    Grid, tiles and constexprs are those of `matmul_hopper`.
    """
    DTYPE: gl.constexpr = a.dtype.element_ty
    BLOCK_K: gl.constexpr = 8 * BYTES // DTYPE.primitive_bitwidth
    gdc_wait()  # maps are written to memory, where those of an earlier launch may still be in use
    in_place = stored_by_maps(e.ptr, e.stride_rows)
    at = gl.where(in_place, e.ptr.to(gl.int64), copy_of_e.to(gl.int64)).to(e.ptr.dtype)  # known to be aligned
    stride = gl.where(in_place, e.stride_rows, padded_n)
    a_map = matrix_map(a, m, k, k, [BLOCK_M // GROUPS, BLOCK_K])
    b_map = matrix_map(b, n, k, k, [BLOCK_N, BLOCK_K])
    e_map = matrix_map(at, m, n, stride, [64, 128 * 8 // DTYPE.primitive_bitwidth])
    grid = grid_of(a_map, m, n, k, NONE, BLOCK_M, BLOCK_N, BAND, False)
    multiply_maps(Operands(a_map, b_map, None), e_map, grid, epilogue, GROUPS, STAGES, REGISTERS, False)


@gluon.jit
def matrix_map(x, rows, columns, stride, BLOCK: gl.constexpr):
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for(BLOCK, x.dtype.element_ty)
    return tma.make_tensor_descriptor(x, [rows, columns], [stride, 1], BLOCK, LAYOUT)
