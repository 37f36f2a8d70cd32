"""Scaled dot-product attention, forward, for Hopper: specialised warps, fed by TMA, in Gluon.

A program has GROUPS warpgroups that multiply, each with ROWS queries of a tile, and one warp that loads: Q once a tile,
K and V into rings of STAGES blocks that all groups share. A tile's blocks of keys are walked from the last one to the
first. A group issues the product of Q and the next K before that of P and the last V, and does its softmax while the
latter runs (FlashAttention-3, https://arxiv.org/abs/2407.08608).
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.hopper_tiles import (
    ROWS,
    Tile,
    Tiling,
    first_step,
    key_blocks,
    make_queue,
    next_step,
    publish_next_step,
    steps_of_program,
    tile_at,
)
from kernels.attention.problem import Extents, Window
from kernels.common.tensors import HeadRows, Heads

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)
CLEARED = gl.constexpr(16)
"""Rows of V that are cleared together: more would take registers that the loop needs."""
# An int among the arguments of warp_specialize would have no type, and assigning a constexpr makes a tensor of it.
GROUP_0, GROUP_1, GROUP_2 = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)


class Buffers(NamedTuple):
    """Shared memory: q [GROUPS, 1, 1, ROWS, HEAD_DIM], k and v [STAGES, 1, 1, BLOCK_N, their head dim], and for each
    slot two barriers: it has been filled; it has been read."""

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q_ready: gl.shared_memory_descriptor
    q_free: gl.shared_memory_descriptor
    k_ready: gl.shared_memory_descriptor
    k_free: gl.shared_memory_descriptor
    v_ready: gl.shared_memory_descriptor
    v_free: gl.shared_memory_descriptor


class Result(NamedTuple):
    """Where it goes; lse.ptr may be null. head_dim: of out."""

    out: Heads
    lse: HeadRows
    head_dim: gl.tensor


@gluon.jit
def attention_forward_hopper(
    q: Heads, k: Heads, v: Heads, out: Heads, lse: HeadRows, extents: Extents, query_blocks, batch, window: Window,
    scale,
    HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr,
    STAGES: gl.constexpr, REGISTERS: gl.constexpr, PINGPONG: gl.constexpr,
    cu_seqlens_q=None, cu_seqlens_k=None, counter=None,
    BOUND_LEFT: gl.constexpr = False, BOUND_RIGHT: gl.constexpr = False, PADDED: gl.constexpr = True,
):  # fmt: skip
    """out = softmax(scale * q k^T) v, of what each query sees: `forward.attention_forward` without its features.

    Grid: (programs,), any number of them, best that of the multiprocessors. They share the tiles: query_blocks of
    GROUPS * ROWS queries of each head and batch, query_blocks * GROUPS * ROWS >= the queries of any sequence. Each
    takes each programs-th tile or, with a counter (int32 [1], 0 at first), the next one as soon as it is done with one.
    num_warps is 4: the kernel that is compiled has more.

    q, k, v: float16 or bfloat16, at addresses of multiples of 16 bytes, as are the strides, which are positive, but for
    the last one, which is 1, and those along extents of 1. No extent is 0. The tensor maps of them are made here, in
    the program's scratch memory.

    HEAD_DIM, HEAD_DIM_V: 64, 128 or 256. BLOCK_N: keys of a block. REGISTERS: of a thread that multiplies. PINGPONG:
    of two groups, one issues products while the other does its softmax.
    """
    gl.static_assert(GROUPS == 2 or (GROUPS == 3 and not PINGPONG))
    DTYPE: gl.constexpr = q.ptr.dtype.element_ty
    # Sequences that lie one behind the other have no batch.
    batches = batch if cu_seqlens_q is None else 1
    q_map = heads_map(q, batches, extents.heads, extents.seqlen_q, extents.head_dim, HEAD_DIM, ROWS, DTYPE)
    k_map = heads_map(k, batches, extents.heads_kv, extents.seqlen_k, extents.head_dim, HEAD_DIM, BLOCK_N, DTYPE)
    v_map = heads_map(v, batches, extents.heads_kv, extents.seqlen_k, extents.head_dim_v, HEAD_DIM_V, BLOCK_N, DTYPE)
    tiling = Tiling(
        query_blocks, extents.heads, extents.heads // extents.heads_kv, batch, extents.seqlen_q, extents.seqlen_k,
        extents.max_seqlen_k, cu_seqlens_q, cu_seqlens_k, window, counter,
        paired(query_blocks * extents.heads * batch, BOUND_RIGHT and counter is None),
    )  # fmt: skip
    result = Result(out, lse, extents.head_dim_v)
    buffers = make_buffers(q_map, k_map, v_map, GROUPS, STAGES)
    queue = make_queue(counter, GROUPS)
    # The first partition has the kernel's own warps, and the registers that the others leave.
    if GROUPS == 2:
        gl.warp_specialize([
            (attend_tiles, (result, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG, GROUP_0)),
            (attend_tiles, (result, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG, GROUP_1)),
            (load_tiles, (q_map, k_map, v_map, buffers, tiling, queue, BOUND_LEFT, BOUND_RIGHT)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (attend_tiles, (result, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG, GROUP_0)),
            (attend_tiles, (result, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG, GROUP_1)),
            (attend_tiles, (result, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG, GROUP_2)),
            (load_tiles, (q_map, k_map, v_map, buffers, tiling, queue, BOUND_LEFT, BOUND_RIGHT)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])  # fmt: skip


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
def paired(tiles, UNEVEN: gl.constexpr):
    """Whether programs take the first and the last block of queries together: where blocks differ in what they see, and
    each program has several pairs."""
    return tiles >= 4 * gl.num_programs(0) if UNEVEN else False


@gluon.jit
def make_buffers(q_map, k_map, v_map, GROUPS: gl.constexpr, STAGES: gl.constexpr):
    """Buffers with their barriers: one arrival fills a slot, and each group that reads it arrives."""
    buffers = Buffers(
        gl.allocate_shared_memory(q_map.dtype, [GROUPS] + q_map.block_shape, q_map.layout),  # noqa: RUF005
        gl.allocate_shared_memory(k_map.dtype, [STAGES] + k_map.block_shape, k_map.layout),  # noqa: RUF005
        gl.allocate_shared_memory(v_map.dtype, [STAGES] + v_map.block_shape, v_map.layout),  # noqa: RUF005
        mbarrier.allocate_mbarrier(batch=GROUPS), mbarrier.allocate_mbarrier(batch=GROUPS),
        mbarrier.allocate_mbarrier(batch=STAGES), mbarrier.allocate_mbarrier(batch=STAGES),
        mbarrier.allocate_mbarrier(batch=STAGES), mbarrier.allocate_mbarrier(batch=STAGES),
    )  # fmt: skip
    for g in gl.static_range(GROUPS):
        mbarrier.init(buffers.q_ready.index(g), count=1)
        mbarrier.init(buffers.q_free.index(g), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(buffers.k_ready.index(i), count=1)
        mbarrier.init(buffers.v_ready.index(i), count=1)
        mbarrier.init(buffers.k_free.index(i), count=GROUPS)
        mbarrier.init(buffers.v_free.index(i), count=GROUPS)
    return buffers


@gluon.jit
def slot_of(at, STAGES: gl.constexpr):
    """(slot of a ring, phase of its barriers) of the ring's block number `at`."""
    return at % STAGES, at // STAGES & 1


