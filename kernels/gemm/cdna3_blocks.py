"""Products of float8 with scales of blocks, for CDNA 3 in Gluon: built like `cdna3`, with the sum of each step scaled.

A step multiplies 128 of k, which share their scales. The product of two blocks begins at zero in each step, and vector
instructions add it, times its scales, to the sums while the matrix pipe has later products. All wavefronts are side by
side along m, so that scales of b are scalars. Products go column by column. LDS has one step. Registers have the next
one, which is being loaded, all blocks of a, and the blocks of b that are still to be multiplied:

    multiply columns | read the remaining blocks of b
    barrier: all wavefronts have read the step
    multiply columns | write the next step | load its scales
    barrier
    multiply columns | read the next step's blocks of a and its first blocks of b

The next but one step is loaded all the while.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.cdna import (
    STEP_BYTES,
    appended,
    lane_elements,
    load_columns,
    mfma_layout,
    replaced,
    shared_layout,
)
from kernels.common.tensors import Matrix, transposed
from kernels.gemm.cdna3 import (
    action_at,
    actions_at,
    block_at,
    is_early,
    moved,
    offsets_of,
    piece_of,
    place_of,
    run_of,
    store_rows,
    write_block,
)
from kernels.gemm.order import tile_of

AHEAD = gl.constexpr(2)
"""Blocks of b that are read before the step that multiplies them."""
LAG = gl.constexpr(2)
"""Products between a product and its addition to the sums."""


class Operands(NamedTuple):
    """Operands of a tile.

    a, b: addresses of the matrices; offsets: of the blocks of a, then of b; scale_a, scale_b: `Matrix`; scale_rows: of
    the rows of each block of a, in elements from a block of k's first scale; scale_columns: of each pair of blocks of
    b; tiles_a, tiles_b: the blocks in LDS.
    """

    a: gl.tensor
    b: gl.tensor
    offsets: gl.tuple
    scale_a: gl.tuple
    scale_b: gl.tuple
    scale_rows: gl.tuple
    scale_columns: gl.tuple
    tiles_a: gl.shared_memory_descriptor
    tiles_b: gl.shared_memory_descriptor


@gluon.constexpr_function
def scaled_plan(ROWS, COLUMNS):
    """Return what is issued before each of the ROWS COLUMNS products of a step, as [(action, block), ...].

    Blocks are those of a, then those of b. Actions: `read`, of this step; `barrier`; `write`, `load_scales`,
    `read_next`, `load`, of the next step; `load_early`, of the step after that.
    """
    products, blocks = ROWS * COLUMNS, ROWS + COLUMNS
    rest = COLUMNS - AHEAD
    have_read, have_written = round(0.36 * products), round(0.68 * products)
    plan = [[] for _ in range(products)]
    for column in range(rest):
        plan[column * have_read // rest].append(("read", ROWS + AHEAD + column))
    plan[have_read] += [("barrier", 0), ("load_scales", 0)]
    for block in range(blocks):
        plan[have_read + block * (have_written - have_read) // blocks].append(("write", block))
    plan[have_written].append(("barrier", 0))
    for block in range(ROWS + AHEAD):
        at = have_written + 1 + block * max(0, products - have_written - 3) // (ROWS + AHEAD)
        plan[min(products - 1, at)].append(("read_next", block))
    for block in range(blocks):
        at = have_read + 1 + int(block * 0.875 * products / blocks)
        plan[at % products].append(("load_early" if at < products else "load", block))
    return plan


@gluon.jit
def read_block(x: Operands, BLOCK: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Read a block as an operand of products in LAYOUT."""
    WIDTH: gl.constexpr = lane_elements(x.tiles_a.dtype)
    if BLOCK < ROWS:
        return x.tiles_a.index(BLOCK).load(gl.DotOperandLayout(0, LAYOUT, WIDTH))
    else:
        return x.tiles_b.index(BLOCK - ROWS).permute((1, 0)).load(gl.DotOperandLayout(1, LAYOUT, WIDTH))


@gluon.jit
def load_at(x: Operands, start, BLOCK: gl.constexpr, ROWS: gl.constexpr, columns=None):
    """Load a block of the step whose k begins at `start`."""
    return load_columns((x.a if BLOCK < ROWS else x.b) + start, x.offsets[BLOCK], columns)


@gluon.jit
def load_scales(x: Operands, start):
    """Load the scales of the step at `start`: of the rows of each block of a, then of each pair of blocks of b."""
    of_a = x.scale_a.ptr + start // 128 * x.scale_a.stride_columns
    of_b = x.scale_b.ptr + start // 128 * x.scale_b.stride_rows
    scales = ()
    for row in gl.static_range(len(x.scale_rows)):
        scales = appended(scales, gl.amd.cdna3.buffer_load(of_a, x.scale_rows[row]))
    for pair in gl.static_range(len(x.scale_columns)):
        scales = appended(scales, gl.load(of_b + x.scale_columns[pair]))
    return scales


