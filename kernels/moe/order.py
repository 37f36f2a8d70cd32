"""Tokens in the order of their experts: what grouped products read them by.

An assignment is a token and one of its experts; it has the number token * topk + slot. The assignments of an expert
are padded to whole blocks, of which each has one expert. Nothing is added atomically: assignments keep their order.
"""

import triton
import triton.language as tl

NOBODY: tl.constexpr = tl.constexpr(-1)
"""The expert of a block that is not used."""


@triton.jit
def count_assignments(chosen, counts, assignments, STEP: tl.constexpr):
    """counts[e] = how many assignments the expert e has. Grid: (experts,).

    chosen: int32 [assignments], the experts; numbers that are no expert's are nobody's. counts: int32 [experts].
    """
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
