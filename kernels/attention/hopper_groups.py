"""What the groups of attention for Hopper do, each with ROWS queries of a tile: two products and a softmax between.

A tile's blocks of keys are walked from the last one to the first. A group issues the product of Q and the next K before
that of P and the last V, and does its softmax while the latter runs (FlashAttention-3,
https://arxiv.org/abs/2407.08608).
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.hopper_buffers import (
    matrix,
    operand,
    output_layout,
    ready_slot,
    release,
    rows_layout,
    scores_layout,
    values_of,
)
from kernels.attention.hopper_float8 import no_maxima, probabilities, rescaled, risen_seldom
from kernels.attention.hopper_scores import finished_scores, part_of
from kernels.attention.hopper_softmax import (
    LN_2,
    LOG2_E,
    exp2,
    left_side,
    packed,
    risen,
    scaled_rows,
    sums_of_lanes,
)
from kernels.attention.hopper_tiles import (
    ROWS,
    first_step,
    next_step,
    steps_of_program,
    tile_at,
)
from kernels.common.tensors import HeadRows, Heads

CLEARED = gl.constexpr(16)
"""Rows of V that are cleared together: more would take registers that the loop needs."""


class Result(NamedTuple):
    """Where it goes; lse.ptr may be null. head_dim: of out."""

    out: Heads
    lse: HeadRows
    head_dim: gl.tensor


@gluon.jit
def attend_tiles(
    result, scoring, buffers, tiling, queue, scale, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr,
    PADDED: gl.constexpr, PINGPONG: gl.constexpr, ME: gl.constexpr,
):  # fmt: skip
    """Group number ME's part of this program's tiles."""
    # The maximum is taken before scaling, which needs a scale > 0: else Q takes its sign.
    sign = gl.where(scale > 0, 1.0, gl.where(scale < 0, -1.0, 0.0))
    scale = gl.where(scale == 0, 1.0, scale * sign) * LOG2_E
    at = 0
    done = 0
    taken = 0
    if ME == 1:
        pass_turn(ME, PINGPONG)
    step = first_step(tiling)
    while step < steps_of_program(tiling):
        tile = tile_at(step, tiling)
        step = next_step(step, taken, tiling, queue)
        taken += 1
        if tile.first < tile.seqlen_q:
            part = part_of(tile, tiling, scoring, scale, buffers, BOUND_LEFT, BOUND_RIGHT, ME)
            wait_for_queries(done & 1, sign, buffers.q, ME)
            if buffers.q.slots.dtype.primitive_bitwidth == 16:
                acc, row_max, sums = attend_part(
                    at, part, scoring, tiling.window, buffers, BOUND_LEFT, BOUND_RIGHT, PINGPONG, ME
                )  # fmt: skip
            else:
                acc, row_max, sums = attend_float8_part(
                    at, part, scoring, tiling.window, buffers, BOUND_LEFT, BOUND_RIGHT, PINGPONG, ME
                )  # fmt: skip
            at += part.blocks.end - part.blocks.begin
            done += 1
            acc = warpgroup_mma_wait(0, deps=[acc])
            release(values_of(buffers), at - 1)
            row_sum = gl.convert_layout(gl.sum(sums, 1), row_max.type.layout)
            store_lse(result.lse, part, row_max, row_sum)
            # A sum is 0 in a row that saw no key, and only there.
            acc = scaled_rows(acc, part.factor / gl.where(row_sum == 0.0, 1.0, row_sum), acc.type.layout)
            store_rows(result, part, acc, PADDED)
    if ME == 0:
        take_turn(ME, PINGPONG)


@gluon.jit
def wait_for_queries(phase, sign, ring, ME: gl.constexpr):
    """Wait for this group's queries of a tile, and give them the sign of the scale."""
    mbarrier.wait(ring.ready.index(ME), phase)
    if sign != 1.0:
        q_tile = matrix(ring.slots.index(ME))
        LAYOUT: gl.constexpr = rows_layout(q_tile.shape[1])
        q_tile.store((q_tile.load(LAYOUT).to(gl.float32) * sign).to(q_tile.dtype))
        fence_async_shared()


