"""Products of few tokens, whose experts mostly have at most one assignment: assignments are multiplied one by one.

Reading the weights takes nearly all the time. Operands are in registers, and no matrix instructions are used.
"""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.tensors import Matrices, Matrix
from kernels.moe.product import Gating, gated


@triton.jit
def gate_up_single(
    x: Matrix, w: Matrices, act, chosen, topk, intermediate, hidden, experts, gating: Gating,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """act[i] = `gated` gate x and up x of each assignment i. Grid: (assignments, cdiv(intermediate, BLOCK_N)).

    x: [tokens, hidden]; w: [experts, 2 * intermediate, hidden], the rows of gate before those of up; the last dims
    contiguous. chosen: int32 [assignments], the experts; assignments without an expert are left as they are.
    act: [assignments, intermediate], packed.
    """
    await_earlier_launches()
    assignment = tl.program_id(0)
    expert = tl.load(chosen + assignment)
    if (expert >= 0) & (expert < experts):
        columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside, inner = columns < intermediate, tl.arange(0, BLOCK_K)
        rows = tl.where(inside, columns, 0).to(tl.int64)
        x_at = x.ptr + (assignment // topk).to(tl.int64) * x.stride_rows + inner
        gate_at = w.ptr + expert.to(tl.int64) * w.stride_batch + rows[:, None] * w.stride_rows + inner[None, :]
        up_at = gate_at + intermediate.to(tl.int64) * w.stride_rows
        gate = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
        up = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
        for start in range(0, hidden, BLOCK_K):
            known = inner < hidden - start
            of_gate = tl.load(gate_at + start, mask=known[None, :], other=0.0)
            of_up = tl.load(up_at + start, mask=known[None, :], other=0.0)
            of_x = tl.load(x_at + start, mask=known, other=0.0).to(tl.float32)[None, :]
            gate += of_gate.to(tl.float32) * of_x
            up += of_up.to(tl.float32) * of_x
        result = gated(tl.sum(gate, 1), tl.sum(up, 1), gating, tl.float32)
        at = act + assignment.to(tl.int64) * intermediate + columns
        tl.store(at, result.to(act.dtype.element_ty), mask=inside)


@triton.jit
def down_single(
    act, w: Matrices, weights, chosen, shared: Matrix, out: Matrix, topk, hidden, intermediate, experts,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """out[t] = the sum of weights[t, j] * (down act[t, j]), rounded to out's dtype, over the slots j of a token, in
    their order, and shared[t]. Grid: (tokens, cdiv(hidden, BLOCK_N)).

    act: [tokens, topk, intermediate], packed; w: [experts, hidden, intermediate], the last dim contiguous. weights:
    fp32, chosen: int32 [tokens, topk], packed; slots whose `chosen` is no expert's are left out. shared: [tokens,
    hidden], or a null pointer; out: [tokens, hidden], columns contiguous. SLOTS: as many are multiplied at a time.
    """
    await_earlier_launches()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside, inner = columns < hidden, tl.arange(0, BLOCK_K)
    at = shared.ptr + token * shared.stride_rows + columns
    acc = tl.load(at, mask=inside & (shared.ptr.to(tl.int64) != 0), other=0.0).to(tl.float32)
    rows = tl.where(inside, columns, 0).to(tl.int64)
    for first in range(0, topk, SLOTS):
        slot = first + tl.arange(0, SLOTS)
        assignment = token * topk + slot
        expert = tl.load(chosen + assignment, mask=slot < topk, other=-1)
        is_there = (expert >= 0) & (expert < experts)
        weight = tl.load(weights + assignment, mask=is_there, other=0.0)
        act_at = act + assignment[:, None] * intermediate + inner[None, :]
        own = expert.to(tl.int64) * w.stride_batch
        w_at = w.ptr + own[:, None, None] + (rows * w.stride_rows)[None, :, None] + inner[None, None, :]
        products = tl.zeros([SLOTS, BLOCK_N, BLOCK_K], tl.float32)
        for start in range(0, intermediate, BLOCK_K):
            known = is_there[:, None] & (inner < intermediate - start)[None, :]
            of_w = tl.load(w_at + start, mask=known[:, None, :], other=0.0).to(tl.float32)
            products += of_w * tl.load(act_at + start, mask=known, other=0.0).to(tl.float32)[:, None, :]
        part = (tl.sum(products, 2) * weight[:, None]).to(out.ptr.dtype.element_ty).to(tl.float32)
        of_slot = tl.arange(0, SLOTS)[:, None]
        for number in tl.static_range(SLOTS):
            acc += tl.sum(tl.where(of_slot == number, part, 0.0), 0)
    tl.store(out.ptr + token * out.stride_rows + columns, acc.to(out.ptr.dtype.element_ty), mask=inside)
