"""What the groups of attention for Hopper do, each with ROWS queries of a tile: two products and a softmax between.

A tile's blocks of keys are walked from the last one to the first. A group issues the product of Q and the next K before
that of P and the last V, and does its softmax while the latter runs (FlashAttention-3,
https://arxiv.org/abs/2407.08608). So it does from tile to tile: the next K is then the first one of the next tile.
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
    queries_slot,
    ready_slot,
    release,
    rows_layout,
    scores_layout,
    values_of,
)
from kernels.attention.hopper_scores import finished_scores, part_of
from kernels.attention.hopper_softmax import (
    LN_2,
    LOG2_E,
    Softmax,
    fold,
    headroom,
    left_side,
    packed,
    scaled_rows,
    sums_of_lanes,
)
from kernels.attention.hopper_tiles import (
    GROUPS,
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
    values = values_of(buffers)
    O_LAYOUT: gl.constexpr = output_layout(values)
    # Whether there is room for the queries of the next tile before all products with those of this one are done.
    AHEAD: gl.constexpr = buffers.q.slots.shape[0] > GROUPS
    # The maximum is taken before scaling, which needs a scale > 0: else Q takes its sign.
    sign = gl.where(scale > 0, 1.0, gl.where(scale < 0, -1.0, 0.0))
    scale = gl.where(scale == 0, 1.0, scale * sign) * LOG2_E
    if ME == 1:
        pass_turn(ME, PINGPONG)
    steps = steps_of_program(tiling)
    step, taken, tile = tile_from(first_step(tiling), gl.to_tensor(0), steps, tiling, queue)
    if step < steps:
        part, softmax = begin(tile, 0, 0, sign, scale, scoring, buffers, tiling, BOUND_LEFT, BOUND_RIGHT, PINGPONG, ME)
        at = 0
        done = 0
        more = True
        while more:
            acc, softmax = attend_blocks(
                at, done, softmax, part, scoring, tiling.window, buffers, BOUND_LEFT, BOUND_RIGHT, PINGPONG, ME
            )  # fmt: skip
            at += part.blocks.end - part.blocks.begin
            done += 1
            old = part
            old_softmax = softmax
            step = next_step(step, taken, tiling, queue)
            step, taken, tile = tile_from(step, taken + 1, steps, tiling, queue)
            more = step < steps
            if AHEAD and more:
                part = part_of(tile, tiling, scoring, scale, buffers, BOUND_LEFT, BOUND_RIGHT, ME)
                s = issue_first_scores(at, done, sign, buffers, PINGPONG, ME)
                acc = issue_values(acc, old_softmax.p, at - 1, old.blocks.begin, old.tile, values)
                pass_turn(ME, PINGPONG)
                s = warpgroup_mma_wait(1, deps=[s])
                softmax = fold_first(s, at, done, part, scoring, tiling.window, buffers, BOUND_LEFT, BOUND_RIGHT, ME)
                acc, _ = warpgroup_mma_wait(0, deps=[acc, old_softmax.p])
            else:
                acc = issue_values(acc, old_softmax.p, at - 1, old.blocks.begin, old.tile, values)
                acc = warpgroup_mma_wait(0, deps=[acc])
            release(values, at - 1)
            store_part(result, old, old_softmax, acc, PADDED, O_LAYOUT)
            if not AHEAD and more:
                part, softmax = begin(
                    tile, at, done, sign, scale, scoring, buffers, tiling, BOUND_LEFT, BOUND_RIGHT, PINGPONG, ME
                )  # fmt: skip
    if ME == 0:
        take_turn(ME, PINGPONG)


@gluon.jit
def tile_from(step, taken, steps, tiling, queue):
    """(step, how many were taken before it, tile) of the first tile with queries, from a step on."""
    tile = tile_at(gl.minimum(step, steps - 1), tiling)
    if tiling.cu_seqlens_q is not None:
        while (step < steps) & (tile.first >= tile.seqlen_q):
            step = next_step(step, taken, tiling, queue)
            taken += 1
            tile = tile_at(gl.minimum(step, steps - 1), tiling)
    return step, taken, tile


@gluon.jit
def begin(
    tile, at, done, sign, scale, scoring, buffers, tiling, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr,
    PINGPONG: gl.constexpr, ME: gl.constexpr,
):  # fmt: skip
    """(Part, Softmax of its first block of keys) of tile number `done`, when nothing else is to be done."""
    part = part_of(tile, tiling, scoring, scale, buffers, BOUND_LEFT, BOUND_RIGHT, ME)
    s = issue_first_scores(at, done, sign, buffers, PINGPONG, ME)
    pass_turn(ME, PINGPONG)
    s = warpgroup_mma_wait(0, deps=[s])
    return part, fold_first(s, at, done, part, scoring, tiling.window, buffers, BOUND_LEFT, BOUND_RIGHT, ME)


@gluon.jit
def issue_first_scores(at, done, sign, buffers, PINGPONG: gl.constexpr, ME: gl.constexpr):
    """The product of tile number `done` and its first block of keys, number `at`, which is not waited for. It is this
    group's turn from here on."""
    slot, phase = queries_slot(done, buffers.q, ME)
    mbarrier.wait(buffers.q.ready.index(slot), phase)
    if sign != 1.0:
        q_tile = matrix(buffers.q.slots.index(slot))
        LAYOUT: gl.constexpr = rows_layout(q_tile.shape[1])
        q_tile.store((q_tile.load(LAYOUT).to(gl.float32) * sign).to(q_tile.dtype))
        fence_async_shared()
    return issue_scores(at, slot, buffers, PINGPONG, ME)


