"""Sort tokens by their experts, for grouped products.

An assignment is a token and one of its experts; its number is token * topk + slot. The assignments of an expert are
padded to whole blocks, and each block belongs to one expert. There are no atomic additions, so assignments keep their
order. If there are so few assignments that most experts have at most one, they are not sorted: each is a block by
itself.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches

NOBODY: tl.constexpr = tl.constexpr(-1)
"""The expert of a block that is not used."""


@triton.jit
def count_assignments(chosen, counts, assignments, experts, run, STEP: tl.constexpr, TOGETHER: tl.constexpr = 1):
    """counts[r, e] = how many of the r-th run of assignments the expert e has. Grid: (cdiv(experts, TOGETHER), runs).

    chosen: int32 [assignments], the experts; indices out of range are nobody's. counts: int32 [runs, experts].
    run: assignments of a run. TOGETHER: experts of a program.
    """
    await_earlier_launches()
    own = _own_experts(TOGETHER)
    begin = tl.program_id(1) * run
    end = tl.minimum(begin + run, assignments)
    lanes = tl.zeros([TOGETHER, STEP], tl.int32)
    for start in range(begin, end, STEP):
        lanes += _is_own(chosen, own, experts, start + tl.arange(0, STEP), end).to(tl.int32)
    tl.store(counts + tl.program_id(1) * experts + own, tl.sum(lanes, 1), mask=own < experts)


@triton.jit
def order_assignments(
    chosen, counts, order, expert_of_block, assignments, experts, blocks, run, runs,
    BLOCK_M: tl.constexpr, EXPERTS: tl.constexpr, RUNS: tl.constexpr, STEP: tl.constexpr,
    TOGETHER: tl.constexpr = 1, offsets=None, places=None, totals=None,
):  # fmt: skip
    """Write each expert's assignments to its blocks. Grid: (cdiv(experts, TOGETHER), runs).

    counts, run, TOGETHER: as `count_assignments` has them. order: int32 [blocks, BLOCK_M], the indices of assignments,
    and `assignments` where a block has no more. expert_of_block: int32 [blocks]; NOBODY for the blocks behind the last
    that is used. EXPERTS, RUNS: powers of two, at least `experts` and `runs`.

    offsets, places, totals: None, or int32 [experts + 1], where each expert's assignments begin in `order`, and where
    the last one's end, with their padding; int32 [assignments], where each assignment is in `order`, or -1; and int32
    [experts], the assignments of each expert. Then all of `order` is written, too.
    """
    await_earlier_launches()
    own, number = _own_experts(TOGETHER), tl.program_id(1)
    index, of_run = tl.arange(0, EXPERTS), tl.arange(0, RUNS)
    at = of_run[:, None] * experts + index[None, :]
    counted = tl.load(counts + at, mask=(of_run < runs)[:, None] & (index < experts)[None, :], other=0)
    needed = tl.cdiv(tl.sum(counted, 0), BLOCK_M)
    earlier = tl.sum(tl.where((of_run < number)[:, None], counted, 0), 0)
    is_own_index = own[:, None] == index[None, :]
    first = tl.sum(tl.where(index[None, :] < own[:, None], needed[None, :], 0), 1)
    used = tl.sum(tl.where(is_own_index, needed[None, :], 0), 1)

    place = first * BLOCK_M + tl.sum(tl.where(is_own_index, earlier[None, :], 0), 1)
    begin = number * run
    end = tl.minimum(begin + run, assignments)
    lane = tl.arange(0, STEP)
    for start in range(begin, end, STEP):
        is_own = _is_own(chosen, own, experts, start + lane, end)
        before = tl.cumsum(is_own.to(tl.int32), 1) - 1
        tl.store(order + place[:, None] + before, tl.broadcast_to((start + lane)[None, :], is_own.shape), mask=is_own)
        if places is not None:
            tl.store(places + tl.broadcast_to((start + lane)[None, :], is_own.shape), place[:, None] + before, is_own)
            expert = tl.load(chosen + start + lane, mask=start + lane < end, other=0)
            is_nobody = (tl.program_id(0) == 0) & ((expert < 0) | (expert >= experts))
            tl.store(places + start + lane, NOBODY, mask=is_nobody)
        place += tl.sum(is_own.to(tl.int32), 1)

    if number == runs - 1:
        rest = place[:, None] + tl.arange(0, BLOCK_M)[None, :]
        nobody = tl.zeros([TOGETHER, BLOCK_M], tl.int32) + assignments
        tl.store(order + rest, nobody, mask=rest < ((first + used) * BLOCK_M)[:, None])
        for start in range(0, tl.max(used, 0), STEP):
            block = start + lane[None, :]
            expert = tl.broadcast_to(own[:, None], [TOGETHER, STEP])
            tl.store(expert_of_block + first[:, None] + block, expert, mask=block < used[:, None])
        if tl.program_id(0) == tl.num_programs(0) - 1:
            for start in range(tl.sum(needed, 0), blocks, STEP):
                tl.store(expert_of_block + start + lane, NOBODY, mask=start + lane < blocks)
        if offsets is not None:
            tl.store(offsets + own, first * BLOCK_M, mask=own < experts)
            total_of_own = tl.sum(tl.where(is_own_index, tl.sum(counted, 0)[None, :], 0), 1)
            tl.store(totals + own, total_of_own, mask=own < experts)
            if tl.program_id(0) == tl.num_programs(0) - 1:
                total = tl.sum(needed, 0) * BLOCK_M
                tl.store(offsets + experts, total)
                for start in range(total, blocks * BLOCK_M, STEP):
                    tl.store(order + start + lane, assignments, mask=start + lane < blocks * BLOCK_M)


@triton.jit
def _own_experts(TOGETHER: tl.constexpr):
    """Return the experts of this program, [TOGETHER]; the last program may have indices past the last expert."""
    return tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)


@triton.jit
def _is_own(chosen, own, experts, at, end):
    """Mark the assignments below `end` of each of the program's own experts: [experts, assignments]."""
    return (tl.load(chosen + at, mask=at < end, other=NOBODY)[None, :] == own[:, None]) & (own < experts)[:, None]


