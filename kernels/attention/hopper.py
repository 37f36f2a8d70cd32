"""Scaled dot-product attention, forward, for Hopper: a Gluon kernel with specialised warps, fed by TMA.

A program has two warpgroups that multiply, each with ROWS queries of a tile, and warps that load: Q once a tile, K and
V into rings of STAGES blocks that both groups share. A tile's blocks of keys are walked from the last one to the first.
A group issues the product of Q and the next K before that of P and the last V, and does its softmax while the latter
runs (FlashAttention-3, https://arxiv.org/abs/2407.08608).

The sections of this file follow a tile: the two kernels, the assignment of tiles to programs, the loading warps, the
multiplying warpgroups, scores, results. `hopper_float8` has the parts specific to 8 bits.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.attention.hopper_float8 import (
    as_left_operand,
    no_maxima,
    pack_e4m3,
    probabilities,
    raise_max_seldom,
    scaled_if_needed,
    transpose_block,
)
from kernels.common.hopper import (
    GROUP_0,
    GROUP_1,
    ROWS,
    Ring,
    accumulator_layout,
    clear_rows_from,
    columns_map,
    exp2,
    head_of,
    heads_map,
    make_barriers,
    make_ring,
    matrix,
    positive,
    raise_max,
    ready_slot,
    release,
    rows_layout,
    scaled_rows,
    slot_of,
)
from kernels.common.softmax import LN_2, LOG2_E
from kernels.common.tensors import Extents, HeadRows, Heads, HeadScalars, Vector, Window

GROUPS = gl.constexpr(2)
"""Warpgroups that multiply."""
BLOCK_M = gl.constexpr(128)
"""Queries of a tile: ROWS for each warpgroup."""
ROW_MAJOR = gl.constexpr(True)


class Buffers(NamedTuple):
    """Rings in shared memory.

    q: a slot of ROWS queries for each warpgroup. k, v: blocks of BLOCK_N keys and values as they are loaded. columns:
    the values transposed, [HEAD_DIM_V, BLOCK_N], where wgmma cannot take them as they are; else a Ring of None.
    """

    q: Ring
    k: Ring
    v: Ring
    columns: Ring


class Result(NamedTuple):
    """Outputs. lse.ptr may be null. head_dim: columns of out."""

    out: Heads
    lse: HeadRows
    head_dim: gl.tensor


@gluon.jit
def attention_forward_hopper(
    q, k, v, out: Heads, lse: HeadRows, extents: Extents, query_blocks, batch, window: Window, scale,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr, PINGPONG: gl.constexpr,
    cu_seqlens_q=None, cu_seqlens_k=None, counter=None, bias: Heads = None, alibi_slopes: HeadScalars = None,
    softcap=0.0, BOUND_LEFT: gl.constexpr = False, BOUND_RIGHT: gl.constexpr = False, PADDED: gl.constexpr = True,
    FEATURES: gl.constexpr = False, seqused_q: Vector = None, seqused_k: Vector = None,
):  # fmt: skip
    """out = softmax(scores) v: `forward.attention_forward` without its mods.

    Grid: (programs,), any number of them, best that of the multiprocessors. They share the tiles: query_blocks of 128
    queries of each head and batch, query_blocks * 128 >= the queries of any sequence. Each takes each programs-th tile
    or, with a counter (int32 [1], 0 at first), the next one as soon as it is done with one.
    num_warps is 4: the kernel that is compiled has more.

    q, k, v: tensor maps of float16 or bfloat16 [batch, heads, seqlen, head dim], or [heads, tokens, head dim] with
    cu_seqlens, in boxes of 64 queries and of BLOCK_N keys, of 64, 128 or 256 columns. REGISTERS: registers of a thread
    that multiplies. PINGPONG: one group issues products while the other does its softmax. A bias has an even number of
    columns.
    """
    gl.static_assert(k.block_shape[-2] == BLOCK_N)
    tiling = make_tiling(
        extents, query_blocks, batch, window, cu_seqlens_q, cu_seqlens_k, counter, BOUND_RIGHT, seqused_q, seqused_k
    )
    result = Result(out, lse, extents.head_dim_v)
    none = HeadScalars(None, 0, 0)
    features = Features(softcap if FEATURES else None, alibi_slopes, bias)
    transforms = Transforms(Factors(none, none, none), features)
    buffers = Buffers(
        make_ring(GROUPS, q.dtype, q.block_shape, q.layout, 1),
        make_ring(STAGES, k.dtype, k.block_shape, k.layout, GROUPS),
        make_ring(STAGES, v.dtype, v.block_shape, v.layout, GROUPS),
        Ring(None, None, None),
    )
    queue = make_queue(counter)
    gdc_wait()
    # The first partition has the kernel's own warps, and the registers that the others leave.
    gl.warp_specialize([
        (attend_tiles, (result, transforms, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG,
                        GROUP_0)),
        (attend_tiles, (result, transforms, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG,
                        GROUP_1)),
        (load_tiles, (q, k, v, buffers, tiling, queue, BOUND_LEFT, BOUND_RIGHT, ROW_MAJOR)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip


@gluon.jit
def attention_fp8_hopper(
    q: Heads, k: Heads, v: Heads, out: Heads, q_scale: HeadScalars, k_scale: HeadScalars, v_scale: HeadScalars,
    lse: HeadRows, extents: Extents, query_blocks, batch, window: Window, scale,
    HEAD_DIM: gl.constexpr, V_ROWS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, PINGPONG: gl.constexpr,
    cu_seqlens_q=None, cu_seqlens_k=None, counter=None,
    BOUND_LEFT: gl.constexpr = False, BOUND_RIGHT: gl.constexpr = False, PADDED: gl.constexpr = True,
):  # fmt: skip
    """out = softmax(scale * q k * q_scale * k_scale) v * v_scale, of float8_e4m3fn, with a factor for each head.

    Grid and all else as in `attention_forward_hopper`. Values that lie by row are transposed on their way by the warps
    that load, of which there are four then.

    q, k, v: float8_e4m3fn, v with contiguous rows if V_ROWS, else with contiguous columns, whose strides are multiples
    of 16 bytes then. out: float16 or bfloat16. scale >= 0. HEAD_DIM: 64, 128 or 256, of q, k, v and out.
    """
    DTYPE: gl.constexpr = q.ptr.dtype.element_ty
    gdc_wait()  # the maps are written to memory, where those of an earlier launch may still be in use
    batches = batch if cu_seqlens_q is None else 1
    q_map = heads_map(q, batches, extents.heads, extents.seqlen_q, extents.head_dim, HEAD_DIM, ROWS, DTYPE)
    k_map = heads_map(k, batches, extents.heads_kv, extents.seqlen_k, extents.head_dim, HEAD_DIM, BLOCK_N, DTYPE)
    if V_ROWS:
        v_map = heads_map(v, batches, extents.heads_kv, extents.seqlen_k, extents.head_dim, HEAD_DIM, BLOCK_N, DTYPE)
    else:
        v_map = columns_map(v, batches, extents.heads_kv, extents.seqlen_k, extents.head_dim, HEAD_DIM, BLOCK_N, DTYPE)
    every = Vector(None, 0)
    tiling = make_tiling(
        extents, query_blocks, batch, window, cu_seqlens_q, cu_seqlens_k, counter, BOUND_RIGHT, every, every
    )
    result = Result(out, lse, extents.head_dim)
    transforms = Transforms(Factors(q_scale, k_scale, v_scale), Features(None, None, None))
    q_ring = make_ring(GROUPS, DTYPE, q_map.block_shape, q_map.layout, 1)
    k_ring = make_ring(STAGES, DTYPE, k_map.block_shape, k_map.layout, GROUPS)
    if V_ROWS:
        COLUMNS: gl.constexpr = [1, 1, HEAD_DIM, BLOCK_N]
        LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for(COLUMNS, DTYPE)
        v_ring = make_ring(STAGES, DTYPE, v_map.block_shape, v_map.layout, 1)
        columns = make_ring(STAGES, DTYPE, COLUMNS, LAYOUT, GROUPS)
    else:
        v_ring = make_ring(STAGES, DTYPE, v_map.block_shape, v_map.layout, GROUPS)
        columns = Ring(None, None, None)
    buffers = Buffers(q_ring, k_ring, v_ring, columns)
    queue = make_queue(counter)
    # The first partition has the kernel's own warps, and the registers that the others leave.
    gl.warp_specialize([
        (attend_tiles, (result, transforms, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG,
                        GROUP_0)),
        (attend_tiles, (result, transforms, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG,
                        GROUP_1)),
        (load_tiles, (q_map, k_map, v_map, buffers, tiling, queue, BOUND_LEFT, BOUND_RIGHT, V_ROWS)),
    ], [4, 4 if V_ROWS else 1], [REGISTERS, 48 if V_ROWS else 24])  # fmt: skip


# Which tiles a program has, and which blocks of keys a tile sees


class Tiling(NamedTuple):
    """All tiles of a launch: `blocks` blocks of queries of each head of each sequence.

    Attributes:
        group: heads of q that share one of k.
        batch: sequences.
        seqlen_q, seqlen_k: rows of a sequence or, with cu_seqlens_q and cu_seqlens_k, of all of them.
        max_seqlen_k: keys of a sequence beyond these do not count; None: all count.
        cu_seqlens_q, cu_seqlens_k: where sequences begin and end in tensors without a batch; or None.
        counter: int32 [1], from which programs take their next tiles; None: each has a fixed share.
        paired: the tiles of a share come in pairs, as `tile_at` says.
        seqlens_k: int32 [batch], the keys of each sequence, where these are found by block tables; or None.
        seqused_q, seqused_k: int32 [batch], of how many of its rows a sequence consists; None or null: of all.
    """

    blocks: gl.tensor
    heads: gl.tensor
    group: gl.tensor
    batch: gl.tensor
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    max_seqlen_k: gl.tensor
    cu_seqlens_q: gl.tensor
    cu_seqlens_k: gl.tensor
    window: Window
    counter: gl.tensor
    paired: gl.tensor
    seqlens_k: gl.tensor = None
    seqused_q: Vector = Vector(None, 0)
    seqused_k: Vector = Vector(None, 0)


class WorkTile(NamedTuple):
    """BLOCK_M queries of one head and sequence, from query `first` on.

    Attributes:
        sequence: index of the sequence.
        batch: its index along the tensors' first dim.
        row_q, row_k: its first rows in the tensors.
        shift: the diagonal of query i is key i + shift.
        ragged: rows of another sequence may follow its last key.
    """

    sequence: gl.tensor
    batch: gl.tensor
    head: gl.tensor
    first: gl.tensor
    row_q: gl.tensor
    row_k: gl.tensor
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    shift: gl.tensor
    ragged: gl.constexpr


class KeyBlocks(NamedTuple):
    """Blocks [begin, end) hold keys that some of a tile's queries see, at least one block; those in [whole, whole_end)
    are seen in full by all of them."""

    begin: gl.tensor
    whole: gl.tensor
    whole_end: gl.tensor
    end: gl.tensor


class Queue(NamedTuple):
    """Two slots through which the warp that loads hands tile indices to the warpgroups; or None without a counter."""

    steps: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor


@gluon.jit
def make_tiling(
    extents, query_blocks, batch, window, cu_seqlens_q, cu_seqlens_k, counter, BOUND_RIGHT: gl.constexpr,
    seqused_q, seqused_k,
):  # fmt: skip
    """Make the Tiling of a kernel's arguments."""
    return Tiling(
        query_blocks, extents.heads, extents.heads // extents.heads_kv, batch, extents.seqlen_q, extents.seqlen_k,
        extents.max_seqlen_k, cu_seqlens_q, cu_seqlens_k, window, counter,
        are_paired(query_blocks * extents.heads * batch, BOUND_RIGHT and counter is None)
        & (window.right < extents.seqlen_k), seqused_q=seqused_q, seqused_k=seqused_k,
    )  # fmt: skip


