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

from kernels.attention.hopper_buffers import matrix, slot_of
from kernels.attention.hopper_tiles import ROWS, Tile, first_step, key_blocks, next_step, steps_of_program, tile_at
from kernels.common.tensors import HeadRows, Heads, HeadScalars

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)
HEADROOM = gl.constexpr(7.0)
"""Probabilities of float8 go up to 2 to this power, so that few of them underflow."""
CLEARED = gl.constexpr(16)
"""Rows of V that are cleared together: more would take registers that the loop needs."""


class Result(NamedTuple):
    """Where it goes; lse.ptr may be null. head_dim: of out."""

    out: Heads
    lse: HeadRows
    head_dim: gl.tensor


class Factors(NamedTuple):
    """What the numbers of a head of q, k and v are to be multiplied by, > 0; or, with addresses of None, by 1."""

    q: HeadScalars
    k: HeadScalars
    v: HeadScalars


@gluon.jit
def attend_tiles(
    result, factors, buffers, tiling, queue, scale, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr,
    PADDED: gl.constexpr, PINGPONG: gl.constexpr, ME: gl.constexpr,
):  # fmt: skip
    """Group number ME's part of this program's tiles."""
    GROUPS: gl.constexpr = buffers.q.slots.shape[0]
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    BLOCK_N: gl.constexpr = buffers.k.slots.shape[-2]
    COLUMNS: gl.constexpr = buffers.q.slots.shape[-1]
    K_WIDTH: gl.constexpr = 256 // buffers.q.slots.dtype.primitive_bitwidth
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, K_WIDTH])
    Q_LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    # The maximum is taken before scaling, which needs a scale > 0: else Q takes its sign.
    sign = gl.where(scale > 0, 1.0, gl.where(scale < 0, -1.0, 0.0))
    scale = gl.where(scale == 0, 1.0, scale * sign) * LOG2_E
    values = values_of(buffers)
    PERMUTED: gl.constexpr = buffers.columns.slots is not None
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [4, 1], [16, operand(values.slots.index(0)).shape[1], K_WIDTH]
    )
    at = 0
    done = 0
    taken = 0
    if ME == 1:
        pass_turn(ME, PINGPONG)
    step = first_step(tiling)
    while step < steps_of_program(tiling):
        tile = tile_at(step, tiling, BLOCK_M)
        step = next_step(step, taken, tiling, queue)
        taken += 1
        if tile.first < tile.seqlen_q:
            first = tile.first + ME * ROWS
            blocks = key_blocks(tile.first, BLOCK_M, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT)
            whole = key_blocks(first, ROWS, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT)
            rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S_LAYOUT))
            of_scores, of_values = factors_of(factors, tile, tiling.group)
            q_tile = matrix(buffers.q.slots.index(ME))
            mbarrier.wait(buffers.q.ready.index(ME), done & 1)
            if sign != 1.0:
                q_tile.store((q_tile.load(Q_LAYOUT).to(gl.float32) * sign).to(q_tile.dtype))
                fence_async_shared()
            acc, row_max, sums = attend_tile(
                at, blocks, whole, q_tile, buffers.q.free.index(ME), buffers.k, values, tile, rows, tiling.window,
                scale * of_scores, BOUND_LEFT, BOUND_RIGHT, PINGPONG, ME, PERMUTED, S_LAYOUT, O_LAYOUT,
            )  # fmt: skip
            at += blocks.end - blocks.begin
            done += 1
            row_sum = gl.convert_layout(gl.sum(sums, 1), gl.SliceLayout(1, S_LAYOUT))
            store_lse(result.lse, tile, rows, row_max, row_sum)
            acc = warpgroup_mma_wait(0, deps=[acc])
            slot, _ = slot_of(at - 1, values)
            mbarrier.arrive(values.free.index(slot))
            # A sum is 0 in a row that saw no key, and only there.
            acc = scaled_rows(acc, of_values / gl.where(row_sum == 0.0, 1.0, row_sum), O_LAYOUT)
            store_tile(result, tile, first, acc, PADDED)
    if ME == 0:
        take_turn(ME, PINGPONG)