@gluon.jit
def matrix(buffer):
    """A buffer [1, 1, rows, columns] without its first dims."""
    return buffer.reshape([buffer.shape[2], buffer.shape[3]])


# The warp that loads


@gluon.jit
def load_tiles(q_map, k_map, v_map, buffers, tiling, queue, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr):
    """Fills the buffers with all that this program's tiles take."""
    GROUPS: gl.constexpr = buffers.q.shape[0]
    STAGES: gl.constexpr = buffers.k.shape[0]
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    BLOCK_N: gl.constexpr = buffers.k.shape[3]
    at = 0
    done = 0
    taken = 0
    step = first_step(tiling)
    while step < steps_of_program(tiling):
        tile = tile_at(step, tiling, BLOCK_M)
        step = publish_next_step(step, taken, tiling, queue)
        taken += 1
        if tile.first < tile.seqlen_q:
            head_kv = tile.head // tiling.group
            seen = key_blocks(tile.first, BLOCK_M, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT)
            for g in gl.static_range(GROUPS):
                row = tile.row_q + tile.first + g * ROWS
                mbarrier.wait(buffers.q_free.index(g), (done & 1) ^ 1)
                mbarrier.expect(buffers.q_ready.index(g), q_map.nbytes_per_cta)
                tma.async_load(q_map, [tile.batch, tile.head, row, 0], buffers.q_ready.index(g), buffers.q.index(g))
            for i in range(seen.end - seen.begin):
                row = tile.row_k + (seen.end - 1 - i) * BLOCK_N
                slot, phase = slot_of(at, STAGES)
                mbarrier.wait(buffers.k_free.index(slot), phase ^ 1)
                mbarrier.expect(buffers.k_ready.index(slot), k_map.nbytes_per_cta)
                tma.async_load(
                    k_map, [tile.batch, head_kv, row, 0], buffers.k_ready.index(slot), buffers.k.index(slot)
                )
                mbarrier.wait(buffers.v_free.index(slot), phase ^ 1)
                mbarrier.expect(buffers.v_ready.index(slot), v_map.nbytes_per_cta)
                tma.async_load(
                    v_map, [tile.batch, head_kv, row, 0], buffers.v_ready.index(slot), buffers.v.index(slot)
                )
                at += 1
            done += 1


