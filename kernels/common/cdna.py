"""Building blocks of Gluon kernels for CDNA 3 (gfx942): tiles of blocks, layouts, loads and stores by buffers.

A wavefront's part of a tile consists of blocks of 16 x 16, the result of one matrix instruction, in a tuple. So the
extents of a tile need not be powers of two.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

STEP_BYTES = gl.constexpr(128)
"""Bytes of k in a row of a block in LDS: all 32 banks."""


@gluon.constexpr_function
def lane_elements(dtype):
    """Return the elements of 16 bytes, the widest access of a lane."""
    return 128 // dtype.primitive_bitwidth


@gluon.constexpr_function
def mfma_layout(WAVES_M, WAVES_N, dtype):
    """Return the layout of products of WAVES_M x WAVES_N wavefronts whose operands are of `dtype`.

    Products are transposed, so that a lane has four columns of a row.
    """
    shape = [16, 16, 2 * lane_elements(dtype)]
    return gl.amd.AMDMFMALayout(version=3, instr_shape=shape, transposed=True, warps_per_cta=[WAVES_M, WAVES_N])


@gluon.constexpr_function
def rows_layout(rows, warps, dtype):
    """Return the layout of loads of [rows, STEP_BYTES]: 16 bytes a lane, or fewer if there are more lanes."""
    lanes = max(8, 64 * warps // rows)
    return gl.BlockedLayout([1, 8 * lane_elements(dtype) // lanes], [64 // lanes, lanes], [warps, 1], [1, 0])


@gluon.constexpr_function
def columns_layout(columns, warps):
    """Return the layout of loads along columns of every fourth of k in a step of 16 bits: [16, columns].

    With the next three of k, lanes 0 and 1 have 8 of k, a piece of 16 bytes in LDS.
    """
    width = columns // (4 * warps)  # of a lane
    registers = [[0, 1 << bit] for bit in range(width.bit_length() - 1)]
    lanes = [[1, 0]] + [[0, width << bit] for bit in range((4 * warps).bit_length() - 1)]
    inner = [[2 << bit, 0] for bit in range(3)]
    spare = 6 - len(lanes)
    return gl.DistributedLinearLayout(registers, lanes + inner[:spare], inner[spare:], [], [16, columns])


@gluon.constexpr_function
def shared_layout(rows, dtype):
    """Return the layout of [rows, STEP_BYTES] in LDS.

    Each row has its pieces of 16 bytes in an order of its own: bit i of a row's number flips bit (i + 2) % 3 of a
    piece's. No bank conflicts have accesses to whole rows, and to one piece of 8 rows that differ in three neighbouring
    bits: reads of 16 rows, and writes by `columns_layout`.
    """
    width = lane_elements(dtype)
    pieces = [[0, 1 << bit] for bit in range((8 * width).bit_length() - 1)]
    return gl.SharedLinearLayout(pieces + [[1 << bit, width << (bit + 2) % 3] for bit in range(rows.bit_length() - 1)])


@gluon.constexpr_function
def pair_layout(WAVES_M, WAVES_N):
    """Return the layout of a `pair`: a lane has 8 neighbouring columns of a row."""
    warps = [[0, 32 << bit] for bit in range(WAVES_N.bit_length() - 1)]
    warps += [[16 << bit, 0] for bit in range(WAVES_M.bit_length() - 1)]
    lanes = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 8], [0, 16]]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4]], lanes, warps, [], [16 * WAVES_M, 32 * WAVES_N])


@gluon.jit
def pair(left, right, WAVES_M: gl.constexpr, WAVES_N: gl.constexpr):
    """Join two blocks of products, whose columns alternate. Nothing moves."""
    joined = gl.join(left, right).reshape([left.shape[0], 2 * left.shape[1]])
    return gl.convert_layout(joined, pair_layout(WAVES_M, WAVES_N), assert_trivial=True)


@gluon.jit
def interleaved(lines, INDEX: gl.constexpr, COUNT: gl.constexpr, BLOCK: gl.constexpr):
    """Return the rows or columns of block INDEX of COUNT; lines: 0, ..., BLOCK - 1.

    Those of two blocks alternate. If COUNT is odd, the last block is alone.
    """
    if INDEX == COUNT - 1 and COUNT % 2 == 1:
        return INDEX * BLOCK + lines
    else:
        return INDEX // 2 * 2 * BLOCK + INDEX % 2 + 2 * lines


@gluon.jit
def along_k(loaded, INDEX: gl.constexpr, DTYPE: gl.constexpr):
    """Return block INDEX, [lines, k], of the four parts that `load_lines` returned.

    Of a pair of blocks these are words of 32 bits with one line of each.
    """
    x = gl.join(gl.join(loaded[0], loaded[2]), gl.join(loaded[1], loaded[3])).permute((1, 0, 2, 3))
    x = x.reshape([x.shape[0], 4 * x.shape[1]])
    if x.dtype == gl.int32:
        return (x >> 16 * (INDEX % 2)).to(gl.int16).to(DTYPE, bitcast=True)
    else:
        return x


@gluon.jit
def appended(items, item):
    """Return a tuple with one more item."""
    return items + (item,)  # noqa: RUF005


@gluon.jit
def replaced(items, INDEX: gl.constexpr, item):
    """Return a tuple with another item at INDEX."""
    return items[:INDEX] + (item,) + items[INDEX + 1 :]  # noqa: RUF005


@gluon.jit
def load_columns(ptr, offsets, columns):
    """Load a block by offsets from ptr; elements from `columns` on are zeros. None: all are loaded."""
    if columns is None:
        return gl.amd.cdna3.buffer_load(ptr, offsets)
    else:
        known = gl.arange(0, offsets.shape[1], layout=gl.SliceLayout(0, offsets.type.layout)) < columns
        return gl.amd.cdna3.buffer_load(ptr, offsets, mask=known[None, :], other=0.0)


@gluon.constexpr_function
def lane_columns(layout):
    """Return the neighbouring columns that a lane has in a blocked layout of [rows, columns]."""
    return layout.size_per_thread[1]


@gluon.jit
def load_lines(ptr, offsets, stride, k):
    """Load 4 of k from those that `offsets` has, each with this stride: 4 parts, zeros from k on. None: all are loaded.

    A part has a base of its own in scalar registers, so that all share the vector registers of the offsets.
    """
    parts = ()
    for part in gl.static_range(4):
        if k is None:
            x = gl.amd.cdna3.buffer_load(ptr + part * stride, offsets)
        else:
            known = part + 4 * gl.arange(0, 16, layout=gl.SliceLayout(1, offsets.type.layout)) < k
            x = gl.amd.cdna3.buffer_load(ptr + part * stride, offsets, mask=known[:, None], other=0)
        parts = appended(parts, x)
    return parts


@gluon.jit
def load_unaligned_lines(ptr, offsets, stride, k, end, skipped, IS_PAIR: gl.constexpr):
    """Load like `load_lines`, from a matrix of `end` lines with any stride.

    ptr: of elements, also if IS_PAIR and offsets are in words. No k follows the k that are given. The first `skipped`
    of them are zeros.
    """
    parts = ()
    for part in gl.static_range(4):
        start = ptr + part * stride
        words = gl.multiple_of(start.to(gl.pointer_type(gl.int32), bitcast=True), 16) if IS_PAIR else start
        if k is None:
            x = gl.amd.cdna3.buffer_load(words, offsets)
        else:
            at = part + 4 * gl.arange(0, 16, layout=gl.SliceLayout(1, offsets.type.layout))
            known = ((at >= skipped) & (at < k))[:, None]
            if IS_PAIR:  # nothing behind the matrix is loaded
                left = (k - 1 - part) * stride + end - 2 * offsets
                x = gl.amd.cdna3.buffer_load(words, offsets, mask=known & (left > 1), other=0)
                last = gl.load(ptr + (k - 1) * stride + end - 1, k > 0, 0.0).to(gl.int16, bitcast=True).to(gl.int32)
                x = gl.where(known & (left == 1), last, x)
            else:
                x = gl.amd.cdna3.buffer_load(words, offsets, mask=known, other=0.0)
        parts = appended(parts, x)
    return parts