@gluon.jit
def fold_first(
    s, at, done, part, scoring, window, buffers, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr, ME: gl.constexpr
):  # fmt: skip
    """The Softmax of the first scores of tile number `done`."""
    blocks = part.blocks
    release(buffers.k, at)
    q_slot, _ = queries_slot(done, buffers.q, ME)
    mbarrier.arrive(buffers.q.free.index(q_slot), pred=blocks.end - blocks.begin == 1)
    s, scale = finished_scores(s, blocks.end - 1, part, scoring, window, BOUND_LEFT, BOUND_RIGHT, True)
    nothing = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, s.type.layout))
    p, row_max, _ = fold(s, nothing, scale, True, headroom(buffers))
    return Softmax(packed(p, buffers), row_max, sums_of_lanes(p))


@gluon.jit
def attend_blocks(
    at, done, softmax, part, scoring, window, buffers, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr,
    PINGPONG: gl.constexpr, ME: gl.constexpr,
):  # fmt: skip
    """(accumulator, Softmax) of tile number `done`, but for the product of its last values.

    at: the number of its first block in the rings of keys and values; softmax: that of this block.
    """
    BOUND: gl.constexpr = BOUND_LEFT or BOUND_RIGHT
    values = values_of(buffers)
    O_LAYOUT: gl.constexpr = output_layout(values)
    blocks = part.blocks
    count = blocks.end - blocks.begin
    p, row_max, sums = softmax
    q_slot, _ = queries_slot(done, buffers.q, ME)
    acc = gl.zeros([ROWS, operand(values.slots.index(0)).shape[1]], gl.float32, O_LAYOUT)
    # One loop, not one for blocks that are partly hidden and one for the rest: p would be unpacked and packed between.
    for i in range(1, count):
        s = issue_scores(at + i, q_slot, buffers, PINGPONG, ME)
        acc = issue_values(acc, p, at + i - 1, blocks.end - i, part.tile, values)
        pass_turn(ME, PINGPONG)
        s = warpgroup_mma_wait(1, deps=[s])
        release(buffers.k, at + i)
        mbarrier.arrive(buffers.q.free.index(q_slot), pred=i == count - 1)
        s, scale = finished_scores(s, blocks.end - 1 - i, part, scoring, window, BOUND_LEFT, BOUND_RIGHT, BOUND)
        new_p, row_max, rescale = fold(s, row_max, scale, BOUND, headroom(buffers))
        sums = scaled_rows(sums, rescale, sums.type.layout) + sums_of_lanes(new_p)
        next_p = packed(new_p, buffers)
        acc, p = warpgroup_mma_wait(0, deps=[acc, p])
        p = next_p
        release(values, at + i - 1)
        acc = scaled_rows(acc, rescale, O_LAYOUT)
    return acc, Softmax(p, row_max, sums)


@gluon.jit
def issue_scores(at, q_slot, buffers, PINGPONG: gl.constexpr, ME: gl.constexpr):
    """The product of a slot of Q and block number `at` of K, which is not waited for. It is this group's turn then."""
    k_tile = matrix(ready_slot(buffers.k, at))
    take_turn(ME, PINGPONG)
    zero = gl.zeros([ROWS, k_tile.shape[0]], gl.float32, scores_layout(buffers.k))
    q_tile = matrix(buffers.q.slots.index(q_slot))
    return warpgroup_mma(q_tile, k_tile.permute((1, 0)), zero, use_acc=False, is_async=True)


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
def store_part(result, part, softmax, acc, PADDED: gl.constexpr, O_LAYOUT: gl.constexpr):
    """Write a group's part of a tile, as far as there are queries."""
    row_sum = gl.convert_layout(gl.sum(softmax.sums, 1), softmax.row_max.type.layout)
    store_lse(result.lse, part, softmax.row_max, row_sum)
    # A sum is 0 in a row that saw no key, and only there.
    acc = scaled_rows(acc, part.factor / gl.where(row_sum == 0.0, 1.0, row_sum), O_LAYOUT)
    store_rows(result, part, acc, PADDED)


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