# The groups that multiply


@gluon.jit
def attend_tiles(
    result, buffers, tiling, queue, scale, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr, PADDED: gl.constexpr,
    PINGPONG: gl.constexpr, ME: gl.constexpr,
):  # fmt: skip
    """Group number ME's part of this program's tiles."""
    GROUPS: gl.constexpr = buffers.q.shape[0]
    STAGES: gl.constexpr = buffers.k.shape[0]
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    BLOCK_N: gl.constexpr = buffers.k.shape[3]
    COLUMNS: gl.constexpr = buffers.q.shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, buffers.v.shape[4], 16])
    Q_LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
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
        tile = tile_at(step, tiling, BLOCK_M)
        step = next_step(step, taken, tiling, queue)
        taken += 1
        if tile.first < tile.seqlen_q:
            first = tile.first + ME * ROWS
            blocks = key_blocks(tile.first, BLOCK_M, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT)
            whole = key_blocks(first, ROWS, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT)
            rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, S_LAYOUT))
            q_tile = matrix(buffers.q.index(ME))
            mbarrier.wait(buffers.q_ready.index(ME), done & 1)
            if sign != 1.0:
                q_tile.store((q_tile.load(Q_LAYOUT).to(gl.float32) * sign).to(q_tile.dtype))
                fence_async_shared()
            acc, row_max, sums = attend_tile(
                at, blocks, whole, q_tile, buffers, tile, rows, tiling.window, scale, BOUND_LEFT, BOUND_RIGHT, PINGPONG,
                ME, S_LAYOUT, O_LAYOUT,
            )  # fmt: skip
            at += blocks.end - blocks.begin
            done += 1
            mbarrier.arrive(buffers.q_free.index(ME))
            row_sum = gl.convert_layout(gl.sum(sums, 1), gl.SliceLayout(1, S_LAYOUT))
            store_lse(result.lse, tile, rows, row_max, row_sum)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(buffers.v_free.index((at - 1) % STAGES))
            # A sum is 0 in a row that saw no key, and only there.
            acc = scaled_rows(acc, 1.0 / gl.where(row_sum == 0.0, 1.0, row_sum), O_LAYOUT)
            store_tile(result, tile, first, acc, PADDED)
    if ME == 0:
        take_turn(ME, PINGPONG)


