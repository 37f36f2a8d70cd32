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
def shared_layout(dtype):
    """Return the layout of [rows, STEP_BYTES] in LDS.

    Pieces of 16 bytes are swapped by row, so that neither writes of rows nor reads of 16 rows have bank conflicts.
    """
    return gl.SwizzledSharedLayout(lane_elements(dtype), 1, 8, order=[1, 0])


@gluon.constexpr_function
def pair_layout(WAVES_M, WAVES_N):
    """Return the layout of a `pair`: a lane has 8 neighbouring columns of a row."""
    warps = [[0, 32 << bit] for bit in range(WAVES_N.bit_length() - 1)]
    warps += [[16 << bit, 0] for bit in range(WAVES_M.bit_length() - 1)]
    lanes = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 8], [0, 16]]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4]], lanes, warps, [], [16 * WAVES_M, 32 * WAVES_N])


@gluon.jit
def pair(left, right, WAVES_M: gl.constexpr, WAVES_N: gl.constexpr):
    """Join two blocks of products, whose columns alternate in runs of four. Nothing moves."""
    rows: gl.constexpr = left.shape[0]
    columns: gl.constexpr = left.shape[1]
    joined = gl.join(left, right).reshape([rows, columns // 4, 4, 2]).permute((0, 1, 3, 2)).reshape([rows, 2 * columns])
    return gl.convert_layout(joined, pair_layout(WAVES_M, WAVES_N), assert_trivial=True)


@gluon.jit
def interleaved(lines, INDEX: gl.constexpr, COUNT: gl.constexpr, BLOCK: gl.constexpr):
    """Return the columns of block INDEX of COUNT, in the order in which `pair` joins blocks; lines: 0, ..., BLOCK - 1.

    If COUNT is odd, the last block has no other to be joined with.
    """
    if INDEX == COUNT - 1 and COUNT % 2 == 1:
        return INDEX * BLOCK + lines
    else:
        return INDEX // 2 * 2 * BLOCK + INDEX % 2 * 4 + lines // 4 * 8 + lines % 4


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