@gluon.jit
def attend_part(
    at, part, scoring, window, buffers, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr, PINGPONG: gl.constexpr,
    ME: gl.constexpr,
):  # fmt: skip
    """(accumulator, row maxima in units of log2, sums of the lanes) of a group's part. The last product still runs.

    at: number of its first block in the rings of keys and values.
    """
    BOUND: gl.constexpr = BOUND_LEFT or BOUND_RIGHT
    values = values_of(buffers)
    O_LAYOUT: gl.constexpr = output_layout(values)
    blocks = part.blocks
    count = blocks.end - blocks.begin
    acc = gl.zeros([ROWS, operand(values.slots.index(0)).shape[1]], gl.float32, O_LAYOUT)

    q = matrix(buffers.q.slots.index(ME))
    s = issue_scores(q, at, buffers.k, PINGPONG, ME)
    pass_turn(ME, PINGPONG)
    s = warpgroup_mma_wait(0, deps=[s])
    release_scored(at, count == 1, buffers, ME)
    s, scale = finished_scores(s, blocks.end - 1, part, scoring, window, BOUND_LEFT, BOUND_RIGHT, True)
    nothing = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, s.type.layout))
    row_max, origin = risen(s, nothing, scale, True)
    first_p = exp2(s * scale - origin[:, None])
    sums = sums_of_lanes(first_p)
    p = packed(first_p, buffers)

    # One loop, not one for blocks that are partly hidden and one for the rest: p would be unpacked and packed between.
    for i in range(1, count):
        s = issue_scores(q, at + i, buffers.k, PINGPONG, ME)
        acc = issue_values(acc, p, at + i - 1, blocks.end - i, part.tile, values)
        pass_turn(ME, PINGPONG)
        s = warpgroup_mma_wait(1, deps=[s])
        release_scored(at + i, i == count - 1, buffers, ME)
        s, scale = finished_scores(s, blocks.end - 1 - i, part, scoring, window, BOUND_LEFT, BOUND_RIGHT, BOUND)
        new_max, origin = risen(s, row_max, scale, BOUND)
        # Here, and not where the sums are rescaled: new probabilities go where the old ones are, as they are made.
        acc, p = warpgroup_mma_wait(0, deps=[acc, p])
        release(values, at + i - 1)
        new_p = exp2(s * scale - origin[:, None])
        rescale = exp2(row_max - origin)
        row_max = new_max
        sums = scaled_rows(sums, rescale, sums.type.layout) + sums_of_lanes(new_p)
        p = packed(new_p, buffers)
        acc = scaled_rows(acc, rescale, O_LAYOUT)
    return issue_values(acc, p, at + count - 1, blocks.begin, part.tile, values), row_max, sums


@gluon.jit
def attend_float8_part(
    at, part, scoring, window, buffers, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr, PINGPONG: gl.constexpr,
    ME: gl.constexpr,
):  # fmt: skip
    """`attend_part` of 8 bits, whose products take half the time, so that shared memory is what they wait for: queries
    are kept in registers, as far as there are enough, and `risen_seldom` has few shuffles."""
    BOUND: gl.constexpr = BOUND_LEFT or BOUND_RIGHT
    values = values_of(buffers)
    O_LAYOUT: gl.constexpr = output_layout(values)
    blocks = part.blocks
    count = blocks.end - blocks.begin
    acc = gl.zeros([ROWS, operand(values.slots.index(0)).shape[1]], gl.float32, O_LAYOUT)
    q = matrix(buffers.q.slots.index(ME))
    IN_REGISTERS: gl.constexpr = q.shape[1] <= 128  # there are not enough for more
    if IN_REGISTERS:
        q = q.load(gl.DotOperandLayout(0, scores_layout(buffers.k), 4))
        mbarrier.arrive(buffers.q.free.index(ME))

    s = issue_scores(q, at, buffers.k, PINGPONG, ME)
    pass_turn(ME, PINGPONG)
    s = warpgroup_mma_wait(0, deps=[s])
    release(buffers.k, at)
    s, scale = finished_scores(s, blocks.end - 1, part, scoring, window, BOUND_LEFT, BOUND_RIGHT, True)
    row_max, _ = risen_seldom(s, no_maxima(buffers.k), scale)
    first_p = probabilities(s, row_max, scale, True)
    sums = sums_of_lanes(first_p)
    p = packed(first_p, buffers)

    for i in range(1, count):
        s = issue_scores(q, at + i, buffers.k, PINGPONG, ME)
        acc = issue_values(acc, p, at + i - 1, blocks.end - i, part.tile, values)
        pass_turn(ME, PINGPONG)
        s = warpgroup_mma_wait(1, deps=[s])
        release(buffers.k, at + i)
        s, scale = finished_scores(s, blocks.end - 1 - i, part, scoring, window, BOUND_LEFT, BOUND_RIGHT, BOUND)
        row_max, rescale = risen_seldom(s, row_max, scale)
        acc, p = warpgroup_mma_wait(0, deps=[acc, p])
        release(values, at + i - 1)
        new_p = probabilities(s, row_max, scale, BOUND)
        sums = sums * rescale + sums_of_lanes(new_p)
        p = packed(new_p, buffers)
        acc = rescaled(acc, rescale)
    if not IN_REGISTERS:
        mbarrier.arrive(buffers.q.free.index(ME))
    row_max = gl.convert_layout(gl.max(row_max, 1), gl.SliceLayout(1, scores_layout(buffers.k)))
    return issue_values(acc, p, at + count - 1, blocks.begin, part.tile, values), row_max, sums


