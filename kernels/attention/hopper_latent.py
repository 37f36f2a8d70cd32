"""Attention to latent vectors for Hopper, in Gluon, as prompts and decoding share it, of 64 rows of queries a program.

A key is a latent vector and a rotated part, and the latent vector is the value, too: a tile of keys is loaded once. One
warp loads tiles into two slots. Two groups of four warps have half of the latent columns of the result each. Group 0
multiplies the queries by the keys of tiles 0, 2, ..., group 1 by those of tiles 1, 3, ...; each leaves its tile's
probabilities in shared memory, in the place of the tile's rotated part, and both multiply them by their halves of the
latent vectors. So each product is computed once, and one group's softmax runs beside the other's products (the schedule
is that of FlashMLA, https://github.com/deepseek-ai/FlashMLA). Of a tile's halves, that of the group which multiplies
its keys is free first: it is loaded and multiplied first, too.
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

from kernels.attention.hopper_softmax import LOG2_E, exp2, fold, scaled_rows

ROWS = gl.constexpr(64)
"""Rows of queries of a program, and keys of a tile."""
GROUP_0, GROUP_1 = gl.constexpr(0), gl.constexpr(1)
"""Numbers of the groups: an int among the arguments of warp_specialize would have no type."""
S_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
"""Of scores and probabilities [ROWS, keys of a tile]."""
ROW_LAYOUT = gl.constexpr(gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])))
"""Of what each row of queries has one of."""
SOME = gl.constexpr(16)
"""Rows that are moved together: more would take too many registers."""


class Buffers(NamedTuple):
    """Shared memory, whose slot 0 is for even tiles of keys and slot 1 for odd ones; half h of a tile's latent vectors
    is number 2 * slot + h, and so are the barriers of halves.

    q [2, ROWS, HALF], q_rotated [1, ROWS, 64]: the queries. latent [4, 1, ROWS, HALF], rotated [2, 1, ROWS, 64].
    maxima, sums: fp32 [2, ROWS], of each group. ready, free: a half has been loaded; it has been read. The rotated part
    goes with the half of the group that does not multiply the tile's keys. weights_ready: a tile's probabilities are in
    the place of its rotated part, and its maxima in `maxima`. q_ready: a group has stored its part of the queries.
    sums_ready: it has stored its sums.
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
    """The keys of a program: tiles of them from number `first` on, of which those before tile `whole` are seen by every
    row in full; key `last` (int32 [ROWS]) is the last that a row sees; end: that of the sequence."""

    first: gl.tensor
    tiles: gl.tensor
    whole: gl.tensor
    last: gl.tensor
    end: gl.tensor


@gluon.jit
def make_buffers(latent, rotated):
    """Buffers for the tensor maps of latent vectors and of rotated parts."""
    HALF: gl.constexpr = latent.block_shape[2]
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, HALF], latent.dtype)
    Q_ROTATED_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, 64], latent.dtype)
    VECTORS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    buffers = Buffers(
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
def matrix(buffer):
    """A buffer [..., rows, columns] whose first dims are 1 without these."""
    return buffer.reshape([buffer.shape[len(buffer.shape) - 2], buffer.shape[len(buffer.shape) - 1]])


@gluon.jit
def load_slot(latent, places, rotated, rotated_places, buffers, phase, SLOT: gl.constexpr):
    """Load a tile into a slot, once its halves are free: boxes of the map `latent`, one below the other, at `places`,
    which are coordinates but for the last one, and of the map `rotated`, if it is not None, at rotated_places. phase:
    how many times the slot has been loaded before, & 1."""
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
    """The rows of a tile [1, ROWS, columns] that a map's box of that number fills."""
    RANK: gl.constexpr = len(tensor_map.block_shape)
    HEIGHT: gl.constexpr = tensor_map.block_shape[RANK - 2]
    return tile.slice(NUMBER * HEIGHT, HEIGHT, dim=1) if RANK == 3 else tile.reshape(tensor_map.block_shape)


# What a group does


@gluon.jit
def share_queries(buffers, phase):
    """Wait until both groups have left their parts of the queries in shared memory. phase: 0 the first time."""
    fence_async_shared()
    mbarrier.arrive(buffers.q_ready.index(0))
    mbarrier.wait(buffers.q_ready.index(0), phase)


@gluon.jit
def attend(buffers, seen, scale, used, RAGGED: gl.constexpr, ME: gl.constexpr):
    """(weighted sums of latent vectors, a group's half of the columns; row maxima in units of log2; row sums).

    scale: > 0, in units of log2. used: how many times each slot has been loaded before. RAGGED: rows past the
    sequence's end may hold anything.
    """
    HALF: gl.constexpr = buffers.latent.shape[3]
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
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
        p, row_max, rescale = fold(hide(s, seen, tile), row_max, scale, True)
        weights = p.to(buffers.latent.dtype)
        publish(weights, row_max, buffers, ME)
        row_sum = row_sum * rescale + gl.sum(p, 1)
        if ME == 1:
            acc = finish(acc, buffers, 0, ME)
        acc = scaled_rows(acc, rescale, O_LAYOUT)
        values = matrix(buffers.latent.index(2 * ME + ME))
        clear_past_end(values, seen, tile, RAGGED)
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
    """The products of the queries and a group's tile of keys, which are not waited for."""
    # Else the compiler keeps all descriptors of these products from turn to turn, which it has no registers for.
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
    """Scores with those of keys that a row does not see at -inf."""
    if seen.first + tile >= seen.whole:
        keys = (seen.first + tile) * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(0, S_LAYOUT))
        s = gl.where(keys[None, :] <= seen.last[:, None], s, float("-inf"))
    return s