@gluon.jit
def prepare_scaled(
    blocks, scales, following, staged, x: Operands, next_step, after_next, ACTION: gl.constexpr, BLOCK: gl.constexpr,
    ROWS: gl.constexpr, LAYOUT: gl.constexpr, IS_LAST: gl.constexpr,
):  # fmt: skip
    """Do an action and return the new (blocks, scales, following, staged). IS_LAST: only what this step needs."""
    if ACTION == "read":
        blocks = appended(blocks, read_block(x, BLOCK, ROWS, LAYOUT))
    elif not IS_LAST:
        if ACTION == "read_next":
            following = appended(following, read_block(x, BLOCK, ROWS, LAYOUT))
        elif ACTION == "write":
            write_block(x.tiles_a, x.tiles_b, staged[BLOCK], BLOCK, ROWS)
        elif ACTION == "load":
            staged = replaced(staged, BLOCK, load_at(x, next_step, BLOCK, ROWS))
        elif ACTION == "load_early":
            staged = replaced(staged, BLOCK, load_at(x, after_next, BLOCK, ROWS))
        elif ACTION == "load_scales":
            scales = load_scales(x, next_step)
        else:
            gl.static_assert(ACTION == "barrier")
            gl.barrier()
            gl.amd.hint.sched_barrier()
    return blocks, scales, following, staged