@gluon.jit
def are_paired(tiles, UNEVEN: gl.constexpr):
    """Pair tiles where they differ in how many keys they see and each program has several pairs."""
    return tiles >= 4 * gl.num_programs(0) if UNEVEN else False


@gluon.jit
def make_queue(counter):
    """Make the Queue of both warpgroups, if there is a counter."""
    if counter is None:
        return Queue(None, None, None)
    else:
        LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        steps = gl.allocate_shared_memory(gl.int32, [2, 1], LAYOUT)
        ready, free = make_barriers(2, 1, GROUPS)
        return Queue(steps, ready, free)


# A program counts its tiles by steps: 0, 1, ... of its own share or, with a counter, the indices of all tiles.


@gluon.jit
def first_step(tiling):
    return 0 if tiling.counter is None else gl.program_id(0)


@gluon.jit
def end_step(tiling):
    """Return the step that ends a program's work."""
    blocks = gl.where(tiling.paired, (tiling.blocks + 1) // 2, tiling.blocks)
    units = blocks * tiling.heads * tiling.batch
    if tiling.counter is not None:
        return units
    else:
        mine = gl.cdiv(units - gl.program_id(0), gl.num_programs(0))
        return gl.where(tiling.paired, mine * 2, mine)


@gluon.jit
def publish_next_step(step, taken, tiling, queue):
    """Return the next step, and hand it to the warpgroups; for the warp that loads. taken: steps taken before."""
    if tiling.counter is None:
        return step + 1
    else:
        following = gl.num_programs(0) + gl.atomic_add(tiling.counter, 1)
        slot = taken & 1
        mbarrier.wait(queue.free.index(slot), (taken >> 1 & 1) ^ 1)
        queue.steps.index(slot).store(
            gl.full([1], following, gl.int32, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
        )
        mbarrier.arrive(queue.ready.index(slot))
        return following


@gluon.jit
def next_step(step, taken, tiling, queue):
    """Return the step that `publish_next_step` handed over; for a warpgroup."""
    if tiling.counter is None:
        return step + 1
    else:
        slot = taken & 1
        mbarrier.wait(queue.ready.index(slot), taken >> 1 & 1)
        following = gl.max(queue.steps.index(slot).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
        mbarrier.arrive(queue.free.index(slot))
        return following


@gluon.jit
def tile_at(step, tiling):
    """Return this program's WorkTile at a step.

    Where tiles are paired, a first block of queries goes with a last one, so that under a causal mask each pair has as
    much to do. The middle block of an odd number is done twice.
    """
    blocks = gl.where(tiling.paired, (tiling.blocks + 1) // 2, tiling.blocks)
    if tiling.counter is None:
        unit = gl.program_id(0) + gl.where(tiling.paired, step // 2, step) * gl.num_programs(0)
    else:
        unit = step
    place = unit % blocks
    outer = unit // blocks
    block = gl.where(tiling.paired & (step % 2 == 1), place, tiling.blocks - 1 - place)
    head = outer % tiling.heads
    batch = outer // tiling.heads
    row_q, seqlen_q = sequence(tiling.cu_seqlens_q, tiling.seqused_q, batch, tiling.seqlen_q)
    row_k, seqlen_k = sequence(tiling.cu_seqlens_k, tiling.seqused_k, batch, tiling.seqlen_k)
    if tiling.max_seqlen_k is not None:
        seqlen_k = gl.minimum(seqlen_k, tiling.max_seqlen_k)
    if tiling.seqlens_k is not None:
        seqlen_k = gl.minimum(gl.maximum(gl.load(tiling.seqlens_k + batch), 0), seqlen_k)
    shift = gl.where(tiling.window.bottom_right, seqlen_k - seqlen_q, 0)
    RAGGED: gl.constexpr = tiling.cu_seqlens_k is not None or tiling.seqlens_k is not None
    batch_index = gl.where(RAGGED, 0, batch)
    return WorkTile(batch, batch_index, head, block * BLOCK_M, row_q, row_k, seqlen_q, seqlen_k, shift, RAGGED)


@gluon.jit
def sequence(cu_seqlens, seqused, batch, rows):
    """Return (first row, length) of a sequence, as `forward.sequence`."""
    if cu_seqlens is None:
        first, length = 0, rows
    else:
        first = gl.minimum(gl.maximum(gl.load(cu_seqlens + batch), 0), rows)
        length = gl.maximum(gl.minimum(gl.load(cu_seqlens + batch + 1), rows) - first, 0)
    if seqused.ptr is not None:
        used = gl.load(seqused.ptr + batch * seqused.stride_rows, mask=seqused.ptr.to(gl.int64) != 0, other=rows)
        length = gl.minimum(length, gl.maximum(used, 0))
    return first, length


@gluon.jit
def key_blocks(
    first, rows, tile, window, BLOCK_N: gl.constexpr, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr
):  # fmt: skip
    """Return the KeyBlocks of `rows` queries from query `first` on."""
    diagonal = first + tile.shift
    end = tile.seqlen_k
    whole_end = tile.seqlen_k // BLOCK_N
    if BOUND_RIGHT:
        end = gl.minimum(end, gl.maximum(diagonal + rows + window.right, 0))
        whole_end = gl.minimum(whole_end, gl.maximum(diagonal + window.right + 1, 0) // BLOCK_N)
    begin = 0
    whole = 0
    if BOUND_LEFT:
        begin = gl.maximum(diagonal - window.left, 0) // BLOCK_N
        whole = gl.cdiv(gl.maximum(diagonal + rows - 1 - window.left, 0), BLOCK_N)
    return KeyBlocks(begin, whole, whole_end, gl.maximum(gl.cdiv(end, BLOCK_N), begin + 1))


# The warps that load


@gluon.jit
def load_tiles(
    q_map, k_map, v_map, buffers, tiling, queue, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr,
    V_ROWS: gl.constexpr,
):  # fmt: skip
    """Fill the buffers with all that this program's tiles take, then let the next launch begin.

    buffers.columns is filled by four warps, one block behind. V_ROWS: v_map has a row for each key; else a column.
    """
    BLOCK_N: gl.constexpr = buffers.k.slots.shape[-2]
    TRANSPOSED: gl.constexpr = buffers.columns.slots is not None
    RAGGED: gl.constexpr = tiling.cu_seqlens_k is not None
    at = 0
    done = 0
    taken = 0
    left = 0
    step = first_step(tiling)
    while step < end_step(tiling):
        tile = tile_at(step, tiling)
        step = publish_next_step(step, taken, tiling, queue)
        taken += 1
        if tile.first < tile.seqlen_q:
            head_kv = tile.head // tiling.group
            seen = key_blocks(tile.first, BLOCK_M, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT)
            for i in range(seen.end - seen.begin):
                key = (seen.end - 1 - i) * BLOCK_N
                slot, phase = slot_of(at, buffers.k)
                fill(k_map, buffers.k, slot, phase, tile.batch, head_kv, tile.row_k + key, 0)
                if i == 0:  # after the keys, whose slot is free before those of the queries
                    load_queries(q_map, buffers.q, done, tile, tile.batch)
                slot, phase = slot_of(at, buffers.v)
                if V_ROWS:
                    fill(v_map, buffers.v, slot, phase, tile.batch, head_kv, tile.row_k + key, 0)
                else:
                    fill(v_map, buffers.v, slot, phase, tile.batch, head_kv, 0, tile.row_k + key)
                if TRANSPOSED:
                    if at > 0:
                        transpose_values(at - 1, left, buffers, RAGGED)
                    left = tile.seqlen_k - key
                at += 1
            done += 1
    if TRANSPOSED:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if at > 0:
            transpose_values(at - 1, left, buffers, RAGGED)
    gdc_launch_dependents()


@gluon.jit
def load_queries(q_map, ring, done, tile, batch):
    """Load the queries of a tile, a slot for each warpgroup. done: tiles loaded before."""
    for group in gl.static_range(GROUPS):
        row = tile.row_q + tile.first + group * ROWS
        fill(q_map, ring, group, done & 1, batch, tile.head, row, 0)


@gluon.jit
def fill(x_map, ring, slot, phase, batch, head, row, column):
    """Load a block into a slot of a ring, once that is free."""
    ready = ring.ready.index(slot)
    mbarrier.wait(ring.free.index(slot), phase ^ 1)
    mbarrier.expect(ready, x_map.nbytes_per_cta)
    if len(x_map.block_shape) == 4:
        tma.async_load(x_map, [batch, head, row, column], ready, ring.slots.index(slot))
    else:
        tma.async_load(x_map, [head, row, column], ready, ring.slots.index(slot))


@gluon.jit
def transpose_values(at, left, buffers, RAGGED: gl.constexpr):
    """Transpose block `at` of the values from buffers.v to buffers.columns; `left` as in `transpose_block`."""
    slot, phase = slot_of(at, buffers.v)
    new_slot, new_phase = slot_of(at, buffers.columns)
    mbarrier.wait(buffers.v.ready.index(slot), phase)
    mbarrier.wait(buffers.columns.free.index(new_slot), new_phase ^ 1)
    rows, columns = matrix(buffers.v.slots.index(slot)), matrix(buffers.columns.slots.index(new_slot))
    transpose_block(rows, columns, left, RAGGED)
    fence_async_shared()
    mbarrier.arrive(buffers.v.free.index(slot))
    mbarrier.arrive(buffers.columns.ready.index(new_slot))


# The warpgroups that multiply


class GroupPart(NamedTuple):
    """A warpgroup's part of a tile: ROWS queries from query `first` on.

    Attributes:
        blocks: the blocks of keys that are walked, those of the whole tile.
        whole: KeyBlocks of these queries alone.
        scale: makes units of log2 of products.
        slope: of ALiBi, in the unit of products; 0: none.
        factor: of results.
    """

    tile: WorkTile
    first: gl.tensor
    blocks: KeyBlocks
    whole: KeyBlocks
    scale: gl.tensor
    slope: gl.tensor
    factor: gl.tensor


@gluon.jit
def attend_tiles(
    result, transforms, buffers, tiling, queue, scale, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr,
    PADDED: gl.constexpr, PINGPONG: gl.constexpr, ME: gl.constexpr,
):  # fmt: skip
    """Compute the attention of warpgroup ME's part of each of this program's tiles."""
    sign, scale = positive(scale)
    at = 0
    done = 0
    taken = 0
    if ME == 1:
        pass_turn(ME, PINGPONG)
    step = first_step(tiling)
    while step < end_step(tiling):
        tile = tile_at(step, tiling)
        step = next_step(step, taken, tiling, queue)
        taken += 1
        if tile.first < tile.seqlen_q:
            part = part_of(tile, tiling, transforms, scale, buffers, BOUND_LEFT, BOUND_RIGHT, ME)
            wait_for_queries(done & 1, sign, buffers.q, ME)
            acc, row_max, sums = attend_part(
                at, part, transforms.features, tiling.window, buffers, BOUND_LEFT, BOUND_RIGHT, PINGPONG, ME
            )
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
def part_of(
    tile, tiling, transforms, scale, buffers, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr, ME: gl.constexpr
):  # fmt: skip
    """Return warpgroup ME's GroupPart of a tile."""
    BLOCK_N: gl.constexpr = buffers.k.slots.shape[-2]
    first = tile.first + ME * ROWS
    of_scores, of_values = factors_of(transforms.factors, tile, tiling.group)
    scale = scale * of_scores
    return GroupPart(
        tile, first, key_blocks(tile.first, BLOCK_M, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT),
        key_blocks(first, ROWS, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT), scale,
        slope_of(transforms.features, tile, scale), of_values,
    )  # fmt: skip


@gluon.jit
def wait_for_queries(phase, sign, ring, ME: gl.constexpr):
    """Wait for this warpgroup's queries of a tile, and multiply them by the sign of the scale."""
    mbarrier.wait(ring.ready.index(ME), phase)
    if sign != 1.0:
        q_tile = matrix(ring.slots.index(ME))
        LAYOUT: gl.constexpr = rows_layout(q_tile.shape[1])
        q_tile.store((q_tile.load(LAYOUT).to(gl.float32) * sign).to(q_tile.dtype))
        fence_async_shared()


@gluon.jit
def attend_part(
    at, part, features, window, buffers, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr, PINGPONG: gl.constexpr,
    ME: gl.constexpr,
):  # fmt: skip
    """Return (accumulator, row maxima in units of log2, sums by lane) of a group's part. The last product still runs.

    at: index of its first block in the rings of keys and values.

    Products of 8 bits take half the time, so that shared memory is what they wait for: queries are kept in registers as
    far as there are enough, and maxima seldom need shuffles. Maxima are [ROWS, 4] then, as `no_maxima` has them.
    """
    FLOAT8: gl.constexpr = buffers.q.slots.dtype.primitive_bitwidth == 8
    BOUND: gl.constexpr = BOUND_LEFT or BOUND_RIGHT
    values = values_of(buffers)
    blocks = part.blocks
    scale = part.scale
    count = blocks.end - blocks.begin
    acc = gl.zeros([ROWS, right_operand(values.slots.index(0)).shape[1]], gl.float32, output_layout(values))
    q = matrix(buffers.q.slots.index(ME))
    IN_REGISTERS: gl.constexpr = FLOAT8 and q.shape[1] <= 128  # there are not enough for more columns
    if IN_REGISTERS:
        q = q.load(gl.DotOperandLayout(0, scores_layout(buffers.k), 4))
        mbarrier.arrive(buffers.q.free.index(ME))

    s = issue_scores(q, at, buffers.k, PINGPONG, ME)
    pass_turn(ME, PINGPONG)
    words = load_bias(blocks.end - 1, part, features, buffers.k)
    s = warpgroup_mma_wait(0, deps=[s])
    release_scored(at, count == 1, buffers, ME)
    s = finished_scores(s, words, blocks.end - 1, part, features, window, BOUND_LEFT, BOUND_RIGHT, True)
    if FLOAT8:
        row_max, _ = raise_max_seldom(s, no_maxima(s), scale)
        first_p = probabilities(s, row_max, scale, True)
    else:
        nothing = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, s.type.layout))
        row_max, origin = raise_max(s, nothing, scale, True)
        first_p = exp2(s * scale - origin[:, None])
    sums = sums_by_lane(first_p)
    p = packed(first_p, buffers)

    # One loop, not one for blocks that are partly hidden and one for the rest: p would be unpacked and packed between.
    for i in range(1, count):
        s = issue_scores(q, at + i, buffers.k, PINGPONG, ME)
        acc = issue_values(acc, p, at + i - 1, blocks.end - i, part.tile, values)
        pass_turn(ME, PINGPONG)
        words = load_bias(blocks.end - 1 - i, part, features, buffers.k)
        s = warpgroup_mma_wait(1, deps=[s])
        release_scored(at + i, i == count - 1, buffers, ME)
        s = finished_scores(s, words, blocks.end - 1 - i, part, features, window, BOUND_LEFT, BOUND_RIGHT, BOUND)
        if FLOAT8:
            new_max, rescale = raise_max_seldom(s, row_max, scale)
        else:
            new_max, origin = raise_max(s, row_max, scale, BOUND)
        # Here, and not where the sums are rescaled: new probabilities go where the old ones are, as they are made.
        acc, p = warpgroup_mma_wait(0, deps=[acc, p])
        release(values, at + i - 1)
        if FLOAT8:
            new_p = probabilities(s, new_max, scale, BOUND)
            sums = sums * rescale + sums_by_lane(new_p)
            p = packed(new_p, buffers)
            acc = scaled_if_needed(acc, rescale)
        else:
            new_p = exp2(s * scale - origin[:, None])
            rescale = exp2(row_max - origin)
            sums = scaled_rows(sums, rescale, sums.type.layout) + sums_by_lane(new_p)
            p = packed(new_p, buffers)
            acc = scaled_rows(acc, rescale, acc.type.layout)
        row_max = new_max
    if FLOAT8 and not IN_REGISTERS:
        mbarrier.arrive(buffers.q.free.index(ME))
    if FLOAT8:
        row_max = gl.convert_layout(gl.max(row_max, 1), gl.SliceLayout(1, scores_layout(buffers.k)))
    return issue_values(acc, p, at + count - 1, blocks.begin, part.tile, values), row_max, sums


@gluon.jit
def release_scored(at, is_last, buffers, ME: gl.constexpr):
    """Release block `at` of K and, after the last one of a tile, this warpgroup's queries (of 16 bits)."""
    release(buffers.k, at)
    if buffers.q.slots.dtype.primitive_bitwidth == 16:
        mbarrier.arrive(buffers.q.free.index(ME), pred=is_last)


@gluon.jit
def issue_scores(q, at, keys, PINGPONG: gl.constexpr, ME: gl.constexpr):
    """Issue the product of queries and block `at` of K. It is this warpgroup's turn from here on."""
    k_tile = matrix(ready_slot(keys, at))
    take_turn(ME, PINGPONG)
    zero = gl.zeros([ROWS, k_tile.shape[0]], gl.float32, scores_layout(keys))
    return warpgroup_mma(q, k_tile.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def issue_values(acc, p, at, block, tile, values):
    """Issue acc + the product of probabilities and block `at` of V, which is block `block` of its tile's keys."""
    buffer = ready_slot(values, at)
    v_tile = matrix(buffer)
    if tile.ragged and v_tile.dtype.primitive_bitwidth == 16:
        clear_rows_from(v_tile, tile.seqlen_k - block * v_tile.shape[0])
    left = as_left_operand(p, values.slots.dtype, output_layout(values))
    return warpgroup_mma(left, right_operand(buffer), acc, is_async=True)


@gluon.jit
def take_turn(ME: gl.constexpr, PINGPONG: gl.constexpr):
    """Wait until the other warpgroup has issued its products. Nothing else uses barriers 14 and 15."""
    if PINGPONG:
        gl.inline_asm("bar.sync 14, 256;" if ME == 0 else "bar.sync 15, 256;")


@gluon.jit
def pass_turn(ME: gl.constexpr, PINGPONG: gl.constexpr):
    """Let the other warpgroup issue its products."""
    if PINGPONG:
        gl.inline_asm("bar.arrive 15, 256;" if ME == 0 else "bar.arrive 14, 256;")


@gluon.jit
def sums_by_lane(p):
    """Return [rows, 4]: the sums over what each of the four lanes that share a row has of it. Shuffles are left to a
    tile's end."""
    return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def packed(p, buffers):
    """Round probabilities to the dtype of the values, in the form in which they wait for the product."""
    if buffers.v.slots.dtype.primitive_bitwidth == 16:
        return gl.convert_layout(p.to(buffers.v.slots.dtype), gl.DotOperandLayout(0, output_layout(buffers.v), 2))
    else:
        return pack_e4m3(p, buffers.columns.slots is not None)


@gluon.jit
def scores_layout(keys):
    """Layout of the scores of a ring's blocks of keys."""
    return accumulator_layout(keys.slots.shape[-2], keys.slots.dtype)


@gluon.jit
def output_layout(values):
    """Layout of the accumulator of a ring's values."""
    return accumulator_layout(right_operand(values.slots.index(0)).shape[1], values.slots.dtype)


@gluon.jit
def values_of(buffers):
    """Return the ring of values that products take."""
    return buffers.v if buffers.columns.slots is None else buffers.columns


@gluon.jit
def right_operand(values):
    """View a slot of values as the right operand of a product, [keys, columns]. Of 8 bits, wgmma takes columns only."""
    return matrix(values) if values.dtype.primitive_bitwidth == 16 else matrix(values).permute((1, 0))


# Scores, between the product with K and the softmax


class Factors(NamedTuple):
    """Factors > 0 of each head of q, k and v; with addresses of None there are none."""

    q: HeadScalars
    k: HeadScalars
    v: HeadScalars


class Features(NamedTuple):
    """Soft-cap, ALiBi slopes and bias as in `forward.attention_forward`, tested at run time. softcap is None if there
    are no features.
    """

    softcap: gl.tensor
    alibi_slopes: HeadScalars
    bias: Heads


class Transforms(NamedTuple):
    """Transforms of scores and results besides the scale."""

    factors: Factors
    features: Features


@gluon.jit
def factors_of(factors, tile, group):
    """Return the (factor of scores, factor of results) of a tile."""
    if factors.q.ptr is None:
        return 1.0, 1.0
    else:
        of_scores = gl.load(head_scalar(factors.q, tile, tile.head)) * gl.load(
            head_scalar(factors.k, tile, tile.head // group)
        )
        return of_scores, gl.load(head_scalar(factors.v, tile, tile.head // group))


@gluon.jit
def slope_of(features, tile, scale):
    """Return a tile's ALiBi slope in the unit of products; 0 if there is none."""
    if features.softcap is None:
        return 0.0
    else:
        slopes = features.alibi_slopes
        return (LOG2_E / scale) * gl.load(
            head_scalar(slopes, tile, tile.head), mask=slopes.ptr.to(gl.int64, bitcast=True) != 0, other=0.0
        )


@gluon.jit
def head_scalar(x, tile, head):
    """Address of the scalar of a head of a tile's sequence."""
    return x.ptr + tile.sequence.to(gl.int64) * x.stride_batch + head.to(gl.int64) * x.stride_heads


@gluon.jit
def finished_scores(
    products, words, block, part, features, window, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr,
    HIDING: gl.constexpr,
):  # fmt: skip
    """Return the scores of a block in the unit of products, of which part.scale makes units of log2.

    words: of `load_bias`. HIDING: a row may not see all keys.
    """
    scores = products if features.softcap is None else add_features(products, words, block, part, features)
    if HIDING:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if block >= part.whole.whole_end or block < part.whole.whole:
            scores = hide(scores, block, part, window, BOUND_LEFT, BOUND_RIGHT)
    return scores


@gluon.jit
def hide(s, block, part, window, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr):
    """Set the scores of keys that a row does not see to -inf."""
    tile = part.tile
    rows = part.first + gl.arange(0, s.shape[0], layout=gl.SliceLayout(1, s.type.layout))
    keys = block * s.shape[1] + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, s.type.layout))
    if BOUND_RIGHT:
        end = gl.minimum(rows + tile.shift + window.right + 1, tile.seqlen_k)
        seen = keys[None, :] < end[:, None]
    else:
        seen = (keys < tile.seqlen_k)[None, :]
    if BOUND_LEFT:
        seen = seen & (keys[None, :] >= (rows + tile.shift - window.left)[:, None])
    return gl.where(seen, s, float("-inf"))


@gluon.jit
def add_features(products, words, block, part, features):
    """Return scores with the soft-cap, bias and slope that there are, in this order."""
    s = products
    unit = LOG2_E / part.scale  # of products in a score of 1
    if features.softcap > 0:
        s = capped(s, features.softcap * unit)
    if features.bias.ptr is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if features.bias.ptr.to(gl.int64, bitcast=True) != 0:
            s = add_bias(s, words, features.bias.ptr.dtype.element_ty, unit)
    if part.slope != 0:
        s = subtract_slope(s, block, part)
    return s


@gluon.jit
def capped(products, cap):
    """cap * tanh(products / cap)."""
    VALUES: gl.constexpr = products.shape[1] // 2
    return gl.inline_asm_elementwise(
        capping(VALUES), capping_operands(VALUES), [products, cap], dtype=gl.float32, is_pure=True, pack=VALUES
    )


@gluon.constexpr_function
def capping(values):
    """PTX of `capped` for the values of a lane.

    Special functions would take longer than the matrix units: two for each value, beside the exponential. As long as no
    value of a warp exceeds half of the cap, or all of it, an odd polynomial takes their place. Its relative error is at
    most 2.3e-5, so that a score of 20 is off by less than what rounding its probability to float16 takes. The values
    are bounded by sums of eight squares or fewer, which take half as long as maxima.
    """
    cap = f"${2 * values}"
    squares = " ".join(f"fma.rn.f32 m{i % 8}, ${i}, ${i}, m{i % 8};" for i in range(values))
    largest = " ".join(f"max.f32 m0, m0, m{i};" for i in range(1, 8))
    exponential = " ".join(
        f"mul.f32 t, ${i}, twice; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3F800000; rcp.approx.ftz.f32 t, t; "
        f"fma.rn.f32 ${i}, t, less, {cap};"
        for i in range(values)
    )
    return f"""{{ .reg .pred some; .reg .f32 m<8>, t, u, c<5>, inverse, square, twice, less;
    {" ".join(f"mov.f32 m{i}, 0f00000000;" for i in range(8))}
    {squares}
    {largest}
    rcp.approx.ftz.f32 inverse, {cap}; mul.f32 square, inverse, inverse; mul.f32 m0, m0, square;
    setp.gt.f32 some, m0, 0f3F800000;
    setp.gt.or.f32 some, inverse, 0f46EA6000, some;
    setp.lt.or.f32 some, inverse, 0f37FBA882, some;
    vote.sync.any.pred some, some, 0xffffffff;
    @some bra large;
    setp.gt.f32 some, m0, 0f3E800000;
    vote.sync.any.pred some, some, 0xffffffff;
    @some bra middle;
    {odd_polynomial(values, ("0f3F7FFE86", "0fBEA9D378", "0f3DEBF318"))}
    bra.uni done;
    middle: {odd_polynomial(values, ("0f3F7FFF8C", "0fBEAA7C71", "0f3E057F38", "0fBD37929E", "0f3C140D7E"))}
    bra.uni done;
    large: mul.f32 twice, inverse, 0f4038AA3B; mul.f32 less, {cap}, 0fC0000000;
    {exponential}
    done: }}"""


@gluon.constexpr_function
def odd_polynomial(values, coefficients):
    """PTX that makes x * p(x * x * square) of each value x. coefficients: of p, the lowest first, as PTX has them."""
    degree = len(coefficients) - 1
    scaled = [f"mov.f32 c0, {coefficients[0]}; mov.f32 t, square;"]
    for i in range(1, degree + 1):
        scaled.append(f"mul.f32 c{i}, t, {coefficients[i]}; mul.f32 t, t, square;")
    for x in range(values):
        terms = " ".join(f"fma.rn.f32 t, t, u, c{i};" for i in range(degree - 2, -1, -1))
        first = f"mul.f32 u, ${x}, ${x}; fma.rn.f32 t, u, c{degree}, c{degree - 1};"
        scaled.append(f"{first} {terms} mul.f32 ${x}, ${x}, t;")
    return " ".join(scaled)


@gluon.constexpr_function
def capping_operands(values):
    """Operand constraints of `capping`: results take the place of values."""
    return ",".join(["=f"] * values + [str(i) for i in range(values)] + ["f"] * values)


# A column index is split into its group of eight, which the compiler knows, and its place in that, which depends on the
# lane: whole column indices, kept from block to block, would take more registers than there are.


@gluon.jit
def subtract_slope(s, block, part):
    """Subtract the slope times the distance of each key from a query's diagonal."""
    eights = s.reshape([s.shape[0], s.shape[1] // 8, 8])
    rows, groups, columns = indices(eights)
    diagonal = (part.first + rows + (part.tile.shift - block * s.shape[1])).to(gl.float32)
    distance = (diagonal - columns.to(gl.float32)) - 8.0 * groups.to(gl.float32)
    less = eights - gl.abs(distance) * part.slope
    return gl.convert_layout(less.reshape(s.shape), s.type.layout, assert_trivial=True)


@gluon.jit
def load_bias(block, part, features, keys):
    """Load the bias of a block of a ring's keys, if there is one, in pairs of columns, of which it has an even number:
    int32 [ROWS, columns / 8, 4], in the layout of `halves_of_pairs`. It is loaded while products are computed."""
    if features.softcap is None or features.bias.ptr is None:
        return 0
    else:
        LAYOUT: gl.constexpr = scores_layout(keys)
        COLUMNS: gl.constexpr = keys.slots.shape[-2]
        even, _ = halves_of_pairs(gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT))
        words = gl.zeros(even.shape, gl.int32, even.type.layout)
        bias, tile = features.bias, part.tile
        if bias.ptr.to(gl.int64, bitcast=True) != 0:
            rows, groups, columns = indices(words)
            rows = tile.row_q + gl.minimum(part.first + rows, tile.seqlen_q - 1)
            first = block * COLUMNS
            begin = head_of(bias, tile.batch, tile.head) + first + rows.to(gl.int64) * bias.stride_rows + 2 * columns
            addresses = (begin + 8 * groups).to(gl.pointer_type(gl.int32), bitcast=True)
            words = gl.load(addresses, mask=8 * groups < tile.seqlen_k - first - 2 * columns, other=0)
        return words


@gluon.jit
def halves_of_pairs(s):
    """Return the even and the odd columns of scores, [rows, columns / 8, 4] each."""
    return s.reshape([s.shape[0], s.shape[1] // 8, 4, 2]).split()


@gluon.jit
def add_bias(s, words, DTYPE: gl.constexpr, unit):
    """Add the words of `load_bias`, of two DTYPE each, times unit."""
    even, odd = halves_of_pairs(s)
    even += words.to(gl.int16).to(DTYPE, bitcast=True).to(gl.float32) * unit
    odd += (words >> 16).to(gl.int16).to(DTYPE, bitcast=True).to(gl.float32) * unit
    return gl.convert_layout(gl.join(even, odd).reshape(s.shape), s.type.layout, assert_trivial=True)


@gluon.jit
def indices(x):
    """Return the indices along each of the three dims of x, shaped to broadcast to it."""
    LAYOUT: gl.constexpr = x.type.layout
    first = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    second = gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    third = gl.arange(0, x.shape[2], layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    return first[:, None, None], second[None, :, None], third[None, None, :]


# Results


@gluon.jit
def store_lse(lse, part, row_max, row_sum):
    """Store the natural logarithm of each row's sum of exponentials, if it is wanted."""
    if lse.ptr is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if lse.ptr.to(gl.int64, bitcast=True) != 0:
            tile = part.tile
            rows = part.first + gl.arange(0, ROWS, layout=row_max.type.layout)
            address = head_of(lse, tile.batch, tile.head) + (tile.row_q + rows).to(gl.int64) * lse.stride_rows
            gl.store(address, row_max * LN_2 + gl.log(row_sum), mask=rows < tile.seqlen_q)


@gluon.jit
def store_rows(result, part, acc, PADDED: gl.constexpr):
    """Store rows of out, in an order that fills lines of memory."""
    COLUMNS: gl.constexpr = acc.shape[1]
    LAYOUT: gl.constexpr = rows_layout(COLUMNS)
    out, tile = result.out, part.tile
    values = gl.convert_layout(acc.to(out.ptr.dtype.element_ty), LAYOUT)
    rows = part.first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))
    head = head_of(out, tile.batch, tile.head)
    stored = (rows < tile.seqlen_q)[:, None]
    if PADDED:
        stored = stored & (columns < result.head_dim)[None, :]
    gl.store(head + (tile.row_q + rows)[:, None].to(gl.int64) * out.stride_rows + columns[None, :], values, mask=stored)
