"""Which tiles a program of `hopper` has, and which blocks of keys a tile sees."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.attention.problem import Window

ROWS = gl.constexpr(64)
"""Queries of a warpgroup: what one wgmma has."""
GROUPS = gl.constexpr(2)
"""Warpgroups that multiply."""
BLOCK_M = gl.constexpr(128)
"""Queries of a tile: ROWS for each of the GROUPS."""


class Tiling(NamedTuple):
    """All tiles: blocks of each head of each batch. group: heads of q that share one of k. cu_seqlens_q, cu_seqlens_k:
    where sequences begin and end in tensors that have no batch, of seqlen_q and seqlen_k rows; or None. counter: by
    which programs take tiles; None: each has its share. paired: the tiles of a share come in pairs. seqlens_k: int32
    [batch], how many keys each sequence has, where these are found by other means than their rows; or None."""

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


class Tile(NamedTuple):
    """Queries of one head and sequence from number `first` on.

    sequence: its number. batch: where it is along the tensors' first dim. row_q, row_k: its first rows. shift: the
    diagonal of query i is key i + shift. ragged: rows of another sequence may follow its last key.
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
    """Blocks [begin, end) are seen by some of a tile's queries, one at least; [whole, whole_end) by all, wholly."""

    begin: gl.tensor
    whole: gl.tensor
    whole_end: gl.tensor
    end: gl.tensor


class Queue(NamedTuple):
    """Through which the warp that loads tells the groups which tiles to take: two slots for numbers of tiles, each with
    two barriers: it has been filled; it has been read. Nones where programs have their shares."""

    numbers: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor


@gluon.jit
def paired(tiles, UNEVEN: gl.constexpr):
    """Whether programs take the first and the last block of queries together: where blocks differ in what they see, and
    each program has several pairs."""
    return tiles >= 4 * gl.num_programs(0) if UNEVEN else False


@gluon.jit
def make_queue(counter):
    """A Queue for all groups, if there is a counter."""
    if counter is None:
        return Queue(None, None, None)
    else:
        LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        queue = Queue(
            gl.allocate_shared_memory(gl.int32, [2, 1], LAYOUT),
            mbarrier.allocate_mbarrier(batch=2), mbarrier.allocate_mbarrier(batch=2),
        )  # fmt: skip
        for i in gl.static_range(2):
            mbarrier.init(queue.ready.index(i), count=1)
            mbarrier.init(queue.free.index(i), count=GROUPS)
        return queue


# What a program's tiles are counted by: its own first, second, ... or, with a counter, all tiles.


@gluon.jit
def first_step(tiling):
    """The step of this program's first tile."""
    return 0 if tiling.counter is None else gl.program_id(0)


@gluon.jit
def steps_of_program(tiling):
    """The step that ends a program's work."""
    blocks = gl.where(tiling.paired, (tiling.blocks + 1) // 2, tiling.blocks)
    units = blocks * tiling.heads * tiling.batch
    if tiling.counter is not None:
        return units
    else:
        mine = gl.cdiv(units - gl.program_id(0), gl.num_programs(0))
        return gl.where(tiling.paired, mine * 2, mine)


@gluon.jit
def publish_next_step(step, taken, tiling, queue):
    """The step after a program's step number `taken`, for the warp that loads, which takes it for all."""
    if tiling.counter is None:
        return step + 1
    else:
        number = gl.num_programs(0) + gl.atomic_add(tiling.counter, 1)
        slot = taken & 1
        mbarrier.wait(queue.free.index(slot), (taken >> 1 & 1) ^ 1)
        queue.numbers.index(slot).store(
            gl.full([1], number, gl.int32, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
        )
        mbarrier.arrive(queue.ready.index(slot))
        return number


@gluon.jit
def next_step(step, taken, tiling, queue):
    """The same for a group: what the warp that loads took."""
    if tiling.counter is None:
        return step + 1
    else:
        slot = taken & 1
        mbarrier.wait(queue.ready.index(slot), taken >> 1 & 1)
        number = gl.max(queue.numbers.index(slot).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
        mbarrier.arrive(queue.free.index(slot))
        return number


@gluon.jit
def tile_at(step, tiling):
    """This program's Tile at a step.

    Where they are paired, a first block goes with a last one, so that under a causal mask each pair has as much to do.
    The middle one of an odd number of blocks is done twice.
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
    row_q, seqlen_q = sequence(tiling.cu_seqlens_q, batch, tiling.seqlen_q)
    row_k, seqlen_k = sequence(tiling.cu_seqlens_k, batch, tiling.seqlen_k)
    if tiling.max_seqlen_k is not None:
        seqlen_k = gl.minimum(seqlen_k, tiling.max_seqlen_k)
    if tiling.seqlens_k is not None:
        seqlen_k = gl.minimum(gl.maximum(gl.load(tiling.seqlens_k + batch), 0), seqlen_k)
    shift = gl.where(tiling.window.bottom_right, seqlen_k - seqlen_q, 0)
    RAGGED: gl.constexpr = tiling.cu_seqlens_k is not None or tiling.seqlens_k is not None
    place_of = gl.where(RAGGED, 0, batch)
    return Tile(batch, place_of, head, block * BLOCK_M, row_q, row_k, seqlen_q, seqlen_k, shift, RAGGED)


@gluon.jit
def sequence(cu_seqlens, batch, rows):
    """First row and length of a sequence, within the rows that there are; all of them unless there are cu_seqlens."""
    if cu_seqlens is None:
        first, length = 0, rows
    else:
        first = gl.minimum(gl.maximum(gl.load(cu_seqlens + batch), 0), rows)
        length = gl.maximum(gl.minimum(gl.load(cu_seqlens + batch + 1), rows) - first, 0)
    return first, length


@gluon.jit
def key_blocks(
    first, rows, tile, window, BLOCK_N: gl.constexpr, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr
):  # fmt: skip
    """KeyBlocks of `rows` queries from number `first` on."""
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
