"""Tokens in the order of their experts: what grouped products read them by.

An assignment is a token and one of its experts; it has the number token * topk + slot. The assignments of an expert
are padded to whole blocks, of which each has one expert. Nothing is added atomically: assignments keep their order.
So few that most experts have one at most need no order: each is a block by itself.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.early import await_earlier_launches

NOBODY: tl.constexpr = tl.constexpr(-1)
"""The expert of a block that is not used."""


@triton.jit
def count_assignments(chosen, counts, assignments, STEP: tl.constexpr):
    """counts[e] = how many assignments the expert e has. Grid: (experts,).

    chosen: int32 [assignments], the experts; numbers that are no expert's are nobody's. counts: int32 [experts].
    """
    await_earlier_launches()
    expert = tl.program_id(0)
    lanes = tl.zeros([STEP], tl.int32)
    for start in range(0, assignments, STEP):
        at = start + tl.arange(0, STEP)
        lanes += (tl.load(chosen + at, mask=at < assignments, other=NOBODY) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(lanes, 0))


@triton.jit
def order_assignments(
    chosen, counts, order, expert_of_block, assignments, experts, blocks,
    BLOCK_M: tl.constexpr, EXPERTS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Each expert's assignments into its blocks. Grid: (experts,).

    order: int32 [blocks, BLOCK_M], the numbers of assignments, and `assignments` where a block has no more.
    expert_of_block: int32 [blocks]; NOBODY for the blocks behind the last that is used. EXPERTS: a power of two, at
    least `experts`.
    """
    await_earlier_launches()
    expert = tl.program_id(0)
    index = tl.arange(0, EXPERTS)
    needed = tl.cdiv(tl.load(counts + index, mask=index < experts, other=0), BLOCK_M)
    first = tl.sum(tl.where(index < expert, needed, 0), 0)
    own = tl.sum(tl.where(index == expert, needed, 0), 0)
    lane = tl.arange(0, STEP)

    place = first * BLOCK_M
    for start in range(0, assignments, STEP):
        at = start + lane
        is_own = tl.load(chosen + at, mask=at < assignments, other=NOBODY) == expert
        tl.store(order + place + tl.cumsum(is_own.to(tl.int32), 0) - 1, at, mask=is_own)
        place += tl.sum(is_own.to(tl.int32), 0)
    rest = (first + own) * BLOCK_M
    pad = tl.arange(0, BLOCK_M)
    tl.store(order + place + pad, tl.zeros([BLOCK_M], tl.int32) + assignments, mask=place + pad < rest)

    end = blocks if expert == experts - 1 else first + own
    for start in range(first, end, STEP):
        at = start + lane
        tl.store(expert_of_block + at, tl.where(at < first + own, expert, NOBODY), mask=at < end)


class Blocks(NamedTuple):
    """order, expert_of_block: as `order_assignments` leaves them; but if `alone` is not 0, each assignment is a block
    by itself, and these are not read. chosen: int32 [assignments], the experts; experts: how many there are."""

    order: tl.tensor
    expert_of_block: tl.tensor
    chosen: tl.tensor
    alone: tl.tensor
    assignments: tl.tensor
    experts: tl.tensor


@triton.jit
def expert_of(blocks: Blocks, block):
    """The expert of a block, or NOBODY."""
    count = tl.where(blocks.alone != 0, blocks.assignments, block + 1)
    at = tl.where(blocks.alone != 0, blocks.chosen, blocks.expert_of_block)
    expert = tl.load(at + block, block < count, NOBODY)
    return tl.where(expert < blocks.experts, expert, NOBODY)


@triton.jit
def assignments_of(blocks: Blocks, block, BLOCK_M: tl.constexpr):
    """(the assignments of a block, and `assignments` where it has no more; the same with its first one there, so that
    no load needs a mask)."""
    lane = tl.arange(0, BLOCK_M)
    in_order = blocks.alone == 0
    rows = tl.load(blocks.order + block * BLOCK_M + lane, in_order & (lane >= 0), blocks.assignments)
    first = tl.load(blocks.order + block * BLOCK_M, in_order, block)
    rows = tl.where(in_order | (lane > 0), rows, block)
    return rows, tl.where(rows < blocks.assignments, rows, first)
