"""Attention to latent vectors for Hopper, in Gluon, with 64 rows of queries per program, for prompts and decoding.

A key consists of a latent vector and a rotated part. The latent vector is also the value, so a tile of keys is loaded
once. One warp loads tiles into two slots. Each of two warpgroups has half of the latent columns of the result.

Group 0 multiplies the queries by the keys of tiles 0, 2, ..., and group 1 by those of tiles 1, 3, .... Each stores its
tile's probabilities in shared memory, in place of the tile's rotated part, and both groups multiply them by their
halves of the latent vectors. So each product is computed once, and one group's softmax overlaps with the other's
products (the schedule of FlashMLA, https://github.com/deepseek-ai/FlashMLA). The group that multiplies a tile's keys
finishes with its half first, so that half is loaded and multiplied first.

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

from kernels.common.hopper import ROWS, accumulator_layout, clear_rows_from, exp2, matrix, raise_max, scaled_rows

S_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
"""Layout of scores and probabilities [ROWS, ROWS]; a tile has ROWS keys."""
ROW_LAYOUT = gl.constexpr(gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])))
"""Layout of a value for each row of queries."""


class LatentBuffers(NamedTuple):
    """Shared memory. Slot 0 is for even tiles of keys, slot 1 for odd ones.

    Half h of a slot, and its barriers, have the index 2 * slot + h.

    Attributes:
        q: [2, ROWS, HALF] of the queries. q_rotated: [1, ROWS, 64].
        latent: [4, 1, ROWS, HALF]. rotated: [2, 1, ROWS, 64], loaded with the half of the group that does not multiply
            the tile's keys.
        maxima, sums: fp32 [2, ROWS], of each group.
        ready, free: a half has been loaded; it has been read.
        weights_ready: a tile's probabilities are in place of its rotated part, and its maxima in `maxima`.
        q_ready: a group has stored its part of the queries.
        sums_ready: a group has stored its sums.
    """

    q: gl.shared_memory_descriptor
    q_rotated: gl.shared_memory_descriptor
    latent: gl.shared_memory_descriptor
    rotated: gl.shared_memory_descriptor
    maxima: gl.shared_memory_descriptor
    sums: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    weights_ready: gl.shared_memory_descriptor
    q_ready: gl.shared_memory_descriptor
    sums_ready: gl.shared_memory_descriptor


class Seen(NamedTuple):
    """The keys of a program: `tiles` tiles from tile `first` on.

    Attributes:
        whole: tiles before this one are seen in full by every row.
        last: int32 [ROWS], the last key that each row sees.
        end: the end of the sequence.
    """

    first: gl.tensor
    tiles: gl.tensor
    whole: gl.tensor
    last: gl.tensor
    end: gl.tensor


@gluon.jit
def make_buffers(latent, rotated):
    """Allocate LatentBuffers for the tensor maps of latent vectors and of rotated parts."""
    HALF: gl.constexpr = latent.block_shape[2]
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, HALF], latent.dtype)
    Q_ROTATED_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, 64], latent.dtype)
    VECTORS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    buffers = LatentBuffers(
        gl.allocate_shared_memory(latent.dtype, [2, ROWS, HALF], Q_LAYOUT),
        gl.allocate_shared_memory(latent.dtype, [1, ROWS, 64], Q_ROTATED_LAYOUT),
        gl.allocate_shared_memory(latent.dtype, [4, 1, ROWS, HALF], latent.layout),
        gl.allocate_shared_memory(rotated.dtype, [2, 1, ROWS, 64], rotated.layout),
        gl.allocate_shared_memory(gl.float32, [2, ROWS], VECTORS),
        gl.allocate_shared_memory(gl.float32, [2, ROWS], VECTORS),
        mbarrier.allocate_mbarrier(batch=4), mbarrier.allocate_mbarrier(batch=4),
        mbarrier.allocate_mbarrier(batch=2), mbarrier.allocate_mbarrier(batch=1),
        mbarrier.allocate_mbarrier(batch=2),
    )  # fmt: skip
    for i in gl.static_range(4):
        mbarrier.init(buffers.ready.index(i), count=1)
        mbarrier.init(buffers.free.index(i), count=1)
    for g in gl.static_range(2):
        mbarrier.init(buffers.weights_ready.index(g), count=1)
        mbarrier.init(buffers.sums_ready.index(g), count=1)
    mbarrier.init(buffers.q_ready.index(0), count=2)
    return buffers


@gluon.jit
def load_slot(latent, places, rotated, rotated_places, buffers, phase, SLOT: gl.constexpr):
    """Load a tile into a slot, once its halves are free, from boxes that lie one below the other.

    places: coordinates of the boxes of the map `latent` without the last one. rotated_places: coordinates of the boxes
    of the map `rotated`, unless that is None. phase: how many times the slot has been loaded before, & 1.
    """
    HALF: gl.constexpr = latent.block_shape[2]
    for half in gl.static_range(SLOT, 2 - 3 * SLOT, 1 - 2 * SLOT):  # SLOT, then the other one
        ready = buffers.ready.index(2 * SLOT + half)
        mbarrier.wait(buffers.free.index(2 * SLOT + half), phase ^ 1)
        if rotated is not None and half != SLOT:
            mbarrier.expect(ready, len(places) * (latent.nbytes_per_cta + rotated.nbytes_per_cta))
            for i in gl.static_range(len(places)):
                tma.async_load(rotated, rotated_places[i], ready, box_of(buffers.rotated.index(SLOT), rotated, i))
        else:
            mbarrier.expect(ready, len(places) * latent.nbytes_per_cta)
        for i in gl.static_range(len(places)):
            tile = buffers.latent.index(2 * SLOT + half)
            tma.async_load(latent, [places[i][0], places[i][1], half * HALF], ready, box_of(tile, latent, i))


@gluon.jit
def box_of(tile, tensor_map, NUMBER: gl.constexpr):
    """View the rows of a tile [1, ROWS, columns] that box NUMBER of a map fills."""
    RANK: gl.constexpr = len(tensor_map.block_shape)
    HEIGHT: gl.constexpr = tensor_map.block_shape[RANK - 2]
    return tile.slice(NUMBER * HEIGHT, HEIGHT, dim=1) if RANK == 3 else tile.reshape(tensor_map.block_shape)


# The warpgroups that multiply


@gluon.jit
def share_queries(buffers, phase):
    """Wait until both groups have stored their parts of the queries in shared memory. phase: 0 the first time."""
    fence_async_shared()
    mbarrier.arrive(buffers.q_ready.index(0))
    mbarrier.wait(buffers.q_ready.index(0), phase)


@gluon.jit
def attend(buffers, seen, scale, used, RAGGED: gl.constexpr, ME: gl.constexpr):
    """Return (weighted sums of latent vectors, row maxima in units of log2, row sums); a group has half of the columns.

    scale: > 0, in units of log2. used: how many times each slot has been loaded before. RAGGED: rows past the
    sequence's end may hold anything.
    """
    HALF: gl.constexpr = buffers.latent.shape[3]
    O_LAYOUT: gl.constexpr = accumulator_layout(HALF, buffers.latent.dtype)
    acc = gl.zeros([ROWS, HALF], gl.float32, O_LAYOUT)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, ROW_LAYOUT)
    row_sum = gl.zeros([ROWS], gl.float32, ROW_LAYOUT)
    for i in range((seen.tiles + 1 - ME) // 2):
        tile = 2 * i + ME
        s = issue_scores(buffers, i + used & 1, ME)
        if ME == 1:
            acc, row_max, row_sum = issue_others(acc, row_max, row_sum, buffers, seen, tile - 1, i & 1, RAGGED, ME)
            s = warpgroup_mma_wait(1, deps=[s])
        else:
            s = warpgroup_mma_wait(0, deps=[s])
        p, row_max, rescale = fold(hide(s, seen, tile), row_max, scale)
        weights = p.to(buffers.latent.dtype)
        publish(weights, row_max, buffers, ME)
        row_sum = row_sum * rescale + gl.sum(p, 1)
        if ME == 1:
            acc = finish(acc, buffers, 0, ME)
        acc = scaled_rows(acc, rescale, O_LAYOUT)
        values = matrix(buffers.latent.index(2 * ME + ME))
        if RAGGED:
            clear_rows_from(values, seen.end - (seen.first + tile) * ROWS)
        operand = gl.convert_layout(weights, gl.DotOperandLayout(0, O_LAYOUT, 2))
        acc = finish(warpgroup_mma(operand, values, acc, is_async=True), buffers, ME, ME)
        if ME == 0:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
            if tile + 1 < seen.tiles:
                acc, row_max, row_sum = issue_others(acc, row_max, row_sum, buffers, seen, tile + 1, i & 1, RAGGED, ME)
                acc = finish(acc, buffers, 1, ME)
    if ME == 1:  # noqa: SIM102
        if seen.tiles % 2 == 1:
            tile = seen.tiles - 1
            acc, row_max, row_sum = issue_others(
                acc, row_max, row_sum, buffers, seen, tile, tile // 2 & 1, RAGGED, ME
            )  # fmt: skip
            acc = finish(acc, buffers, 0, ME)
    buffers.sums.index(ME).store(row_sum)
    mbarrier.arrive(buffers.sums_ready.index(ME))
    mbarrier.wait(buffers.sums_ready.index(1 - ME), 0)
    return acc, row_max, row_sum + buffers.sums.index(1 - ME).load(ROW_LAYOUT)


@gluon.jit
def issue_scores(buffers, phase, ME: gl.constexpr):
    """Issue the product of the queries and a group's tile of keys."""
    # Without this the compiler keeps all descriptors of these products between iterations, and runs out of registers.
    zero = gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    slot = ME + zero
    s = gl.zeros([ROWS, ROWS], gl.float32, S_LAYOUT)
    for half in gl.static_range(ME, 2 - 3 * ME, 1 - 2 * ME):  # ME, then the other one
        mbarrier.wait(buffers.ready.index(2 * ME + half), phase)
        keys = matrix(buffers.latent.index(2 * slot + half)).permute((1, 0))
        s = warpgroup_mma(buffers.q.index(half + zero), keys, s, use_acc=half != ME, is_async=True)
    keys = matrix(buffers.rotated.index(slot)).permute((1, 0))
    return warpgroup_mma(buffers.q_rotated.index(zero), keys, s, is_async=True)


