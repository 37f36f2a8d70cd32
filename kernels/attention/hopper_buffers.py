"""Shared memory of attention for Hopper, and the tensor maps by which it is filled."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


class Ring(NamedTuple):
    """Slots [number, ..., rows, columns], with an extent of 1 for each dim of a map before these, of shared memory, each with two barriers: it has been filled; it has been
    read."""

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