@gluon.jit
def publish(weights, row_max, buffers, ME: gl.constexpr):
    """Leave a tile's probabilities, and the maxima that they are relative to, for the other group."""
    gl.barrier()  # All warps have read the rotated part.
    matrix(buffers.rotated.index(ME)).store(weights)
    buffers.maxima.index(ME).store(row_max)
    fence_async_shared()
    mbarrier.arrive(buffers.weights_ready.index(ME))


@gluon.jit
def issue_others(acc, row_max, row_sum, buffers, seen, tile, phase, RAGGED: gl.constexpr, ME: gl.constexpr):
    """(sums to which a tile of the other group's is being added, row maxima, row sums)."""
    OTHER: gl.constexpr = 1 - ME
    mbarrier.wait(buffers.weights_ready.index(OTHER), phase)
    new_max = buffers.maxima.index(OTHER).load(ROW_LAYOUT)
    rescale = exp2(row_max - gl.where(new_max == float("-inf"), 0.0, new_max))
    acc = scaled_rows(acc, rescale, acc.type.layout)
    values = matrix(buffers.latent.index(2 * OTHER + ME))
    clear_past_end(values, seen, tile, RAGGED)
    acc = warpgroup_mma(matrix(buffers.rotated.index(OTHER)), values, acc, is_async=True)
    return acc, new_max, row_sum * rescale


@gluon.jit
def finish(acc, buffers, SLOT: gl.constexpr, ME: gl.constexpr):
    """Wait for the last product, which is of a slot's values; a group's half of these is free then."""
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(buffers.free.index(2 * SLOT + ME))
    return acc


@gluon.jit
def clear_past_end(values, seen, tile, RAGGED: gl.constexpr):
    """Zero what of a half of a tile lies past the sequence's end: 0 times an infinity is NaN."""
    if RAGGED:
        COLUMNS: gl.constexpr = values.shape[1]
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
        left = seen.end - (seen.first + tile) * ROWS
        if left < ROWS:
            for part in gl.static_range(ROWS // SOME):
                rows = values.slice(part * SOME, SOME)
                inside = part * SOME + gl.arange(0, SOME, layout=gl.SliceLayout(1, LAYOUT)) < left
                loaded = rows.load(LAYOUT)
                rows.store(gl.where(inside[:, None], loaded, gl.zeros_like(loaded)))
            fence_async_shared()


@gluon.jit
def positive(scale):
    """(1, -1 or 0, which queries are to be multiplied by; a scale > 0 in units of log2)."""
    sign = gl.where(scale > 0, 1.0, gl.where(scale < 0, -1.0, 0.0))
    return sign, gl.where(scale == 0, 1.0, scale * sign) * LOG2_E