@gluon.jit
def attend_tile(
    at, blocks, whole, q_tile, q_free, keys, values, tile, rows, window, scale, BOUND_LEFT: gl.constexpr,
    BOUND_RIGHT: gl.constexpr, PINGPONG: gl.constexpr, ME: gl.constexpr, PERMUTED: gl.constexpr,
    S_LAYOUT: gl.constexpr, O_LAYOUT: gl.constexpr,
):  # fmt: skip
    """(accumulator, row maxima in units of log2, sums of the lanes) of a tile; its last product is still running.

    at: number of the tile's first block in the rings of keys and values. blocks: those that are walked, whole:
    KeyBlocks of this group. q_free: the barrier that says that Q has been read.
    """
    BOUND: gl.constexpr = BOUND_LEFT or BOUND_RIGHT
    ROOM: gl.constexpr = HEADROOM if q_tile.dtype.primitive_bitwidth == 8 else 0.0
    acc = gl.zeros([ROWS, operand(values.slots.index(0)).shape[1]], gl.float32, O_LAYOUT)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))

    slot, phase = slot_of(at, keys)
    mbarrier.wait(keys.ready.index(slot), phase)
    take_turn(ME, PINGPONG)
    s = issue_scores(q_tile, matrix(keys.slots.index(slot)), S_LAYOUT)
    pass_turn(ME, PINGPONG)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(keys.free.index(slot))
    s = hide(s, blocks.end - 1, rows, tile, window, BOUND_LEFT, BOUND_RIGHT, S_LAYOUT)
    first_p, row_max, _ = fold(s, row_max, scale, True, ROOM)
    sums = sums_of_lanes(first_p)
    p = packed(first_p, q_tile.dtype, PERMUTED, O_LAYOUT)

    # One loop, not one for blocks that are partly hidden and one for the rest: p would be unpacked and packed between.
    for i in range(1, blocks.end - blocks.begin):
        old_slot, old_phase = slot_of(at + i - 1, values)
        slot, phase = slot_of(at + i, keys)
        mbarrier.wait(keys.ready.index(slot), phase)
        take_turn(ME, PINGPONG)
        s = issue_scores(q_tile, matrix(keys.slots.index(slot)), S_LAYOUT)
        mbarrier.wait(values.ready.index(old_slot), old_phase)
        clear_past_end(values.slots.index(old_slot), blocks.end - i, tile)
        left = left_side(p, q_tile.dtype, O_LAYOUT)
        acc = warpgroup_mma(left, operand(values.slots.index(old_slot)), acc, is_async=True)
        pass_turn(ME, PINGPONG)
        s = warpgroup_mma_wait(1, deps=[s])
        mbarrier.arrive(keys.free.index(slot))
        if BOUND:
            block = blocks.end - 1 - i
            if block >= whole.whole_end or block < whole.whole:
                s = hide(s, block, rows, tile, window, BOUND_LEFT, BOUND_RIGHT, S_LAYOUT)
        new_p, row_max, rescale = fold(s, row_max, scale, BOUND, ROOM)
        sums = scaled_rows(sums, rescale, sums.type.layout) + sums_of_lanes(new_p)
        next_p = packed(new_p, q_tile.dtype, PERMUTED, O_LAYOUT)
        acc, p = warpgroup_mma_wait(0, deps=[acc, p])
        p = next_p
        mbarrier.arrive(values.free.index(old_slot))
        acc = scaled_rows(acc, rescale, O_LAYOUT)

    mbarrier.arrive(q_free)
    count = blocks.end - blocks.begin
    slot, phase = slot_of(at + count - 1, values)
    mbarrier.wait(values.ready.index(slot), phase)
    clear_past_end(values.slots.index(slot), blocks.begin, tile)
    left = left_side(p, q_tile.dtype, O_LAYOUT)
    return warpgroup_mma(left, operand(values.slots.index(slot)), acc, is_async=True), row_max, sums


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
def packed(p, DTYPE: gl.constexpr, PERMUTED: gl.constexpr, O_LAYOUT: gl.constexpr):
    """Probabilities rounded to DTYPE, as they are kept for the product: of 8 bits, four in a word.

    wgmma wants four neighbours in a register, of which a lane has two and two that are 8 further on. PERMUTED: the keys
    of the values are in that order, too, as `hopper_load.transpose_block` puts them.
    """
    if DTYPE.primitive_bitwidth == 16:
        return gl.convert_layout(p.to(DTYPE), gl.DotOperandLayout(0, O_LAYOUT, 2))
    else:
        near_and_far = p.reshape([p.shape[0], p.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 4, 2))
        near, far = near_and_far.split()
        a, b = near.split()
        c, d = far.split()
        words = gl.inline_asm_elementwise(
            "{ .reg .b16 near, far; cvt.rn.satfinite.e4m3x2.f32 near, $2, $1;"
            "cvt.rn.satfinite.e4m3x2.f32 far, $4, $3; mov.b32 $0, {near, far}; }",
            "=r,f,f,f,f", [a, b, c, d], dtype=gl.int32, is_pure=True, pack=1,
        )  # fmt: skip
        return words if PERMUTED else neighbours(words)


