"""Shared memory of attention for Hopper, and the tensor maps by which it is filled."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


class Ring(NamedTuple):
    """Slots [number, ..., rows, columns] of shared memory, with extents of 1 for further dims of a map. Each has two
    barriers: it has been filled; it has been read."""

    slots: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor


class Buffers(NamedTuple):
    """q: ROWS queries for each group. k: blocks of BLOCK_N keys; v: of as many values, as they are loaded. columns: the
    same values by column, [HEAD_DIM_V, BLOCK_N], for groups that cannot multiply them as they are; or None."""

    q: Ring
    k: Ring
    v: Ring
    columns: Ring


@gluon.jit
def make_ring(
    SLOTS: gl.constexpr, DTYPE: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr, READERS: gl.constexpr,
):  # fmt: skip
    """A Ring. One arrival fills a slot, and each of its readers arrives."""
    ring = Ring(
        gl.allocate_shared_memory(DTYPE, [SLOTS] + BLOCK, LAYOUT),  # noqa: RUF005
        mbarrier.allocate_mbarrier(batch=SLOTS), mbarrier.allocate_mbarrier(batch=SLOTS),
    )  # fmt: skip
    for i in gl.static_range(SLOTS):
        mbarrier.init(ring.ready.index(i), count=1)
        mbarrier.init(ring.free.index(i), count=READERS)
    return ring


@gluon.jit
def slot_of(at, ring):
    """(slot of a ring, phase of its barriers) of the ring's block number `at`."""
    SLOTS: gl.constexpr = ring.slots.shape[0]
    return at % SLOTS, at // SLOTS & 1


@gluon.jit
def matrix(buffer):
    """A buffer [..., rows, columns] without its first dims, of an extent of 1."""
    return buffer.reshape([buffer.shape[-2], buffer.shape[-1]])


@gluon.constexpr_function
def product_layout(columns, dtype):
    """Of a product of ROWS rows, of operands of that dtype."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 256 // dtype.primitive_bitwidth])


@gluon.constexpr_function
def rows_layout(columns):
    """Of ROWS rows of 16 bits, each read or written by neighbouring lanes."""
    return gl.BlockedLayout([1, 8], [256 // columns, columns // 8], [4, 1], [1, 0])


@gluon.jit
def scores_layout(keys):
    """Of scores of a ring's blocks of keys."""
    return product_layout(keys.slots.shape[-2], keys.slots.dtype)


@gluon.jit
def output_layout(values):
    """Of what is summed of a ring's values."""
    return product_layout(operand(values.slots.index(0)).shape[1], values.slots.dtype)


@gluon.jit
def values_of(buffers):
    """The ring of values that products take."""
    return buffers.v if buffers.columns.slots is None else buffers.columns


@gluon.jit
def operand(values):
    """A slot of values as the right side of a product, [keys, columns]. Of 8 bits, values lie by column: wgmma takes no
    others."""
    return matrix(values) if values.dtype.primitive_bitwidth == 16 else matrix(values).permute((1, 0))


@gluon.jit
def ready_slot(ring, at):
    """The slot of a ring's block number `at`, once it has been filled."""
    slot, phase = slot_of(at, ring)
    mbarrier.wait(ring.ready.index(slot), phase)
    return ring.slots.index(slot)


@gluon.jit
def release(ring, at):
    """Say that a ring's block number `at` has been read."""
    slot, _ = slot_of(at, ring)
    mbarrier.arrive(ring.free.index(slot))


@gluon.jit
def heads_map(
    x, batch, heads, rows, columns, COLUMNS: gl.constexpr, BLOCK: gl.constexpr, DTYPE: gl.constexpr
):  # fmt: skip
    """A tensor map of Heads, in blocks of [1, 1, BLOCK, COLUMNS]."""
    SHAPE: gl.constexpr = [1, 1, BLOCK, COLUMNS]
    return tma.make_tensor_descriptor(
        x.ptr, [batch, heads, rows, columns], [x.stride_batch, x.stride_heads, x.stride_rows, 1], SHAPE,
        gl.NVMMASharedLayout.get_default_for(SHAPE, DTYPE),
    )  # fmt: skip


@gluon.jit
def columns_map(
    x, batch, heads, rows, columns, COLUMNS: gl.constexpr, BLOCK: gl.constexpr, DTYPE: gl.constexpr
):  # fmt: skip
    """A tensor map of Heads whose rows are innermost, in blocks of [1, 1, COLUMNS, BLOCK]."""
    SHAPE: gl.constexpr = [1, 1, COLUMNS, BLOCK]
    return tma.make_tensor_descriptor(
        x.ptr, [batch, heads, columns, rows], [x.stride_batch, x.stride_heads, x.stride_columns, 1], SHAPE,
        gl.NVMMASharedLayout.get_default_for(SHAPE, DTYPE),
    )  # fmt: skip