class Blocks(NamedTuple):
    """Blocks of assignments.

    order, expert_of_block: from `order_assignments`; but if `alone` is not 0, each assignment is a block by itself, and
    these are not read. chosen: int32 [assignments], the experts; experts: their count.
    """

    order: tl.tensor
    expert_of_block: tl.tensor
    chosen: tl.tensor
    alone: tl.tensor
    assignments: tl.tensor
    experts: tl.tensor


@triton.jit
def expert_of(blocks: Blocks, block):
    """Load the expert of a block, or NOBODY."""
    count = tl.where(blocks.alone != 0, blocks.assignments, block + 1)
    at = tl.where(blocks.alone != 0, blocks.chosen, blocks.expert_of_block)
    expert = tl.load(at + block, block < count, NOBODY)
    return tl.where(expert < blocks.experts, expert, NOBODY)


class Assignments(NamedTuple):
    """Assignments of a block, or of its first half.

    rows: int32 [rows], their indices, padded with the count of all assignments; known: bool, False for padding. inside:
    rows padded with the block's first one, so that loads need no mask. loaded: `known` if loads are masked all the
    same, or None.
    """

    rows: tl.tensor
    known: tl.tensor
    inside: tl.tensor
    loaded: tl.tensor


@triton.jit
def assignments_of(blocks: Blocks, block, BLOCK_M: tl.constexpr, ROWS: tl.constexpr, PADDING: tl.constexpr):
    """Load the first ROWS `Assignments` of a block of BLOCK_M.

    PADDING: the treatment of rows without an assignment. `loaded`: they are computed, as copies of the first row;
    `masked`: as zeros, which are not loaded; `halved`: as `loaded`, but the second half of a block is left out where it
    has none.
    """
    lane = tl.arange(0, ROWS)
    in_order = blocks.alone == 0
    rows = tl.load(blocks.order + block * BLOCK_M + lane, in_order & (lane >= 0), blocks.assignments)
    first = tl.load(blocks.order + block * BLOCK_M, in_order, block)
    rows = tl.where(in_order | (lane > 0), rows, block)
    known = rows < blocks.assignments
    return Assignments(rows, known, tl.where(known, rows, first), known if PADDING == "masked" else None)


@triton.jit
def has_one_half(blocks: Blocks, block, BLOCK_M: tl.constexpr):
    """Test whether the second half of a block has no assignments."""
    second = tl.load(blocks.order + block * BLOCK_M + BLOCK_M // 2, blocks.alone == 0, blocks.assignments)
    return second >= blocks.assignments
