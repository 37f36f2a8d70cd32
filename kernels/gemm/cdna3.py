"""Matrix products for CDNA 3 in Gluon: every load, write and read of LDS is issued beside a matrix instruction.

A workgroup of WAVES_M x WAVES_N wavefronts computes a tile of ROWS x COLUMNS blocks of 16 WAVES_M x 16 WAVES_N, of each
of which a wavefront has 16 x 16. A step multiplies 128 bytes of k, in two halves. LDS has one step. Registers have the
next one, which is being loaded, and both halves of the present one:

    half 0:  multiply half 0 | read half 1 | load most blocks of the next step
    barrier: all wavefronts have read the step
    half 1:  multiply half 1 | write the next step | barrier | read its half 0 | load the first blocks of the one after

An operand that is contiguous along its rows or columns instead of k is loaded along these, two blocks at a time. A lane
has 4 of k, which it reorders before it writes them to LDS.

`step_plan` says which of these is issued before which product. LLVM would issue them in bunches, so a fence after every
two products keeps them in their places.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.cdna import (
    STEP_BYTES,
    along_k,
    appended,
    columns_layout,
    interleaved,
    lane_columns,
    lane_elements,
    load_columns,
    load_lines,
    load_unaligned_lines,
    mfma_layout,
    pair,
    pair_layout,
    replaced,
    rows_layout,
    shared_layout,
)
from kernels.common.tensors import Matrices, Matrix, given, matrix_of, transposed
from kernels.gemm.epilogue import Epilogue, Vectors, aligned_part, convert, finished, of_batch
from kernels.gemm.matmul import padded
from kernels.gemm.order import tile_of


@gluon.constexpr_function
def loads_of(ROWS, COLUMNS, A_ALONG_K, B_ALONG_K):
    """Return the loads of a step, each as (its first block, its blocks, whether it is along k).

    Blocks are those of a, then those of b. Two are loaded at a time of an operand that is not contiguous along k.
    """
    loads = []
    assert A_ALONG_K or ROWS % 2 == 0
    for start, blocks, is_along_k in ((0, ROWS, A_ALONG_K), (ROWS, COLUMNS, B_ALONG_K)):
        size = 1 if is_along_k else 2
        loads += [(start + at, min(size, blocks - at), is_along_k) for at in range(0, blocks, size)]
    return loads


@gluon.constexpr_function
def load_of(loads, block):
    """Return the number of the load that has a block."""
    return sum(first <= block for first, _, _ in loads) - 1


@gluon.constexpr_function
def count_of(loads):
    return len(loads)


@gluon.constexpr_function
def first_of(loads, load):
    return loads[load][0]


@gluon.constexpr_function
def is_pair(loads, load):
    return loads[load][1] == 2


@gluon.constexpr_function
def is_along_k(loads, load):
    return loads[load][2]


@gluon.constexpr_function
def step_plan(ROWS, COLUMNS, loads):
    """Return what is issued before each of the 2 ROWS COLUMNS products of a step, as [(action, number), ...].

    Numbers are those of blocks or loads. Actions: `read_half_1`; `read_half_0`, of the next step; `write`, of the next
    step; `barrier`; `load`, of the next step; `load_early`, of the step after that. Loads are spread over the step,
    since few can be under way at a time. Reads keep a distance from the barrier and the write before them.
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
    for load in range(len(loads)):
        first, count, _ = loads[load]
        if len(loads) == blocks or ROWS * COLUMNS < 28:
            at = max(int(first * 1.75 * products / blocks), (first + count - 1) * (barrier - 1) // blocks)
        elif first < ROWS:  # before the next step, so that all have the same bases
            at = max(first * products // ROWS, (first + count - 1) * (barrier - 1) // blocks)  # written by then
        else:
            at = int(products + (first - ROWS) * 0.75 * products / COLUMNS)
        plan[(products + at) % (2 * products)].append(("load_early" if at < products else "load", load))
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
def is_early(plan, load):
    return any(("load_early", load) in actions for actions in plan)


@gluon.jit
def load(
    a, b, offsets, k, LOAD: gl.constexpr, LOADS: gl.constexpr, ROWS: gl.constexpr, extent=None, ends=None, skipped=0
):
    """Do a load of the step at k, of which at most `extent` is known.

    ends: as `multiply_all_but_last` has them; if they are given, the first `skipped` of `extent` become zeros.
    """
    IS_A: gl.constexpr = first_of(LOADS, LOAD) < ROWS
    x = a if IS_A else b
    ptr = x.ptr + k * x.stride_columns
    if ends is not None:
        if is_along_k(LOADS, LOAD):
            ptr = gl.multiple_of(ptr, 16)
            if extent is None:
                loaded = load_columns(ptr, offsets[LOAD], None)
            else:
                whole = aligned_part(extent, ptr.dtype.element_ty)
                if extent == whole:
                    loaded = load_columns(ptr, offsets[LOAD], whole)
                else:  # single elements
                    loaded = load_columns(ptr, offsets[LOAD], extent)
                inner = gl.arange(0, loaded.shape[1], layout=gl.SliceLayout(0, loaded.type.layout))
                loaded = gl.where((inner >= skipped)[None, :], loaded, 0.0)
            return loaded
        else:
            end = ends[0] if IS_A else ends[1]
            IS_PAIR: gl.constexpr = is_pair(LOADS, LOAD)
            return load_unaligned_lines(ptr, offsets[LOAD], x.stride_columns, extent, end, skipped, IS_PAIR)
    elif is_along_k(LOADS, LOAD):
        return load_columns(ptr, offsets[LOAD], extent)
    elif is_pair(LOADS, LOAD):
        words = ptr.to(gl.pointer_type(gl.int32), bitcast=True)
        return load_lines(words, offsets[LOAD], x.stride_columns // 2, extent)
    else:
        return load_lines(ptr, offsets[LOAD], x.stride_columns, extent)


@gluon.jit
def loaded_block(loaded, BLOCK: gl.constexpr, LOADS: gl.constexpr, DTYPE: gl.constexpr):
    """Return a block, [lines, k], of what each load has loaded."""
    LOAD: gl.constexpr = load_of(LOADS, BLOCK)
    if is_along_k(LOADS, LOAD):
        return loaded[LOAD]
    else:
        return along_k(loaded[LOAD], BLOCK - first_of(LOADS, LOAD), DTYPE)


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
        half = tiles_b.index(BLOCK - ROWS).permute((1, 0)).slice(HALF * 4 * WIDTH, 4 * WIDTH, dim=0)
        return half.load(gl.DotOperandLayout(1, LAYOUT, WIDTH))


@gluon.jit
def prepare(
    half_0, staged, a, b, offsets, tiles_a, tiles_b, next_step, after_next,
    ACTION: gl.constexpr, NUMBER: gl.constexpr, LOADS: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr, ends,
):  # fmt: skip
    """Do an action for the steps that follow, and return the new (half_0, staged)."""
    if ACTION == "read_half_0":
        half_0 = replaced(half_0, NUMBER, read_block(tiles_a, tiles_b, 0, NUMBER, ROWS, LAYOUT))
    elif ACTION == "write":
        write_block(tiles_a, tiles_b, loaded_block(staged, NUMBER, LOADS, tiles_a.dtype), NUMBER, ROWS)
    elif ACTION == "load":
        staged = replaced(staged, NUMBER, load(a, b, offsets, next_step, NUMBER, LOADS, ROWS, None, ends))
    elif ACTION == "load_early":
        staged = replaced(staged, NUMBER, load(a, b, offsets, after_next, NUMBER, LOADS, ROWS, None, ends))
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
    PLAN: gl.constexpr, LOADS: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, IS_LAST: gl.constexpr,
    ends=None,
):  # fmt: skip
    """Add the products of a step to `acc`.

    half_0: all blocks of this step. staged: loads of the next one, at `next_step`. IS_LAST: there is no next one.
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
                    action_at(PLAN, at, number), block_at(PLAN, at, number), LOADS, ROWS, LAYOUT, ends,
                )  # fmt: skip
        half = half_0 if at < PRODUCTS else half_1
        acc = multiply(acc, half[at % PRODUCTS // COLUMNS], half[ROWS + at % COLUMNS], at % PRODUCTS)
        if at % 2 == 1:  # between two products, LLVM alternates the parts of their k
            gl.amd.hint.sched_barrier()
    return acc, half_0, staged


@gluon.jit
def multiply_all_but_last(
    a, b, offsets, k, PLAN: gl.constexpr, LOADS: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
    WAVES_M: gl.constexpr, WAVES_N: gl.constexpr, ends=None,
):  # fmt: skip
    """Multiply all steps but the last one, and return what `multiply_step` needs for that one.

    These are the blocks of the product, by rows; half 0 of the blocks of a and b; and the tiles in LDS. a, b: each a
    `Matrix` whose columns are k; offsets: of each load; k > 0. ends: (rows of a, rows of b), if these begin anywhere.
    """
    DTYPE: gl.constexpr = a.ptr.dtype.element_ty
    LAYOUT: gl.constexpr = mfma_layout(WAVES_M, WAVES_N, DTYPE)
    STEP: gl.constexpr = 8 * STEP_BYTES // DTYPE.primitive_bitwidth
    BLOCKS: gl.constexpr = ROWS + COLUMNS
    tiles_a = gl.allocate_shared_memory(DTYPE, [ROWS, 16 * WAVES_M, STEP], shared_layout(16 * WAVES_M, DTYPE))
    tiles_b = gl.allocate_shared_memory(DTYPE, [COLUMNS, 16 * WAVES_N, STEP], shared_layout(16 * WAVES_N, DTYPE))
    # The first step is the one that k may cut short, so that no load in the loop has a mask.
    last = (gl.cdiv(k, STEP) - 1) * STEP
    first = ()
    if ends is None:
        for at in gl.static_range(count_of(LOADS)):
            first = appended(first, load(a, b, offsets, 0, at, LOADS, ROWS, k - last))
        a, b = moved(a, k - last - STEP), moved(b, k - last - STEP)
    else:  # it is the last of k, with as much before that, if there is, as makes whole pieces of 16 bytes
        WIDTH: gl.constexpr = lane_elements(DTYPE)
        start = gl.maximum(k - gl.cdiv(k - last, WIDTH) * WIDTH, 0)
        for at in gl.static_range(count_of(LOADS)):
            first = appended(first, load(a, b, offsets, start, at, LOADS, ROWS, k - start, ends, last - start))
        a, b = moved(a, -STEP), moved(b, -STEP)
    second = gl.minimum(STEP, last)
    staged = first
    for at in gl.static_range(count_of(LOADS)):
        if is_early(PLAN, at):
            loaded = load(a, b, offsets, second, at, LOADS, ROWS, gl.where(last > 0, STEP, 0), ends)
            staged = replaced(staged, at, loaded)
    gl.amd.hint.sched_barrier()
    for block in gl.static_range(BLOCKS):
        write_block(tiles_a, tiles_b, loaded_block(first, block, LOADS, DTYPE), block, ROWS)
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
            PLAN, LOADS, ROWS, COLUMNS, False, ends,
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
    WAVES_N: gl.constexpr, MMA: gl.constexpr, ALTERNATE: gl.constexpr = False,
):  # fmt: skip
    """Return the (rows, columns) of a piece of the tile at [row, column]. ALTERNATE: the rows of two blocks do."""
    PAIRED: gl.constexpr = 2 * PIECE + 1 != COLUMNS
    LAYOUT: gl.constexpr = pair_layout(WAVES_M, WAVES_N) if PAIRED else MMA
    WIDTH: gl.constexpr = 32 * WAVES_N if PAIRED else 16 * WAVES_N
    lines = gl.arange(0, 16 * WAVES_M, layout=gl.SliceLayout(1, LAYOUT))
    rows = row + (interleaved(lines, ROW, ROW + 2, 16 * WAVES_M) if ALTERNATE else ROW * 16 * WAVES_M + lines)
    columns = column + PIECE * 32 * WAVES_N + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    return rows, columns


@gluon.jit
def vectors_of(rows, columns, batch, m, n, epilogue: Epilogue):
    """Load the `Vectors` of a piece, without branches."""
    scale_a, scale_b, bias = (), (), ()
    if epilogue.scale_a is not None:
        at = of_batch(epilogue.scale_a, batch, epilogue.stride_scale_a_batch)
        scale_a = (gl.amd.cdna3.buffer_load(at, rows * epilogue.stride_scale_a_m, mask=rows < m, other=0.0),)
    if epilogue.scale_b is not None:
        at = of_batch(epilogue.scale_b, batch, epilogue.stride_scale_b_batch)
        scale_b = (gl.amd.cdna3.buffer_load(at, columns * epilogue.stride_scale_b_n, mask=columns < n, other=0.0),)
    if epilogue.EPILOGUE != "none" and epilogue.bias is not None:
        at = of_batch(epilogue.bias, batch, epilogue.stride_bias_batch)
        known = (columns < n) & given(epilogue.bias)
        bias = (gl.amd.cdna3.buffer_load(at, columns, mask=known, other=0.0),)
    return Vectors(scale_a, scale_b, bias)


@gluon.jit
def store_tile(
    acc, vectors, row, column, batch, m, n, e, epilogue: Epilogue,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, WAVES_M: gl.constexpr, WAVES_N: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Apply the epilogue to the blocks of a tile, and store them in 16 bytes a lane.

    Without hints on the rows of e, these bytes may begin anywhere, and pieces in which a row ends in fewer are stored
    as single elements. vectors: of each piece; if it is empty, they are loaded here. ALTERNATE: as `place_of` has it.
    """
    gl.static_assert(epilogue.ROWS_OF_E == "hinted" or epilogue.ROWS_OF_E == "any")
    DTYPE: gl.constexpr = e.ptr.dtype.element_ty
    PIECES: gl.constexpr = (COLUMNS + 1) // 2
    BLOCK_M: gl.constexpr = 16 * WAVES_M
    MMA: gl.constexpr = acc[0].type.layout
    whole_n = aligned_part(n, DTYPE)
    for at in gl.static_range(ROWS * PIECES):
        rows, columns = place_of(row, column, at // PIECES, at % PIECES, COLUMNS, WAVES_M, WAVES_N, MMA, ALTERNATE)
        of_piece = vectors[at] if len(vectors) > 0 else vectors_of(rows, columns, batch, m, n, epilogue)
        x = piece_of(acc, at // PIECES, at % PIECES, COLUMNS, WAVES_M, WAVES_N)
        value = convert(finished(x, rows, columns, batch, m, n, DTYPE, epilogue, of_piece), DTYPE)
        first_row = row + (at // PIECES // 2 * 2 * BLOCK_M + at // PIECES % 2 if ALTERNATE else at // PIECES * BLOCK_M)
        first_column = column + at % PIECES * 32 * WAVES_N
        if epilogue.ROWS_OF_E == "hinted":
            store_rows(value, rows, columns, m, n, e.ptr, e.stride_rows)
        elif (n == whole_n) | (first_column + x.shape[1] <= n):
            store_anywhere(value, rows, columns, first_row, m, whole_n, e.ptr, e.stride_rows)
        elif first_column < n:
            store_elements(value, first_row, first_column, m, n, e, 2 if ALTERNATE else 1)


@gluon.jit
def store_elements(x, row, column, m, n, e, ROW_STEP: gl.constexpr):
    """Store a piece, every ROW_STEP-th row from [row, column] on; neighbouring lanes have neighbouring columns."""
    LANES: gl.constexpr = min(64, x.shape[1])
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1], [64 // LANES, LANES], [gl.num_warps(), 1], [1, 0])
    rows = row + ROW_STEP * gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, LAYOUT))
    columns = column + gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    store_rows(gl.convert_layout(x, LAYOUT), rows, columns, m, n, e.ptr, e.stride_rows)


@gluon.jit
def store_anywhere(x, rows, columns, first_row, m, n, ptr, stride_rows):
    """Store 16 bytes at a time, whatever the addresses; n is a multiple of as much. rows begin with `first_row`."""
    WIDTH: gl.constexpr = lane_elements(x.dtype)
    at = (rows - first_row)[:, None] * stride_rows + columns[None, :]
    at = gl.max_contiguous(gl.multiple_of(at, [1, WIDTH]), [1, WIDTH])
    start = gl.multiple_of(ptr + first_row.to(gl.int64) * stride_rows, 16)
    gl.amd.cdna3.buffer_store(x, start, at, mask=(rows < m)[:, None] & (columns < n)[None, :])


@gluon.jit
def store_rows(x, rows, columns, m, n, ptr, stride_rows):
    known = (rows < m)[:, None] & (columns < n)[None, :]
    gl.amd.cdna3.buffer_store(x, ptr, rows[:, None] * stride_rows + columns[None, :], mask=known)


@gluon.jit
def offsets_of(
    x, start, end, BLOCKS: gl.constexpr, LINES: gl.constexpr, WARPS: gl.constexpr, ALONG_K: gl.constexpr,
    ALTERNATE: gl.constexpr, ALIGNED: gl.constexpr = True,
):  # fmt: skip
    """Return the offsets of the loads of BLOCKS blocks of LINES lines each, of which the first is `start`.

    x: `Matrix` of [lines, k] with k or, if not ALONG_K, lines contiguous. ALTERNATE: lines of two blocks alternate, as
    they must if not ALONG_K. Lines from `end` on are the last ones once more. ALIGNED: rows of x, and `end` if lines
    are contiguous, are multiples of 16 bytes.
    """
    DTYPE: gl.constexpr = x.ptr.dtype.element_ty
    STEP: gl.constexpr = 8 * STEP_BYTES // DTYPE.primitive_bitwidth
    LAYOUT: gl.constexpr = rows_layout(LINES, WARPS, DTYPE) if ALONG_K else columns_layout(LINES, WARPS)
    lines = gl.arange(0, LINES, layout=gl.SliceLayout(1 if ALONG_K else 0, LAYOUT))
    offsets = ()
    if ALONG_K:
        inner = gl.arange(0, STEP, layout=gl.SliceLayout(0, LAYOUT))
        for block in gl.static_range(BLOCKS):
            at = interleaved(lines, block, BLOCKS, LINES) if ALTERNATE else block * LINES + lines
            at = gl.minimum(start + at, end - 1)
            of_block = at[:, None] * x.stride_rows + inner[None, :]
            if not ALIGNED:  # Triton makes wide loads of what is aligned; CDNA loads as much from any address
                of_block = gl.multiple_of(of_block, [1, lane_columns(LAYOUT)])
            offsets = appended(offsets, of_block)
    else:
        WIDTH: gl.constexpr = LINES // (4 * WARPS)
        inner = 4 * gl.arange(0, STEP // 4, layout=gl.SliceLayout(1, LAYOUT))
        for block in gl.static_range(0, BLOCKS - 1, 2):  # words of 32 bits
            last = end // 2 - WIDTH if ALIGNED else (end - 1) // (2 * WIDTH) * WIDTH
            at = last_once_more((start + block * LINES) // 2, lines, last, WIDTH)
            if ALIGNED:
                offsets = appended(offsets, inner[:, None] * (x.stride_columns // 2) + at[None, :])
            else:
                of_pair = (inner // 2)[:, None] * x.stride_columns + at[None, :]
                offsets = appended(offsets, gl.multiple_of(of_pair, [1, WIDTH]))
        if BLOCKS % 2 == 1:
            at = start + (BLOCKS - 1) * LINES
            at = last_once_more(at, lines, end - WIDTH, WIDTH) if ALIGNED else gl.minimum(at + lines, end - 1)
            offsets = appended(offsets, inner[:, None] * x.stride_columns + at[None, :])
    return offsets


@gluon.jit
def last_once_more(start, lines, last, WIDTH: gl.constexpr):
    """Return start + lines, WIDTH at a time; the WIDTH lines from `last` on stand for all that follow."""
    at = gl.minimum(start + lines // WIDTH * WIDTH, last) + lines % WIDTH
    return gl.max_contiguous(gl.multiple_of(at, WIDTH), WIDTH)


@gluon.jit
def moved(x, k):
    """Return a `Matrix` from column k on."""
    return Matrix(x.ptr + k * x.stride_columns, x.stride_rows, x.stride_columns)


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
    NUM_XCDS: gl.constexpr, parts=None, A_ROWS: gl.constexpr = True, B_ROWS: gl.constexpr = False,
    ALIGNED: gl.constexpr = True,
):  # fmt: skip
    """e = epilogue(a b). Grid: (tiles of e; batch).

    a: [batch, m, k], b: [batch, k, n], of one dtype of 16 or 8 bits, k > 0; e: [batch, m, n], with contiguous rows.
    A_ROWS: k is contiguous in a; else, with 16 bits alone, m is. B_ROWS: n is contiguous in b, with 16 bits alone; else
    k is. Strides, k and contiguous extents of a and b are multiples of 16 bytes; or, if not
    ALIGNED, they are any, k >= 16, n >= 16, and A_ROWS. int8 is summed in int32.
    parts: if it is given, e has the products of as many runs of k, [parts, m, padded(n)], and a and b have no batch; k
        has at least as many steps.
    """
    BLOCK_M: gl.constexpr = 16 * WAVES_M
    BLOCK_N: gl.constexpr = 16 * WAVES_N
    STEP: gl.constexpr = 8 * STEP_BYTES // a.ptr.dtype.element_ty.primitive_bitwidth
    batch = gl.program_id(1)
    left, right, out = matrix_of(a, batch), transposed(matrix_of(b, batch)), matrix_of(e, batch)
    tile_m, tile_n = tile_of(gl.program_id(0), m, n, ROWS * BLOCK_M, COLUMNS * BLOCK_N, GROUP_M, NUM_XCDS)
    row, column = tile_m * ROWS * BLOCK_M, tile_n * COLUMNS * BLOCK_N
    if parts is not None:
        begin, k = run_of(k, batch, parts, STEP)
        left, right = moved(left, begin), moved(right, begin)
        out = Matrix(e.ptr + batch.to(gl.int64) * m * padded(n), padded(n), 1)

    LOADS: gl.constexpr = loads_of(ROWS, COLUMNS, A_ROWS, not B_ROWS)
    offsets = offsets_of(left, row, m, ROWS, BLOCK_M, WAVES_M * WAVES_N, A_ROWS, not A_ROWS, ALIGNED)
    offsets += offsets_of(right, column, n, COLUMNS, BLOCK_N, WAVES_M * WAVES_N, not B_ROWS, True, ALIGNED)
    PLAN: gl.constexpr = step_plan(ROWS, COLUMNS, LOADS)
    acc, half_0, tiles_a, tiles_b = multiply_all_but_last(
        left, right, offsets, k, PLAN, LOADS, ROWS, COLUMNS, WAVES_M, WAVES_N, None if ALIGNED else (m, n)
    )
    if parts is not None:
        n = padded(n)  # known to be a multiple, so that stores are wide; they fill the padding, too
    # What the epilogue needs is on its way during the last step, if registers are left for that.
    AHEAD: gl.constexpr = A_ROWS and (not B_ROWS or epilogue.EPILOGUE != "any")
    MMA: gl.constexpr = acc[0].type.layout
    PIECES: gl.constexpr = (COLUMNS + 1) // 2
    vectors = ()
    for at in gl.static_range(ROWS * PIECES if AHEAD else 0):
        rows, columns = place_of(row, column, at // PIECES, at % PIECES, COLUMNS, WAVES_M, WAVES_N, MMA)
        vectors = appended(vectors, vectors_of(rows, columns, batch, m, n, epilogue))
    acc, half_0, _ = multiply_step(
        acc, half_0, (), None, None, offsets, tiles_a, tiles_b, 0, 0, PLAN, LOADS, ROWS, COLUMNS, True
    )
    store_tile(acc, vectors, row, column, batch, m, n, out, epilogue, ROWS, COLUMNS, WAVES_M, WAVES_N, not A_ROWS)