@gluon.jit
def hide(s, seen, tile):
    """Set the scores of keys that a row does not see to -inf."""
    if seen.first + tile >= seen.whole:
        keys = (seen.first + tile) * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(0, S_LAYOUT))
        s = gl.where(keys[None, :] <= seen.last[:, None], s, float("-inf"))
    return s


@gluon.jit
def publish(weights, row_max, buffers, ME: gl.constexpr):
    """Store a tile's probabilities, and the maxima that they are relative to, for the other group."""
    gl.barrier()  # All warps have read the rotated part.
    matrix(buffers.rotated.index(ME)).store(weights)
    buffers.maxima.index(ME).store(row_max)
    fence_async_shared()
    mbarrier.arrive(buffers.weights_ready.index(ME))


@gluon.jit
def issue_others(acc, row_max, row_sum, buffers, seen, tile, phase, RAGGED: gl.constexpr, ME: gl.constexpr):
    """Issue the product of a tile of the other group's; return (sums, row maxima, row sums)."""
    OTHER: gl.constexpr = 1 - ME
    mbarrier.wait(buffers.weights_ready.index(OTHER), phase)
    new_max = buffers.maxima.index(OTHER).load(ROW_LAYOUT)
    rescale = exp2(row_max - gl.where(new_max == float("-inf"), 0.0, new_max))
    acc = scaled_rows(acc, rescale, acc.type.layout)
    values = matrix(buffers.latent.index(2 * OTHER + ME))
    if RAGGED:
        clear_rows_from(values, seen.end - (seen.first + tile) * ROWS)
    acc = warpgroup_mma(matrix(buffers.rotated.index(OTHER)), values, acc, is_async=True)
    return acc, new_max, row_sum * rescale


@gluon.jit
def finish(acc, buffers, SLOT: gl.constexpr, ME: gl.constexpr):
    """Wait for the last product, and release a group's half of a slot, whose values it took."""
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(buffers.free.index(2 * SLOT + ME))
    return acc


@gluon.jit
def fold(s, row_max, scale):
    """Return (probabilities, new maximum, factor of earlier sums) of one more block of scores."""
    new_max, origin = raise_max(s, row_max, scale, True)
    return exp2(s * scale - origin[:, None]), new_max, exp2(row_max - origin)
