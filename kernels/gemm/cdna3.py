"""Matrix products for CDNA 3 in Gluon: every load, write and read of LDS is issued beside a matrix instruction.

A workgroup of WAVES_M x WAVES_N wavefronts computes a tile of ROWS x COLUMNS blocks of 16 WAVES_M x 16 WAVES_N, of each
of which a wavefront has 16 x 16. A step multiplies 128 bytes of k, in two halves. LDS has one step. Registers have the
next one, which is being loaded, and both halves of the present one:

    half 0:  multiply half 0 | read half 1 | load most blocks of the next step
    barrier: all wavefronts have read the step
    half 1:  multiply half 1 | write the next step | barrier | read its half 0 | load the first blocks of the one after

`step_plan` says which of these is issued before which product. LLVM would issue them in bunches, so a fence after every
two products keeps them in their places.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.cdna import (
    STEP_BYTES,
    appended,
    interleaved,
    lane_elements,
    load_columns,
    mfma_layout,
    pair,
    pair_layout,
    replaced,
    rows_layout,
    shared_layout,
)
from kernels.common.tensors import Matrices, Matrix, matrix_of
from kernels.gemm.epilogue import Epilogue, convert, finished, vectors_of
from kernels.gemm.matmul import padded
from kernels.gemm.order import tile_of


@gluon.constexpr_function
def step_plan(ROWS, COLUMNS):
    """Return what is issued before each of the 2 ROWS COLUMNS products of a step, as [(action, block), ...].

    Blocks are those of a, then those of b. Actions: `read_half_1`; `read_half_0`, of the next step; `write`, of the
    next step; `barrier`; `load`, of the next step; `load_early`, of the step after that. Loads are spread over the
    step, since few can be under way at a time. Reads keep a distance from the barrier and the write before them.
    """
    products, blocks = ROWS * COLUMNS, ROWS + COLUMNS
    read_gap = -(-products // (2 * blocks))
    barrier = round(0.36 * products)
    plan = [[] for _ in range(2 * products)]
    for block in range(blocks):
        plan[min(products - 1, block * read_gap)].append(("read_half_1", block))
        plan[products + block * (barrier - 1) // blocks].append(("write", block))
    plan[products + barrier].append(("barrier", 0))
    for block in range(blocks):
        at = barrier + 1 + int(block * min(read_gap, (products - barrier - 2) / blocks))
        plan[min(2 * products - 1, products + at)].append(("read_half_0", block))
    for block in range(blocks):
        at = int(block * 1.75 * products / blocks)
        plan[(products + at) % (2 * products)].append(("load_early" if at < products else "load", block))
    return plan


@gluon.constexpr_function
def action_at(plan, at, number):
    return plan[at][number][0]


@gluon.constexpr_function
def block_at(plan, at, number):
    return plan[at][number][1]


@gluon.constexpr_function
def actions_at(plan, at):
    return len(plan[at])


@gluon.constexpr_function
def is_early(plan, block):
    return any(("load_early", block) in actions for actions in plan)


@gluon.jit
def load_block(a, b, offsets, BLOCK: gl.constexpr, ROWS: gl.constexpr, columns=None):
    return load_columns(a if BLOCK < ROWS else b, offsets[BLOCK], columns)


@gluon.jit
def write_block(tiles_a, tiles_b, x, BLOCK: gl.constexpr, ROWS: gl.constexpr):
    if BLOCK < ROWS:
        tiles_a.index(BLOCK).store(x)
    else:
        tiles_b.index(BLOCK - ROWS).store(x)


@gluon.jit
def read_block(tiles_a, tiles_b, HALF: gl.constexpr, BLOCK: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Read a half of k of a block as an operand of products in LAYOUT."""
    WIDTH: gl.constexpr = lane_elements(tiles_a.dtype)
    if BLOCK < ROWS:
        half = tiles_a.index(BLOCK).slice(HALF * 4 * WIDTH, 4 * WIDTH, dim=1)
        return half.load(gl.DotOperandLayout(0, LAYOUT, WIDTH))
    else:
        half = tiles_b.index(BLOCK - ROWS).slice(HALF * 4 * WIDTH, 4 * WIDTH, dim=1)
        return half.permute((1, 0)).load(gl.DotOperandLayout(1, LAYOUT, WIDTH))