@gluon.jit
def neighbours(words):
    """Words [rows, keys / 16, 4] of neighbours, from those of two and two that are 8 further on: each lane takes two
    halves from the other lanes of the same row."""
    lane = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, words.type.layout)))[None, None, :]
    return gl.inline_asm_elementwise(
        "{ .reg .b32 left, right; shfl.sync.idx.b32 left, $1, $2, 0x1c1f, 0xffffffff;"
        "shfl.sync.idx.b32 right, $1, $3, 0x1c1f, 0xffffffff; prmt.b32 $0, left, right, $4; }",
        "=r,r,r,r,r", [words, 2 * lane & 3, (2 * lane & 3) + 1, gl.where(lane < 2, 0x5410, 0x7632)],
        dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def left_side(p, DTYPE: gl.constexpr, O_LAYOUT: gl.constexpr):
    """What `packed` made as the left side of a product."""
    if DTYPE.primitive_bitwidth == 16:
        return p
    else:
        twice = gl.join(p, p)
        words = gl.join(twice, twice).reshape([p.shape[0], 4 * p.shape[1] * p.shape[2]])
        # Each word is there four times, once for each of its bytes, which a lane has one behind the other.
        words = gl.convert_layout(words, gl.DotOperandLayout(0, O_LAYOUT, 4), assert_trivial=True)
        return gl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r,r,r,r", [words], dtype=gl.float8e4nv, is_pure=True, pack=4
        )


