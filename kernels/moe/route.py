"""Choose the experts of each token, and their weights."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.softmax import LOG2_E
from kernels.common.tensors import Matrix, given
from kernels.rows.sample import LOWEST, order_key

NEVER: tl.constexpr = tl.constexpr(2147483647)
"""An index above all others."""
SIGMOID: tl.constexpr = tl.constexpr(1)
SQRT_SOFTPLUS: tl.constexpr = tl.constexpr(2)
"""Values of `scoring`; 0: softmax."""


@triton.jit
def route_rows(
    logits: Matrix, bias, bias_float16, bias_bfloat16, weights: Matrix, chosen: Matrix, experts, topk, groups,
    topk_groups, scale, scoring, renormalise, BLOCK: tl.constexpr, SLOTS: tl.constexpr, GROUP_SLOTS: tl.constexpr,
):  # fmt: skip
    """The best `topk` experts of each row, the best first, of equal ones the first. Grid: (rows,).

    logits: [rows, experts]; bias, bias_float16, bias_bfloat16: [experts] of fp32 and of those dtypes, one at most, the
    others null pointers. weights: fp32 [rows, topk]; chosen: int32 [rows, topk]; columns contiguous. scoring: SIGMOID
    where an expert's weight is the sigmoid of its logit, SQRT_SOFTPLUS where it is the square root of
    log(1 + exp(logit)), else it is the softmax. renormalise: weights are divided by their sum over the chosen ones. All
    are multiplied by `scale`.

    With a bias, experts compete by weight + bias, else by their logits. Of `groups` equal runs of experts, where they
    are more than `topk_groups`, only that many take part: with a bias those with the largest sum of two best experts,
    else those with the best expert.

    BLOCK, SLOTS, GROUP_SLOTS: powers of two, at least `experts`, `topk` and `groups`.
    """
    await_earlier_launches()
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < experts
    x = tl.load(logits.ptr + row * logits.stride_rows + index, mask=inside, other=float("-inf")).to(tl.float32)
    if scoring == SIGMOID:
        weight = 1 / (1 + tl.exp2(-LOG2_E * x))
    elif scoring == SQRT_SOFTPLUS:
        weight = tl.sqrt(tl.maximum(x, 0.0) + _log_of_one_and(tl.exp2(-LOG2_E * tl.abs(x))))
    else:
        weight = tl.exp2((x - tl.max(x, 0)) * LOG2_E)
        weight = weight / tl.sum(weight, 0)
    worth = x
    biased = given(bias) | given(bias_float16) | given(bias_bfloat16)
    if biased:
        added = tl.load(bias + index, mask=inside & given(bias), other=0.0)
        added += tl.load(bias_float16 + index, mask=inside & given(bias_float16), other=0.0).to(tl.float32)
        added += tl.load(bias_bfloat16 + index, mask=inside & given(bias_bfloat16), other=0.0).to(tl.float32)
        worth = weight + added
    keys = tl.where(inside, order_key(worth), LOWEST)
    if groups > topk_groups:
        keys = _of_best_groups(keys, worth, experts // groups, groups, topk_groups, biased, GROUP_SLOTS)

    slot = tl.arange(0, SLOTS)
    slot_expert = tl.zeros([SLOTS], tl.int32)
    slot_weight = tl.zeros([SLOTS], tl.float32)
    for number in range(topk):
        best = _first_of_largest(keys, index)
        slot_expert = tl.where(slot == number, best, slot_expert)
        slot_weight = tl.where(slot == number, tl.sum(tl.where(index == best, weight, 0.0), 0), slot_weight)
        keys = tl.where(index == best, LOWEST, keys)
    if renormalise:
        slot_weight = slot_weight / tl.sum(slot_weight, 0)
    is_taken = slot < topk
    tl.store(weights.ptr + row * weights.stride_rows + slot, slot_weight * scale, mask=is_taken)
    tl.store(chosen.ptr + row * chosen.stride_rows + slot, slot_expert, mask=is_taken)


@triton.jit
def _log_of_one_and(x):
    """log(1 + x) for x from 0 on, also of x that 1 + x loses."""
    total = 1 + x
    return tl.where(total == 1, x, tl.log(total) * (x / (total - 1)))


@triton.jit
def _first_of_largest(keys, index):
    return tl.min(tl.where(keys == tl.max(keys, 0), index, NEVER), 0)


@triton.jit
def _of_best_groups(keys, worth, size, groups, topk_groups, by_two, GROUP_SLOTS: tl.constexpr):
    """Return the keys of experts in the best groups, each of `size` experts, and LOWEST for the others."""
    index = tl.arange(0, keys.shape[0])
    slot = tl.arange(0, GROUP_SLOTS)
    group_keys = tl.full([GROUP_SLOTS], LOWEST, tl.int32)
    for group in range(groups):
        members = tl.where(index // size == group, keys, LOWEST)
        best = _first_of_largest(members, index)
        value = tl.sum(tl.where(index == best, worth, 0.0), 0)
        if by_two & (size > 1):
            second = _first_of_largest(tl.where(index == best, LOWEST, members), index)
            value += tl.sum(tl.where(index == second, worth, 0.0), 0)
        group_keys = tl.where(slot == group, order_key(value), group_keys)
    kept = index < 0
    for _ in range(topk_groups):
        best = _first_of_largest(group_keys, slot)
        kept = kept | (index // size == best)
        group_keys = tl.where(slot == best, LOWEST, group_keys)
    return tl.where(kept, keys, LOWEST)