@gluon.jit
def release_scored(at, is_last, buffers, ME: gl.constexpr):
    """Say that block number `at` of K has been read and, if it is the last one of a tile, this group's queries."""
    release(buffers.k, at)
    mbarrier.arrive(buffers.q.free.index(ME), pred=is_last)


@gluon.jit
def issue_scores(q, at, keys, PINGPONG: gl.constexpr, ME: gl.constexpr):
    """The product of queries and block number `at` of K, which is not waited for. It is this group's turn from here
    on."""
    k_tile = matrix(ready_slot(keys, at))
    take_turn(ME, PINGPONG)
    zero = gl.zeros([ROWS, k_tile.shape[0]], gl.float32, scores_layout(keys))
    return warpgroup_mma(q, k_tile.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def issue_values(acc, p, at, block, tile, values):
    """acc and the product of probabilities and block number `at` of V, which is number `block` of its tile's keys; it
    is not waited for."""
    buffer = ready_slot(values, at)
    clear_past_end(buffer, block, tile)
    left = left_side(p, values.slots.dtype, output_layout(values))
    return warpgroup_mma(left, operand(buffer), acc, is_async=True)


@gluon.jit
def take_turn(ME: gl.constexpr, PINGPONG: gl.constexpr):
    """Wait until the other group has issued its products. Barriers 14 and 15 are taken by nothing else."""
    if PINGPONG:
        gl.inline_asm("bar.sync 14, 256;" if ME == 0 else "bar.sync 15, 256;")


@gluon.jit
def pass_turn(ME: gl.constexpr, PINGPONG: gl.constexpr):
    """Let the other group issue its products."""
    if PINGPONG:
        gl.inline_asm("bar.arrive 15, 256;" if ME == 0 else "bar.arrive 14, 256;")


@gluon.jit
def clear_past_end(buffer, block, tile):
    """Zero what of block number `block` of V lies past the sequence's end, where that may be another's: 0 times an
    infinity is NaN. Each group writes the same zeros, and waits for its own writes only."""
    v_tile = matrix(buffer)
    if tile.ragged and v_tile.dtype.primitive_bitwidth == 16:
        LAYOUT: gl.constexpr = rows_layout(v_tile.shape[1])
        left = tile.seqlen_k - block * v_tile.shape[0]
        if left < v_tile.shape[0]:
            for part in gl.static_range(v_tile.shape[0] // CLEARED):
                rows = v_tile.slice(part * CLEARED, CLEARED)
                inside = part * CLEARED + gl.arange(0, CLEARED, layout=gl.SliceLayout(1, LAYOUT)) < left
                values = rows.load(LAYOUT)
                rows.store(gl.where(inside[:, None], values, gl.zeros_like(values)))
            fence_async_shared()


@gluon.jit
def store_lse(lse, part, row_max, row_sum):
    """Write the natural logarithm of the sum of exponentials of each row, if it is wanted."""
    if lse.ptr is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if lse.ptr.to(gl.int64, bitcast=True) != 0:
            tile = part.tile
            rows = part.first + gl.arange(0, ROWS, layout=row_max.type.layout)
            head = lse.ptr + tile.batch.to(gl.int64) * lse.stride_batch + tile.head.to(gl.int64) * lse.stride_heads
            address = head + (tile.row_q + rows).to(gl.int64) * lse.stride_rows
            gl.store(address, row_max * LN_2 + gl.log(row_sum), mask=rows < tile.seqlen_q)


@gluon.jit
def store_rows(result, part, acc, PADDED: gl.constexpr):
    """Write results, in what order lines of memory want them."""
    COLUMNS: gl.constexpr = acc.shape[1]
    LAYOUT: gl.constexpr = rows_layout(COLUMNS)
    out, tile = result.out, part.tile
    values = gl.convert_layout(acc.to(out.ptr.dtype.element_ty), LAYOUT)
    rows = part.first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))
    head = out.ptr + tile.batch.to(gl.int64) * out.stride_batch + tile.head.to(gl.int64) * out.stride_heads
    stored = (rows < tile.seqlen_q)[:, None]
    if PADDED:
        stored = stored & (columns < result.head_dim)[None, :]
    gl.store(head + (tile.row_q + rows)[:, None].to(gl.int64) * out.stride_rows + columns[None, :], values, mask=stored)
