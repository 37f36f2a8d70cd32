"""Building blocks of Gluon kernels for Hopper (sm_90): rings in shared memory, layouts, tensor maps, softmax steps.

In all of these kernels one or two warpgroups (four warps each) multiply, and other warps load for them by TMA.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels.common.softmax import LOG2_E

ROWS = gl.constexpr(64)
"""Rows of a wgmma accumulator."""
GROUP_0, GROUP_1 = gl.constexpr(0), gl.constexpr(1)
"""Indices of the warpgroups. Plain ints would have no type among the arguments of warp_specialize."""
CLEARED = gl.constexpr(16)
"""Rows that `clear_rows_from` clears at a time; more would take too many registers."""


# Rings


class Ring(NamedTuple):
    """A ring of slots [slots, ..., rows, columns] in shared memory, with two barriers for each slot.

    ready: completes when the slot has been filled; free: when all readers are done with it.
    """

    slots: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor


@gluon.jit
def make_ring(
    SLOTS: gl.constexpr, DTYPE: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr, READERS: gl.constexpr
):
    """Allocate a Ring of SLOTS blocks. Each block is filled by one arrival and released by READERS arrivals."""
    slots = gl.allocate_shared_memory(DTYPE, [SLOTS] + BLOCK, LAYOUT)  # noqa: RUF005
    ready, free = make_barriers(SLOTS, 1, READERS)
    return Ring(slots, ready, free)


@gluon.jit
def make_barriers(SLOTS: gl.constexpr, WRITERS: gl.constexpr, READERS: gl.constexpr):
    """Allocate the (ready, free) barriers of SLOTS slots, which wait for WRITERS and READERS arrivals."""
    ready, free = mbarrier.allocate_mbarrier(batch=SLOTS), mbarrier.allocate_mbarrier(batch=SLOTS)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(ready.index(slot), count=WRITERS)
        mbarrier.init(free.index(slot), count=READERS)
    return ready, free


@gluon.jit
def slot_of(at, ring):
    """Return (slot, phase of its barriers) of block `at`, counted from the ring's first block."""
    SLOTS: gl.constexpr = ring.slots.shape[0]
    return at % SLOTS, at // SLOTS & 1


@gluon.jit
def ready_slot(ring, at):
    """Wait until block `at` has been filled, and return its slot."""
    slot, phase = slot_of(at, ring)
    mbarrier.wait(ring.ready.index(slot), phase)
    return ring.slots.index(slot)


@gluon.jit
def release(ring, at):
    """Arrive at the `free` barrier of block `at`."""
    slot, _ = slot_of(at, ring)
    mbarrier.arrive(ring.free.index(slot))


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """Return the (stage, phase) that follow, in a ring of STAGES that is walked without a block counter."""
    is_last = stage == STAGES - 1
    return gl.where(is_last, 0, stage + 1), gl.where(is_last, phase ^ 1, phase)


# Layouts


@gluon.constexpr_function
def accumulator_layout(columns, dtype):
    """Layout of a wgmma accumulator [ROWS, columns] whose operands are of `dtype`."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 256 // dtype.primitive_bitwidth])


@gluon.constexpr_function
def rows_layout(columns):
    """Layout of rows of 16-bit elements in which neighbouring lanes access neighbouring memory."""
    return gl.BlockedLayout([1, 8], [256 // columns, columns // 8], [4, 1], [1, 0])


@gluon.jit
def matrix(buffer):
    """View a buffer [1, ..., rows, columns] as a matrix."""
    return buffer.reshape([buffer.shape[len(buffer.shape) - 2], buffer.shape[len(buffer.shape) - 1]])


@gluon.jit
def halves(x):
    """Split a tensor [rows, columns] into its left and its right half."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)).split()


# Tensor maps


@gluon.jit
def heads_map(
    x, batch, heads, rows, columns, COLUMNS: gl.constexpr, BLOCK: gl.constexpr, DTYPE: gl.constexpr
):  # fmt: skip
    """Make a tensor map of Heads in blocks of [1, 1, BLOCK, COLUMNS]."""
    SHAPE: gl.constexpr = [1, 1, BLOCK, COLUMNS]
    return tma.make_tensor_descriptor(
        x.ptr, [batch, heads, rows, columns], [x.stride_batch, x.stride_heads, x.stride_rows, 1], SHAPE,
        gl.NVMMASharedLayout.get_default_for(SHAPE, DTYPE),
    )  # fmt: skip


@gluon.jit
def columns_map(
    x, batch, heads, rows, columns, COLUMNS: gl.constexpr, BLOCK: gl.constexpr, DTYPE: gl.constexpr
):  # fmt: skip
    """Make a tensor map of Heads with contiguous columns, transposed, in blocks of [1, 1, COLUMNS, BLOCK]."""
    SHAPE: gl.constexpr = [1, 1, COLUMNS, BLOCK]
    return tma.make_tensor_descriptor(
        x.ptr, [batch, heads, columns, rows], [x.stride_batch, x.stride_heads, x.stride_columns, 1], SHAPE,
        gl.NVMMASharedLayout.get_default_for(SHAPE, DTYPE),
    )  # fmt: skip


# Softmax


@gluon.jit
def positive(scale):
    """Return (sign, scale): the factor 1, -1 or 0 to multiply queries by, and a scale > 0 in units of log2.

    The maximum of a row is taken before its scores are scaled, which needs a scale > 0.
    """
    sign = gl.where(scale > 0, 1.0, gl.where(scale < 0, -1.0, 0.0))
    return sign, gl.where(scale == 0, 1.0, scale * sign) * LOG2_E


@gluon.jit
def exp2(x):
    """2 ** x in one instruction; denormal results are flushed to 0."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def raise_max(s, row_max, scale, EMPTY: gl.constexpr):
    """Return (new row maximum, origin to subtract from scores) after one more block of scores.

    EMPTY: a row may have seen nothing but -inf, and -inf - -inf is NaN; its origin is 0.
    """
    new_max = gl.maximum(row_max, gl.max(s, 1) * scale)
    return new_max, gl.where(new_max == float("-inf"), 0.0, new_max) if EMPTY else new_max


@gluon.jit
def scaled_rows(x, factors, LAYOUT: gl.constexpr):
    """Multiply each row of x by its factor."""
    return x * gl.convert_layout(factors, gl.SliceLayout(1, LAYOUT))[:, None]


# Memory


@gluon.jit
def clear_rows_from(buffer, first):
    """Zero the rows of a matrix in shared memory from `first` on: 0 times an infinity that lies there would be NaN.

    Each warpgroup writes the same zeros, and waits for its own writes only.
    """
    LAYOUT: gl.constexpr = rows_layout(buffer.shape[1])
    if first < buffer.shape[0]:
        for part in gl.static_range(buffer.shape[0] // CLEARED):
            rows = buffer.slice(part * CLEARED, CLEARED)
            inside = part * CLEARED + gl.arange(0, CLEARED, layout=gl.SliceLayout(1, LAYOUT)) < first
            values = rows.load(LAYOUT)
            rows.store(gl.where(inside[:, None], values, gl.zeros_like(values)))
        fence_async_shared()


@gluon.jit
def head_of(x, batch, head):
    """Address of a head of Heads or HeadRows, by 64-bit offsets."""
    return x.ptr + batch.to(gl.int64) * x.stride_batch + head.to(gl.int64) * x.stride_heads