@gluon.jit
def factors_of(factors, tile, group):
    """What a tile's scores and its results are multiplied by."""
    if factors.q.ptr is None:
        return 1.0, 1.0
    else:
        of_scores = gl.load(head_scalar(factors.q, tile, tile.head)) * gl.load(
            head_scalar(factors.k, tile, tile.head // group)
        )
        return of_scores, gl.load(head_scalar(factors.v, tile, tile.head // group))


@gluon.jit
def head_scalar(x, tile, head):
    """The address of the number of a tile's sequence and a head."""
    return x.ptr + tile.sequence.to(gl.int64) * x.stride_batch + head.to(gl.int64) * x.stride_heads


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
def issue_scores(q_tile, k_tile, S_LAYOUT: gl.constexpr):
    """The product of Q and a block of K, which is not waited for."""
    zero = gl.zeros([ROWS, k_tile.shape[0]], gl.float32, S_LAYOUT)
    return warpgroup_mma(q_tile, k_tile.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def hide(
    s, block, rows, tile: Tile, window, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr, S_LAYOUT: gl.constexpr
):  # fmt: skip
    """Scores with those of keys that a row does not see at -inf."""
    keys = block * s.shape[1] + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, S_LAYOUT))
    if BOUND_RIGHT:
        end = gl.minimum(rows + tile.shift + window.right + 1, tile.seqlen_k)
        seen = keys[None, :] < end[:, None]
    else:
        seen = (keys < tile.seqlen_k)[None, :]
    if BOUND_LEFT:
        seen = seen & (keys[None, :] >= (rows + tile.shift - window.left)[:, None])
    return gl.where(seen, s, float("-inf"))


@gluon.jit
def fold(s, row_max, scale, EMPTY: gl.constexpr, ROOM: gl.constexpr = 0.0):
    """(probabilities, new maximum, what earlier sums are rescaled by) of one more block of scores.

    EMPTY: a row may have seen nothing so far, and -inf - -inf is not a number. ROOM: probabilities go up to 2 to this
    power, and maxima are less by it.
    """
    new_max = gl.maximum(row_max, gl.max(s, 1) * scale - ROOM)
    origin = gl.where(new_max == float("-inf"), 0.0, new_max) if EMPTY else new_max
    return exp2(s * scale - origin[:, None]), new_max, exp2(row_max - origin)


@gluon.jit
def exp2(x):
    """2 ** x, denormal results as 0: one instruction."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def sums_of_lanes(p):
    """[rows, 4]: what each of the four lanes that share a row has of its sum. Shuffles are left to a tile's end."""
    return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def scaled_rows(x, factors, LAYOUT: gl.constexpr):
    """x, each row times its factor."""
    return x * gl.convert_layout(factors, gl.SliceLayout(1, LAYOUT))[:, None]


@gluon.jit
def clear_past_end(buffer, block, tile):
    """Zero what of block number `block` of V lies past the sequence's end, where that may be another's: 0 times an
    infinity is NaN. Each group writes the same zeros, and waits for its own writes only."""
    v_tile = matrix(buffer)
    if tile.ragged and v_tile.dtype.primitive_bitwidth == 16:
        COLUMNS: gl.constexpr = v_tile.shape[1]
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
        left = tile.seqlen_k - block * v_tile.shape[0]
        if left < v_tile.shape[0]:
            for part in gl.static_range(v_tile.shape[0] // CLEARED):
                rows = v_tile.slice(part * CLEARED, CLEARED)
                inside = part * CLEARED + gl.arange(0, CLEARED, layout=gl.SliceLayout(1, LAYOUT)) < left
                values = rows.load(LAYOUT)
                rows.store(gl.where(inside[:, None], values, gl.zeros_like(values)))
            fence_async_shared()


@gluon.jit
def store_lse(lse, tile, rows, row_max, row_sum):
    """Write the natural logarithm of the sum of exponentials of each row, if it is wanted."""
    if lse.ptr is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if lse.ptr.to(gl.int64, bitcast=True) != 0:
            head = lse.ptr + tile.batch.to(gl.int64) * lse.stride_batch + tile.head.to(gl.int64) * lse.stride_heads
            address = head + (tile.row_q + rows).to(gl.int64) * lse.stride_rows
            gl.store(address, row_max * LN_2 + gl.log(row_sum), mask=rows < tile.seqlen_q)


@gluon.jit
def store_tile(result, tile, first, acc, PADDED: gl.constexpr):
    """Write the rows of a group, from `first` on, as far as there are queries."""
    COLUMNS: gl.constexpr = acc.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    out = result.out
    values = gl.convert_layout(acc.to(out.ptr.dtype.element_ty), LAYOUT)
    rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))
    head = out.ptr + tile.batch.to(gl.int64) * out.stride_batch + tile.head.to(gl.int64) * out.stride_heads
    stored = (rows < tile.seqlen_q)[:, None]
    if PADDED:
        stored = stored & (columns < result.head_dim)[None, :]
    gl.store(head + (tile.row_q + rows)[:, None].to(gl.int64) * out.stride_rows + columns[None, :], values, mask=stored)
