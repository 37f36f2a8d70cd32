"""Products of few rows for CDNA 3: weights go from memory straight to the registers of matrix operands.

A workgroup computes ROWS x COLUMNS blocks of 16 x 16. Its wavefronts take runs of k in turns and add their sums at the
end, so that the loop has neither LDS nor barriers. In a run, a lane has RUN neighbouring weights of each of its
columns, 16 bytes, and the same k of each of its rows. The next three groups of 16 lanes have the k that follow. Matrix
instructions have another order of k, but the sum is the same if both operands are permuted alike.

The loads of DEPTH runs are under way. A run is loaded into the registers of the one that was just multiplied.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.cdna import appended, lane_elements, replaced
from kernels.common.indices import range_of
from kernels.common.tensors import Matrix
from kernels.gemm.cdna3 import moved, run_of
from kernels.gemm.epilogue import Epilogue, finish
from kernels.gemm.matmul import padded


class Decoding(NamedTuple):
    """Scales and zeros of weights: w = (codes - zeros) * scales, each by rows of w and groups of k.

    scales: [rows, groups], a row for each `rows_per_scale` of w; a group has 1 << group_bits of k, which the lanes of a
    run share. zeros: codes, of the same shape, or None: 8 if codes have 4 bits, else 0. SCALES: `none`; `rows`, of all
    of k, and without zeros; `groups`.
    """

    scales: gl.tensor = None
    stride_scales_n: gl.tensor = 0
    stride_scales_groups: gl.tensor = 0
    zeros: gl.tensor = None
    stride_zeros_groups: gl.tensor = 0
    rows_per_scale: gl.tensor = 1
    group_bits: gl.tensor = 31
    SCALES: gl.constexpr = "none"


@gluon.constexpr_function
def _bits(size):
    return [1 << bit for bit in range(size.bit_length() - 1)]


@gluon.constexpr_function
def sums_layout(WARPS, dtype):
    """Return the layout of products [WARPS, 16, 16] of operands of `dtype`. A lane has 4 rows of one column."""
    shape = [16, 16, 2 * lane_elements(dtype)]
    return gl.amd.AMDMFMALayout(version=3, instr_shape=shape, transposed=False, warps_per_cta=[WARPS, 1, 1])


@gluon.constexpr_function
def lines_layout(WARPS, width):
    """Return the layout of [WARPS, 16, 4 * width]: a lane has `width` neighbours of a line, as matrix operands do."""
    registers = [[0, 0, bit] for bit in _bits(width)]
    lanes = [[0, bit, 0] for bit in _bits(16)] + [[0, 0, width], [0, 0, 2 * width]]
    return gl.DistributedLinearLayout(
        registers, lanes, [[bit, 0, 0] for bit in _bits(WARPS)], [], [WARPS, 16, 4 * width]
    )


@gluon.constexpr_function
def out_layout(WARPS, columns):
    """Return the layout of [WARPS, 16, columns] in which a lane has the elements of all wavefronts."""
    lanes = min(64, columns)
    return gl.BlockedLayout([WARPS, 1, 1], [1, 64 // lanes, lanes], [1, WARPS, 1], [2, 1, 0])


class Loads(NamedTuple):
    """Addresses of the first run of a tile.

    x, w: from the tile's first row or column on. x_offsets: of each block of rows; w_offsets, scale_offsets,
    zero_offsets: of each block of columns. x_known: lanes that have a row of x. x_inner, w_inner: the first k of a
    lane. wave: k of a wavefront less that of the first one; begin: k before the tile's part of it.
    """

    x: Matrix
    w: Matrix
    x_offsets: tuple
    w_offsets: tuple
    x_known: tuple
    x_inner: gl.tensor
    w_inner: gl.tensor
    scale_offsets: tuple
    zero_offsets: tuple
    wave: gl.tensor
    begin: gl.tensor


@gluon.jit
def loads_of(
    x, w, decoding: Decoding, row, column, begin, m, n,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, RUN: gl.constexpr, PER_ITEM: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Return the `Loads` of a tile. RUN: weights of a lane, PER_ITEM of them in an element of w."""
    WARPS: gl.constexpr = gl.num_warps()
    WIDTH: gl.constexpr = lane_elements(x.ptr.dtype.element_ty)
    X: gl.constexpr = lines_layout(WARPS, WIDTH)
    W: gl.constexpr = lines_layout(WARPS, RUN // PER_ITEM)
    of_x, of_w = range_of(2, 4 * WIDTH, X), range_of(2, 4 * (RUN // PER_ITEM), W)
    x_inner = range_of(0, WARPS, X) * (4 * RUN) + of_x // WIDTH * RUN
    w_inner = range_of(0, WARPS, W) * (4 * RUN) + of_w // (RUN // PER_ITEM) * RUN
    x = Matrix(x.ptr + row.to(gl.int64) * x.stride_rows, x.stride_rows, 1)
    w = Matrix(w.ptr + column.to(gl.int64) * w.stride_rows, w.stride_rows, 1)
    x_offsets, x_known, w_offsets, scale_offsets, zero_offsets = (), (), (), (), ()
    for block in gl.static_range(ROWS):
        lines = block * 16 + range_of(1, 16, X)
        x_known = appended(x_known, lines < m - row)
        x_offsets = appended(x_offsets, lines * x.stride_rows + (x_inner + of_x % WIDTH))
    for block in gl.static_range(COLUMNS):
        lines = gl.minimum(block * 16 + range_of(1, 16, W), n - column - 1)
        at = range_of(0, WARPS, W) * (4 * (RUN // PER_ITEM)) + of_w
        w_offsets = appended(w_offsets, lines * w.stride_rows + at)
        if decoding.SCALES == "groups":
            lines = gl.minimum(column + block * 16 + range_of(2, 16, SUMS), n - 1)
            scale_offsets = appended(scale_offsets, lines // decoding.rows_per_scale * decoding.stride_scales_n)
            zero_offsets = appended(zero_offsets, lines)
    wave = range_of(0, WARPS, SUMS) * (4 * RUN)
    return Loads(
        x, w, x_offsets, w_offsets, x_known, x_inner, w_inner, scale_offsets, zero_offsets, wave, begin
    )  # fmt: skip


@gluon.jit
def load_run(loads: Loads, decoding: Decoding, start, k, RUN: gl.constexpr, PER_ITEM: gl.constexpr):
    """Load the run at `start`: pieces of x by rows, w, scales and zeros. What is past the end of k is 0.

    A buffer load without another value has zeros for lanes that are masked: their offsets are out of its range.
    """
    x, w = loads.x, loads.w
    WIDTH: gl.constexpr = lane_elements(x.ptr.dtype.element_ty)
    loaded = ()
    for block in gl.static_range(len(loads.x_offsets)):
        for piece in gl.static_range(RUN // WIDTH):
            known = (loads.x_inner + piece * WIDTH < k - start) & loads.x_known[block]
            item = gl.amd.cdna3.buffer_load(x.ptr + start + piece * WIDTH, loads.x_offsets[block], mask=known)
            loaded = appended(loaded, item)
    for block in gl.static_range(len(loads.w_offsets)):
        known, _ = gl.broadcast(loads.w_inner < k - start, loads.w_offsets[block])
        loaded = appended(
            loaded, gl.amd.cdna3.buffer_load(w.ptr + start // PER_ITEM, loads.w_offsets[block], mask=known)
        )
    if decoding.SCALES == "groups":
        group = loads.begin + gl.minimum(start + loads.wave, k - 1) >> decoding.group_bits
        for block in gl.static_range(len(loads.w_offsets)):
            at = loads.scale_offsets[block] + group * decoding.stride_scales_groups
            loaded = appended(loaded, gl.amd.cdna3.buffer_load(decoding.scales, at))
        for block in gl.static_range(len(loads.w_offsets) if decoding.zeros is not None else 0):
            at = loads.zero_offsets[block] + group * decoding.stride_zeros_groups
            loaded = appended(loaded, gl.amd.cdna3.buffer_load(decoding.zeros, at))
    return loaded


@gluon.jit
def halves(words, dtype: gl.constexpr):
    """Return the 16-bit values of words, in one more dim. Nothing moves."""
    return gl.join(words.to(gl.int16), (words >> 16).to(gl.int16)).to(dtype, bitcast=True)


@gluon.jit
def in_register(value):
    """Return a constant as a value that LLVM does not know, so that instructions of three operands have it."""
    return gl.inline_asm_elementwise("v_mov_b32 $0, $1", "=v,s", [value], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def nibbles(words, dtype: gl.constexpr):
    """Decode 4-bit codes in words [.., words]: [.., 8 * words], for each word the codes 0, 4, 1, 5, 2, 6, 3, 7.

    A code becomes the end of the mantissa of 128 or, in fp16, 64.
    """
    BFLOAT: gl.constexpr = dtype == gl.bfloat16
    FIRST: gl.constexpr = 0 if BFLOAT else 4
    MASK: gl.constexpr = 0x000F000F if BFLOAT else 0x00F000F0
    ones = in_register(gl.to_tensor(0x43004300 if BFLOAT else 0x54005400))
    p0, p1 = (words << FIRST) & MASK | ones, (words >> 4 - FIRST) & MASK | ones
    p2, p3 = (words >> 8 - FIRST) & MASK | ones, (words >> 12 - FIRST) & MASK | ones
    pairs = gl.join(gl.join(p0, p2), gl.join(p1, p3))
    return halves(pairs, dtype).reshape([words.shape[0], words.shape[1], 8 * words.shape[2]])


@gluon.jit
def bytes_of(words):
    """Return the bytes of words [.., words]: [.., 4 * words]."""
    even, odd = gl.join(words, words >> 16), gl.join(words >> 8, words >> 24)
    return gl.join(even, odd).to(gl.uint8).reshape([words.shape[0], words.shape[1], 4 * words.shape[2]])


@gluon.constexpr_function
def kind_of(weights, dtype):
    """Return the kind of weights beside x of `dtype`: `same` dtype, `nibbles`, `bytes` of integers or `float8`."""
    if weights == dtype:
        return "same"
    return "nibbles" if weights == gl.uint8 else "bytes" if weights == gl.int8 else "float8"


@gluon.constexpr_function
def offset_of(kind, dtype):
    """Return what `decoded` adds: 128 makes bytes positive; nibbles end the mantissa of 128 or, in fp16, 64."""
    return {"bytes": 128, "nibbles": 128 if dtype == gl.bfloat16 else 64}.get(kind, 0)


@gluon.jit
def like_nibbles(x):
    """Put the elements of x, [warps, 16, 4 * 8], into the order in which `nibbles` has codes."""
    return x.reshape([x.shape[0], 16, 4, 2, 4]).permute((0, 1, 2, 4, 3)).reshape(x.shape)


@gluon.jit
def narrowed(value, dtype: gl.constexpr):
    """Convert fp32 values that `dtype` has to it."""
    if dtype == gl.bfloat16:
        return (value.to(gl.int32, bitcast=True) >> 16).to(gl.int16).to(dtype, bitcast=True)
    else:
        return value.to(dtype, fp_downcast_rounding="rtz")  # two at a time


@gluon.jit
def pieces_of(x, COUNT: gl.constexpr):
    """Split what lanes have, x: [warps, 16, 4 * width], into COUNT parts: a tuple of [warps, 16, 4 * width / COUNT]."""
    if COUNT == 1:
        return (x,)
    else:
        HALF: gl.constexpr = x.shape[2] // 2
        parts = x.reshape([x.shape[0], 16, 4, 2, HALF // 4]).permute((0, 1, 2, 4, 3))
        first, second = parts.split()
        first, second = first.reshape([x.shape[0], 16, HALF]), second.reshape([x.shape[0], 16, HALF])
        return pieces_of(first, COUNT // 2) + pieces_of(second, COUNT // 2)


@gluon.jit
def decoded(w, KIND: gl.constexpr, WEIGHTS: gl.constexpr, dtype: gl.constexpr, PIECES: gl.constexpr):
    """Return the weights of a run in the dtype of x, and in pieces as x. w: words of WEIGHTS, unless KIND is `same`."""
    if KIND == "same":
        return (w,)
    else:
        words = pieces_of(w, PIECES)
        values = ()
        for piece in gl.static_range(PIECES):
            if KIND == "nibbles":
                value = nibbles(words[piece], dtype)
            elif KIND == "bytes":
                value = narrowed(bytes_of(words[piece] ^ -0x7F7F7F80).to(gl.float32), dtype)
            else:
                value = narrowed(bytes_of(words[piece]).to(WEIGHTS, bitcast=True).to(gl.float32), dtype)
            values = appended(values, value)
        return values


@gluon.jit
def product_of(left, right, acc):
    """acc + left rightᵀ of [warps, 16, k] each."""
    SUMS: gl.constexpr = acc.type.layout
    WIDTH: gl.constexpr = left.shape[2] // 4
    left = gl.convert_layout(left, gl.DotOperandLayout(0, SUMS, WIDTH), assert_trivial=True)
    right = gl.convert_layout(right.permute((0, 2, 1)), gl.DotOperandLayout(1, SUMS, WIDTH), assert_trivial=True)
    return gl.amd.cdna3.mfma(left, right, acc)


@gluon.jit
def add_product(sums, x, w, AT: gl.constexpr, FIRST: gl.constexpr):
    """Add the product of pieces x[FIRST:] and w to sums[AT]."""
    acc = sums[AT]
    for piece in gl.static_range(len(w)):
        acc = product_of(x[FIRST + piece], w[piece], acc)
    return replaced(sums, AT, acc)


@gluon.jit
def add_scaled(sums, x, w, shares, scale, zero, AT: gl.constexpr, FIRST: gl.constexpr, ROW: gl.constexpr):
    """Add the product of a group times its scale. shares: sums of x for each row, which zeros are multiplied by."""
    acc = gl.zeros(sums[AT].shape, gl.float32, sums[AT].type.layout)
    for piece in gl.static_range(len(w)):
        acc = product_of(x[FIRST + piece], w[piece], acc)
    if len(shares) > 0:
        acc -= zero * shares[ROW]
    return replaced(sums, AT, sums[AT] + acc * scale)


@gluon.jit
def multiply_run(
    sums, loaded, decoding: Decoding, ROWS: gl.constexpr, COLUMNS: gl.constexpr, PIECES: gl.constexpr,
    WEIGHTS: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """Add the products of a run that `load_run` has loaded to `sums`, [ROWS * COLUMNS]. WEIGHTS: dtype of w."""
    FIRST: gl.constexpr = ROWS * PIECES
    KIND: gl.constexpr = kind_of(WEIGHTS, DTYPE)
    OFFSET: gl.constexpr = offset_of(KIND, DTYPE)
    x, shares = (), ()
    for piece in gl.static_range(FIRST):
        x = appended(x, like_nibbles(loaded[piece]) if KIND == "nibbles" else loaded[piece])
    if OFFSET != 0:
        for row in gl.static_range(ROWS):
            share = gl.zeros(sums[0].shape, gl.float32, sums[0].type.layout)
            for piece in gl.static_range(PIECES):
                ones = gl.full(x[0].shape, 1, DTYPE, x[0].type.layout)
                share = product_of(x[row * PIECES + piece], ones, share)
            shares = appended(shares, share)
    for column in gl.static_range(COLUMNS):
        w = decoded(loaded[FIRST + column], KIND, WEIGHTS, DTYPE, PIECES)
        if decoding.SCALES == "groups":
            scale = loaded[FIRST + COLUMNS + column].to(gl.float32)
            zero = gl.to_tensor(OFFSET + 8.0 if KIND == "nibbles" else OFFSET + 0.0)
            if decoding.zeros is not None:
                zero = loaded[FIRST + 2 * COLUMNS + column].to(gl.float32) + OFFSET
            for row in gl.static_range(ROWS):
                sums = add_scaled(sums, x, w, shares, scale, zero, row * COLUMNS + column, row * PIECES, row)
        else:
            for row in gl.static_range(ROWS):
                sums = add_product(sums, x, w, row * COLUMNS + column, row * PIECES)
    return sums


@gluon.jit
def joined(blocks):
    """Join blocks of columns, each [warps, 16, 16], to one tensor [warps, 16, columns]."""
    COUNT: gl.constexpr = len(blocks)
    if COUNT == 1:
        return blocks[0]
    else:
        left, right = joined(blocks[: COUNT // 2]), joined(blocks[COUNT // 2 :])
        return gl.join(left, right).permute((0, 1, 3, 2)).reshape([left.shape[0], 16, 2 * left.shape[2]])


@gluon.jit
def matmul_rows_cdna3(
    x: Matrix, w: Matrix, decoding: Decoding, e: Matrix, epilogue: Epilogue, m, n, k,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, parts=None,
):  # fmt: skip
    """e = epilogue(x wᵀ). Grid: (tiles of columns, tiles of rows, parts).

    x: [m, k] of 16 or 8 bits; w: [n, k] of the same dtype, or codes: int8 or float8, or uint8 [n, k / 2] with two
    codes of 4 bits in a byte, if x has 16 bits. k is contiguous; k and strides are multiples of 16 bytes. int8 is
    summed in int32. COLUMNS is a power of 2. parts: as `matmul_cdna3` has it.
    """
    WARPS: gl.constexpr = gl.num_warps()
    DTYPE: gl.constexpr = x.ptr.dtype.element_ty
    WEIGHTS: gl.constexpr = w.ptr.dtype.element_ty
    KIND: gl.constexpr = kind_of(WEIGHTS, DTYPE)
    RUN: gl.constexpr = 32 if KIND == "nibbles" else lane_elements(WEIGHTS)
    PIECES: gl.constexpr = RUN // lane_elements(DTYPE)
    PER_ITEM: gl.constexpr = 1 if KIND == "same" else RUN // 4  # of k in an element or a word
    if KIND != "same":
        w = Matrix(w.ptr.to(gl.pointer_type(gl.int32), bitcast=True), w.stride_rows // 4, 1)
    SUMS: gl.constexpr = sums_layout(WARPS, DTYPE)
    SPAN: gl.constexpr = WARPS * 4 * RUN
    row, column, part = gl.program_id(1) * (16 * ROWS), gl.program_id(0) * (16 * COLUMNS), gl.program_id(2)
    stored_n, begin = n, 0
    if parts is not None:
        begin, k = run_of(k, part, parts, SPAN)
        x, w = moved(x, begin), moved(w, begin // PER_ITEM)
        stored_n = padded(n)
        e = Matrix(e.ptr + part.to(gl.int64) * m * stored_n, stored_n, 1)
    loads = loads_of(x, w, decoding, row, column, begin, m, n, ROWS, COLUMNS, RUN, PER_ITEM, SUMS)
    ring, sums = (), ()
    for slot in gl.static_range(DEPTH):
        ring = appended(ring, load_run(loads, decoding, slot * SPAN, k, RUN, PER_ITEM))
        gl.amd.hint.sched_barrier()
    for _ in gl.static_range(ROWS * COLUMNS):
        sums = appended(sums, gl.zeros([WARPS, 16, 16], gl.int32 if DTYPE.is_int() else gl.float32, SUMS))
    for start in range(0, k, SPAN * DEPTH):
        for slot in gl.static_range(DEPTH):
            sums = multiply_run(sums, ring[slot], decoding, ROWS, COLUMNS, PIECES, WEIGHTS, DTYPE)
            ring = replaced(ring, slot, load_run(loads, decoding, start + (slot + DEPTH) * SPAN, k, RUN, PER_ITEM))
            gl.amd.hint.sched_barrier()
    OUT: gl.constexpr = out_layout(WARPS, 16 * COLUMNS)
    for block in gl.static_range(ROWS):
        total = joined(sums[block * COLUMNS : block * COLUMNS + COLUMNS])
        total = gl.sum(gl.convert_layout(total, OUT), 0)
        rows = row + block * 16 + gl.arange(0, 16, gl.SliceLayout(1, gl.SliceLayout(0, OUT)))
        columns = column + gl.arange(0, 16 * COLUMNS, gl.SliceLayout(0, gl.SliceLayout(0, OUT)))
        if decoding.SCALES == "rows":
            of_columns = gl.minimum(columns, n - 1) // decoding.rows_per_scale * decoding.stride_scales_n
            total *= gl.load(decoding.scales + of_columns)[None, :]
        finish(total, rows, columns, part, m, stored_n, e, epilogue)