@gluon.jit
def attend_tile(
    at, blocks, whole, q_tile, buffers, tile, rows, window, scale, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr,
    PINGPONG: gl.constexpr, ME: gl.constexpr, S_LAYOUT: gl.constexpr, O_LAYOUT: gl.constexpr,
):  # fmt: skip
    """(accumulator, row maxima in units of log2, sums of the lanes) of a tile; its last product is still running.

    at: number of the tile's first block in the rings. blocks: those that are walked, whole: KeyBlocks of this group.
    """
    STAGES: gl.constexpr = buffers.k.shape[0]
    BOUND: gl.constexpr = BOUND_LEFT or BOUND_RIGHT
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    DTYPE: gl.constexpr = q_tile.dtype
    acc = gl.zeros([ROWS, buffers.v.shape[4]], gl.float32, O_LAYOUT)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))

    slot, phase = slot_of(at, STAGES)
    mbarrier.wait(buffers.k_ready.index(slot), phase)
    take_turn(ME, PINGPONG)
    s = issue_scores(q_tile, matrix(buffers.k.index(slot)), S_LAYOUT)
    pass_turn(ME, PINGPONG)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(buffers.k_free.index(slot))
    s = hide(s, blocks.end - 1, rows, tile, window, BOUND_LEFT, BOUND_RIGHT, S_LAYOUT)
    new_p, row_max, _ = fold(s, row_max, scale, True)
    sums = sums_of_lanes(new_p)
    p = gl.convert_layout(new_p.to(DTYPE), P_LAYOUT)

    # One loop, not one for blocks that are partly hidden and one for the rest: p would be unpacked and packed between.
    for i in range(1, blocks.end - blocks.begin):
        old_slot, old_phase = slot_of(at + i - 1, STAGES)
        slot, phase = slot_of(at + i, STAGES)
        mbarrier.wait(buffers.k_ready.index(slot), phase)
        take_turn(ME, PINGPONG)
        s = issue_scores(q_tile, matrix(buffers.k.index(slot)), S_LAYOUT)
        mbarrier.wait(buffers.v_ready.index(old_slot), old_phase)
        clear_past_end(matrix(buffers.v.index(old_slot)), blocks.end - i, tile)
        acc = warpgroup_mma(p, matrix(buffers.v.index(old_slot)), acc, is_async=True)
        pass_turn(ME, PINGPONG)
        s = warpgroup_mma_wait(1, deps=[s])
        mbarrier.arrive(buffers.k_free.index(slot))
        if BOUND:
            block = blocks.end - 1 - i
            if block >= whole.whole_end or block < whole.whole:
                s = hide(s, block, rows, tile, window, BOUND_LEFT, BOUND_RIGHT, S_LAYOUT)
        new_p, row_max, rescale = fold(s, row_max, scale, BOUND)
        sums = scaled_rows(sums, rescale, sums.type.layout) + sums_of_lanes(new_p)
        acc, p = warpgroup_mma_wait(0, deps=[acc, p])
        mbarrier.arrive(buffers.v_free.index(old_slot))
        p = gl.convert_layout(new_p.to(DTYPE), P_LAYOUT)
        acc = scaled_rows(acc, rescale, O_LAYOUT)

    count = blocks.end - blocks.begin
    slot, phase = slot_of(at + count - 1, STAGES)
    mbarrier.wait(buffers.v_ready.index(slot), phase)
    clear_past_end(matrix(buffers.v.index(slot)), blocks.begin, tile)
    return warpgroup_mma(p, matrix(buffers.v.index(slot)), acc, is_async=True), row_max, sums


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
def fold(s, row_max, scale, EMPTY: gl.constexpr):
    """(probabilities, new maximum, what earlier sums are rescaled by) of one more block of scores.

    EMPTY: a row may have seen nothing so far, and -inf - -inf is not a number.
    """
    new_max = gl.maximum(row_max, gl.max(s, 1) * scale)
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
def clear_past_end(v_tile, block, tile):
    """Zero what of block number `block` of V lies past the sequence's end, where that may be another's: 0 times an
    infinity is NaN. Each group writes the same zeros, and waits for its own writes only."""
    if tile.ragged:
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