@gluon.jit
def add_scaled(acc, part, scales, ROW: gl.constexpr, COLUMN: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Add the product of two blocks in a step, times its scales, to its sum."""
    AT: gl.constexpr = ROW * COLUMNS + COLUMN
    scale = scales[ROW] * scales[ROWS + COLUMN // 2]
    return replaced(acc, AT, acc[AT] + part * scale[:, None])


@gluon.jit
def multiply_scaled_step(
    acc, scales, blocks, staged, x: Operands, next_step, after_next,
    PLAN: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, IS_LAST: gl.constexpr,
):  # fmt: skip
    """Add the products of a step to `acc`, and return (acc, scales, blocks, staged) for the next one.

    blocks: of this step, all of a and AHEAD of b. staged: blocks of the next one, at `next_step`. IS_LAST: there is no
    next one.
    """
    LAYOUT: gl.constexpr = acc[0].type.layout
    PRODUCTS: gl.constexpr = ROWS * COLUMNS
    zeros = gl.zeros(acc[0].shape, gl.float32, LAYOUT)
    next_scales, following, parts = (), (), ()
    for at in gl.static_range(PRODUCTS + LAG):
        if at < PRODUCTS:
            for number in gl.static_range(actions_at(PLAN, at)):
                blocks, next_scales, following, staged = prepare_scaled(
                    blocks, next_scales, following, staged, x, next_step, after_next,
                    action_at(PLAN, at, number), block_at(PLAN, at, number), ROWS, LAYOUT, IS_LAST,
                )  # fmt: skip
            parts = appended(parts, gl.amd.cdna3.mfma(blocks[at % ROWS], blocks[ROWS + at // ROWS], zeros))
        if at >= LAG:
            acc = add_scaled(acc, parts[at - LAG], scales, (at - LAG) % ROWS, (at - LAG) // ROWS, ROWS, COLUMNS)
        if at % 2 == 1:  # between two products, LLVM alternates the parts of their k
            gl.amd.hint.sched_barrier()
    return acc, next_scales, following, staged


@gluon.jit
def scaled_product(x: Operands, k, PLAN: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the blocks of the scaled product, by rows. k > 0."""
    BLOCKS: gl.constexpr = ROWS + COLUMNS
    STEP: gl.constexpr = x.tiles_a.shape[2]
    # The last of k, which may be cut short, comes first, so that no load in the loop has a mask.
    last = (gl.cdiv(k, STEP) - 1) * STEP
    first = ()
    for block in gl.static_range(BLOCKS):
        first = appended(first, load_at(x, last, block, ROWS, k - last))
    staged = first
    for block in gl.static_range(BLOCKS):
        if is_early(PLAN, block):
            staged = replaced(staged, block, load_at(x, 0, block, ROWS, gl.minimum(last, STEP)))
    gl.amd.hint.sched_barrier()
    scales = load_scales(x, last)
    for block in gl.static_range(BLOCKS):
        write_block(x.tiles_a, x.tiles_b, first[block], block, ROWS)
    gl.barrier()
    blocks = ()
    for block in gl.static_range(ROWS + AHEAD):
        blocks = appended(blocks, read_block(x, block, ROWS, LAYOUT))
    acc = ()
    for _ in gl.static_range(ROWS * COLUMNS):
        acc = appended(acc, gl.zeros([x.tiles_a.shape[1], x.tiles_b.shape[1]], gl.float32, LAYOUT))

    for step in range(0, last, STEP):
        acc, scales, blocks, staged = multiply_scaled_step(
            acc, scales, blocks, staged, x, step, gl.minimum(step + STEP, last - STEP), PLAN, ROWS, COLUMNS, False
        )
    acc, _, _, _ = multiply_scaled_step(acc, scales, blocks, (), x, 0, 0, PLAN, ROWS, COLUMNS, True)
    sums = ()
    for at in gl.static_range(ROWS * COLUMNS):
        sums = appended(sums, kept(acc[at]))
    return sums


@gluon.jit
def kept(x):
    """Return x. LLVM cannot move the addition that makes it to where it is used, and so spill the products."""
    return gl.inline_asm_elementwise("", "=v,0", [x], gl.float32, is_pure=False, pack=1)


@gluon.jit
def block_scaled_matmul_cdna3(
    a: Matrix, b: Matrix, scale_a: Matrix, scale_b: Matrix, e: Matrix, m, n, k, rows_per_scale,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, WAVES_M: gl.constexpr, WAVES_N: gl.constexpr, GROUP_M: gl.constexpr,
    NUM_XCDS: gl.constexpr, parts=None,
):  # fmt: skip
    """e = (scale_a a) (scale_b b). Grid: (tiles of e; parts).

    a: [m, k], b: [k, n], of one float8, both with contiguous k, k > 0; e: [m, n], with contiguous rows. Rows are
    aligned to 16 bytes, and k and n are multiples of 16. scale_a: fp32 [cdiv(m, rows_per_scale), cdiv(k, 128)],
    scale_b: fp32 [cdiv(k, 128), cdiv(n, 128)]. WAVES_N is 1, COLUMNS more than 2.
    parts: if given, e has the scaled products of as many runs of k, fp32 [parts, m, n]; k has at least as many steps.
    """
    BLOCK_M: gl.constexpr = 16 * WAVES_M
    BLOCK_N: gl.constexpr = 16 * WAVES_N
    DTYPE: gl.constexpr = a.ptr.dtype.element_ty
    LAYOUT: gl.constexpr = mfma_layout(WAVES_M, WAVES_N, DTYPE)
    PIECES: gl.constexpr = (COLUMNS + 1) // 2
    tile_m, tile_n = tile_of(gl.program_id(0), m, n, ROWS * BLOCK_M, COLUMNS * BLOCK_N, GROUP_M, NUM_XCDS)
    row, column = tile_m * ROWS * BLOCK_M, tile_n * COLUMNS * BLOCK_N
    right = transposed(b)
    if parts is not None:
        part = gl.program_id(1)
        begin, k = run_of(k, part, parts, STEP_BYTES)
        a, right = moved(a, begin), moved(right, begin)
        scale_a, scale_b = moved(scale_a, begin // 128), transposed(moved(transposed(scale_b), begin // 128))
        e = Matrix(e.ptr + part.to(gl.int64) * m * n, n, 1)

    # Rows and columns past the edges are the last ones once more.
    offsets = offsets_of(a, row, m, ROWS, BLOCK_M, WAVES_M * WAVES_N, True, False)
    scale_rows, scale_columns = (), ()
    sums = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
    for i in gl.static_range(ROWS):
        rows = gl.minimum(row + i * BLOCK_M + sums, m - 1)
        scale_rows = appended(scale_rows, rows // rows_per_scale * scale_a.stride_rows)
    offsets += offsets_of(right, column, n, COLUMNS, BLOCK_N, WAVES_M * WAVES_N, True, True)
    for j in gl.static_range(PIECES):  # 128 is a multiple of a pair's columns
        scale_columns = appended(
            scale_columns, gl.minimum(column + 2 * j * BLOCK_N, n - 1) // 128 * scale_b.stride_columns
        )

    tiles_a = gl.allocate_shared_memory(DTYPE, [ROWS, BLOCK_M, STEP_BYTES], shared_layout(BLOCK_M, DTYPE))
    tiles_b = gl.allocate_shared_memory(DTYPE, [COLUMNS, BLOCK_N, STEP_BYTES], shared_layout(BLOCK_N, DTYPE))
    operands = Operands(a.ptr, right.ptr, offsets, scale_a, scale_b, scale_rows, scale_columns, tiles_a, tiles_b)
    acc = scaled_product(operands, k, scaled_plan(ROWS, COLUMNS), ROWS, COLUMNS, LAYOUT)
    for at in gl.static_range(ROWS * PIECES):
        rows, columns = place_of(row, column, at // PIECES, at % PIECES, COLUMNS, WAVES_M, WAVES_N, LAYOUT)
        x = piece_of(acc, at // PIECES, at % PIECES, COLUMNS, WAVES_M, WAVES_N)
        store_rows(x.to(e.ptr.dtype.element_ty), rows, columns, m, n, e.ptr, e.stride_rows)