@gluon.jit
def prepare(
    half_0, staged, a, b, offsets, tiles_a, tiles_b, next_step, after_next,
    ACTION: gl.constexpr, BLOCK: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Do an action for the steps that follow, and return the new (half_0, staged)."""
    if ACTION == "read_half_0":
        half_0 = replaced(half_0, BLOCK, read_block(tiles_a, tiles_b, 0, BLOCK, ROWS, LAYOUT))
    elif ACTION == "write":
        write_block(tiles_a, tiles_b, staged[BLOCK], BLOCK, ROWS)
    elif ACTION == "load":
        staged = replaced(staged, BLOCK, load_block(a + next_step, b + next_step, offsets, BLOCK, ROWS))
    elif ACTION == "load_early":
        staged = replaced(staged, BLOCK, load_block(a + after_next, b + after_next, offsets, BLOCK, ROWS))
    else:
        gl.static_assert(ACTION == "barrier")
        gl.barrier()
    return half_0, staged


@gluon.jit
def multiply(acc, left, right, AT: gl.constexpr):
    return replaced(acc, AT, gl.amd.cdna3.mfma(left, right, acc[AT]))


@gluon.jit
def multiply_step(
    acc, half_0, staged, a, b, offsets, tiles_a, tiles_b, next_step, after_next,
    PLAN: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, IS_LAST: gl.constexpr,
):  # fmt: skip
    """Add the products of a step to `acc`.

    half_0: all blocks of this step. staged: blocks of the next one, at `next_step`. IS_LAST: there is no next one.
    """
    LAYOUT: gl.constexpr = acc[0].type.layout
    PRODUCTS: gl.constexpr = ROWS * COLUMNS
    half_1 = ()
    for at in gl.static_range(2 * PRODUCTS):
        if at == PRODUCTS and not IS_LAST:
            gl.barrier()
            gl.amd.hint.sched_barrier()
        for number in gl.static_range(actions_at(PLAN, at)):
            if action_at(PLAN, at, number) == "read_half_1":
                half_1 = appended(half_1, read_block(tiles_a, tiles_b, 1, block_at(PLAN, at, number), ROWS, LAYOUT))
            elif not IS_LAST:
                half_0, staged = prepare(
                    half_0, staged, a, b, offsets, tiles_a, tiles_b, next_step, after_next,
                    action_at(PLAN, at, number), block_at(PLAN, at, number), ROWS, LAYOUT,
                )  # fmt: skip
        half = half_0 if at < PRODUCTS else half_1
        acc = multiply(acc, half[at % PRODUCTS // COLUMNS], half[ROWS + at % COLUMNS], at % PRODUCTS)
        if at % 2 == 1:  # between two products, LLVM alternates the parts of their k
            gl.amd.hint.sched_barrier()
    return acc, half_0, staged


@gluon.jit
def multiply_all_but_last(
    a, b, offsets, k, PLAN: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, WAVES_M: gl.constexpr,
    WAVES_N: gl.constexpr,
):  # fmt: skip
    """Multiply all steps but the last one, and return what `multiply_step` needs for that one.

    These are the blocks of the product, by rows; half 0 of the blocks of a and b; and the tiles in LDS. offsets: of the
    blocks of a, then of b; k > 0.
    """
    DTYPE: gl.constexpr = a.dtype.element_ty
    LAYOUT: gl.constexpr = mfma_layout(WAVES_M, WAVES_N, DTYPE)
    STEP: gl.constexpr = 8 * STEP_BYTES // DTYPE.primitive_bitwidth
    BLOCKS: gl.constexpr = ROWS + COLUMNS
    tiles_a = gl.allocate_shared_memory(DTYPE, [ROWS, 16 * WAVES_M, STEP], shared_layout(DTYPE))
    tiles_b = gl.allocate_shared_memory(DTYPE, [COLUMNS, 16 * WAVES_N, STEP], shared_layout(DTYPE))
    # The first step is the one that k may cut short, so that no load in the loop has a mask.
    last = (gl.cdiv(k, STEP) - 1) * STEP
    first = ()
    for block in gl.static_range(BLOCKS):
        first = appended(first, load_block(a, b, offsets, block, ROWS, k - last))
    a += k - last - STEP
    b += k - last - STEP
    second = gl.minimum(STEP, last)
    staged = first
    for block in gl.static_range(BLOCKS):
        if is_early(PLAN, block):
            loaded = load_block(a + second, b + second, offsets, block, ROWS, gl.where(last > 0, STEP, 0))
            staged = replaced(staged, block, loaded)
    gl.amd.hint.sched_barrier()
    for block in gl.static_range(BLOCKS):
        write_block(tiles_a, tiles_b, first[block], block, ROWS)
    gl.barrier()
    half_0 = ()
    for block in gl.static_range(BLOCKS):
        half_0 = appended(half_0, read_block(tiles_a, tiles_b, 0, block, ROWS, LAYOUT))
    acc = ()
    for _ in gl.static_range(ROWS * COLUMNS):
        zeros = gl.zeros([16 * WAVES_M, 16 * WAVES_N], gl.int32 if DTYPE.is_int() else gl.float32, LAYOUT)
        acc = appended(acc, zeros)

    for step in range(0, last, STEP):
        acc, half_0, staged = multiply_step(
            acc, half_0, staged, a, b, offsets, tiles_a, tiles_b, step + STEP, gl.minimum(step + 2 * STEP, last),
            PLAN, ROWS, COLUMNS, False,
        )  # fmt: skip
    return acc, half_0, tiles_a, tiles_b


@gluon.jit
def piece_of(
    acc, ROW: gl.constexpr, PIECE: gl.constexpr, COLUMNS: gl.constexpr, WAVES_M: gl.constexpr, WAVES_N: gl.constexpr
):
    """Return piece PIECE of row ROW of blocks: two blocks, or the last one of an odd number."""
    FIRST: gl.constexpr = ROW * COLUMNS + 2 * PIECE
    if 2 * PIECE + 1 == COLUMNS:
        return acc[FIRST]
    else:
        return pair(acc[FIRST], acc[FIRST + 1], WAVES_M, WAVES_N)


@gluon.jit
def place_of(
    row, column, ROW: gl.constexpr, PIECE: gl.constexpr, COLUMNS: gl.constexpr, WAVES_M: gl.constexpr,
    WAVES_N: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Return the (rows, columns) of a piece of the tile at [row, column]."""
    PAIRED: gl.constexpr = 2 * PIECE + 1 != COLUMNS
    LAYOUT: gl.constexpr = pair_layout(WAVES_M, WAVES_N) if PAIRED else MMA
    WIDTH: gl.constexpr = 32 * WAVES_N if PAIRED else 16 * WAVES_N
    rows = row + ROW * 16 * WAVES_M + gl.arange(0, 16 * WAVES_M, layout=gl.SliceLayout(1, LAYOUT))
    columns = column + PIECE * 32 * WAVES_N + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    return rows, columns


@gluon.jit
def store_piece(x, vectors, rows, columns, batch, m, n, e, epilogue: Epilogue):
    """Apply the epilogue to a piece of a tile, and store it."""
    DTYPE: gl.constexpr = e.ptr.dtype.element_ty
    value = finished(x, rows, columns, batch, m, n, DTYPE, epilogue, vectors)
    known = (rows < m)[:, None] & (columns < n)[None, :]
    gl.amd.cdna3.buffer_store(
        convert(value, DTYPE), e.ptr, rows[:, None] * e.stride_rows + columns[None, :], mask=known
    )


@gluon.jit
def run_of(k, part, parts, STEP: gl.constexpr):
    """Return (begin, length) of one of `parts` runs of k, whose whole steps differ by one at most."""
    steps = gl.cdiv(k, STEP)
    begin = steps // parts * part + gl.minimum(part, steps % parts)
    length = steps // parts + (part < steps % parts).to(gl.int32)
    return begin * STEP, gl.minimum(length * STEP, k - begin * STEP)


@gluon.jit
def matmul_cdna3(
    a: Matrices, b: Matrices, e: Matrices, epilogue: Epilogue, m, n, k,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, WAVES_M: gl.constexpr, WAVES_N: gl.constexpr, GROUP_M: gl.constexpr,
    NUM_XCDS: gl.constexpr, parts=None,
):  # fmt: skip
    """e = epilogue(a b). Grid: (tiles of e; batch).

    a: [batch, m, k], b: [batch, k, n], of one dtype of 16 or 8 bits, both with contiguous k, k > 0; e: [batch, m, n],
    with contiguous rows. Rows are aligned to 16 bytes, and k and n are multiples of 16 bytes. int8 is summed in int32.
    parts: if it is given, e has the products of as many runs of k, [parts, m, n], and a and b have no batch; k has at
        least as many steps.
    """
    BLOCK_M: gl.constexpr = 16 * WAVES_M
    BLOCK_N: gl.constexpr = 16 * WAVES_N
    DTYPE: gl.constexpr = a.ptr.dtype.element_ty
    STEP: gl.constexpr = 8 * STEP_BYTES // DTYPE.primitive_bitwidth
    batch = gl.program_id(1)
    left, right, out = matrix_of(a, batch), matrix_of(b, batch), matrix_of(e, batch)
    tile_m, tile_n = tile_of(gl.program_id(0), m, n, ROWS * BLOCK_M, COLUMNS * BLOCK_N, GROUP_M, NUM_XCDS)
    row, column = tile_m * ROWS * BLOCK_M, tile_n * COLUMNS * BLOCK_N
    if parts is not None:
        begin, k = run_of(k, batch, parts, STEP)
        left = Matrix(left.ptr + begin * left.stride_columns, left.stride_rows, left.stride_columns)
        right = Matrix(right.ptr + begin * right.stride_rows, right.stride_rows, right.stride_columns)
        out = Matrix(e.ptr + batch.to(gl.int64) * m * padded(n), padded(n), 1)

    # Rows and columns past the edges are the last ones once more.
    offsets = ()
    LOADS_A: gl.constexpr = rows_layout(BLOCK_M, WAVES_M * WAVES_N, DTYPE)
    LOADS_B: gl.constexpr = rows_layout(BLOCK_N, WAVES_M * WAVES_N, DTYPE)
    lines = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LOADS_A))
    inner = gl.arange(0, STEP, layout=gl.SliceLayout(0, LOADS_A))[None, :]
    for i in gl.static_range(ROWS):
        rows = gl.minimum(row + i * BLOCK_M + lines, m - 1)
        offsets = appended(offsets, rows[:, None] * left.stride_rows + inner)
    lines = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, LOADS_B))
    inner = gl.arange(0, STEP, layout=gl.SliceLayout(0, LOADS_B))[None, :]
    for j in gl.static_range(COLUMNS):
        columns = gl.minimum(column + interleaved(lines, j, COLUMNS, BLOCK_N), n - 1)
        offsets = appended(offsets, columns[:, None] * right.stride_columns + inner)

    PLAN: gl.constexpr = step_plan(ROWS, COLUMNS)
    acc, half_0, tiles_a, tiles_b = multiply_all_but_last(
        left.ptr, right.ptr, offsets, k, PLAN, ROWS, COLUMNS, WAVES_M, WAVES_N
    )
    # What the epilogue needs is on its way during the last step.
    MMA: gl.constexpr = acc[0].type.layout
    PIECES: gl.constexpr = (COLUMNS + 1) // 2
    vectors = ()
    for at in gl.static_range(ROWS * PIECES):
        rows, columns = place_of(row, column, at // PIECES, at % PIECES, COLUMNS, WAVES_M, WAVES_N, MMA)
        vectors = appended(vectors, vectors_of(rows, columns, batch, m, n, epilogue))
    acc, half_0, _ = multiply_step(
        acc, half_0, (), None, None, offsets, tiles_a, tiles_b, 0, 0, PLAN, ROWS, COLUMNS, True
    )
    for at in gl.static_range(ROWS * PIECES):
        rows, columns = place_of(row, column, at // PIECES, at % PIECES, COLUMNS, WAVES_M, WAVES_N, MMA)
        x = piece_of(acc, at // PIECES, at % PIECES, COLUMNS, WAVES_M, WAVES_N)
        store_piece(x, vectors[at], rows, columns, batch, m, n, out, epilogue)
