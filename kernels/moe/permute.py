"""Move rows of tokens into the order of their experts, and sum what experts give by token."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.tensors import Matrices, Matrix, given


@triton.jit
def permute_rows(x: Matrix, order, out: Matrix, hidden, topk, assignments, BLOCK: tl.constexpr):
    """out[i] = x[order[i] // topk], or 0 where order[i] is none of the assignments. Grid: (slots, cdiv(hidden, BLOCK)).

    x: [tokens, hidden], out: [slots, hidden], columns contiguous; order: int32 [slots].
    """
    await_earlier_launches()
    slot = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    assignment = tl.load(order + slot)
    known = (assignment >= 0) & (assignment < assignments)
    token = tl.where(known, assignment, 0) // topk
    values = tl.load(x.ptr + token.to(tl.int64) * x.stride_rows + columns, mask=inside & known, other=0)
    tl.store(out.ptr + slot.to(tl.int64) * out.stride_rows + columns, values, mask=inside)


@triton.jit
def sum_permuted(x: Matrix, places: Matrix, weights: Matrix, out: Matrix, topk, slots, hidden, BLOCK: tl.constexpr):
    """out[t] = the sum of weights[t, j] * x[places[t, j]], in fp32, in the order of j. Grid: (tokens, cdiv(hidden,
    BLOCK)).

    x: [slots, hidden], out: [tokens, hidden], of one dtype, columns contiguous. places: int32 [tokens, topk]; those out
    of range are left out. weights: fp32 [tokens, topk], or a null pointer: all are 1.
    """
    await_earlier_launches()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    acc = tl.zeros([BLOCK], tl.float32)
    for slot in range(topk):
        place = tl.load(places.ptr + token * places.stride_rows + slot)
        known = (place >= 0) & (place < slots)
        weight = tl.load(weights.ptr + token * weights.stride_rows + slot, given(weights.ptr), 1.0)
        values = tl.load(x.ptr + place.to(tl.int64) * x.stride_rows + columns, mask=inside & known, other=0.0)
        acc += weight * values.to(tl.float32)
    tl.store(out.ptr + token * out.stride_rows + columns, acc.to(out.ptr.dtype.element_ty), mask=inside)


@triton.jit
def sum_slots(x: Matrices, out: Matrix, topk, hidden, BLOCK: tl.constexpr):
    """out[t] = the sum of x[t, j], in fp32, in the order of j. Grid: (tokens, cdiv(hidden, BLOCK)).

    x: [tokens, topk, hidden], out: [tokens, hidden], of one dtype, columns contiguous.
    """
    await_earlier_launches()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    acc = tl.zeros([BLOCK], tl.float32)
    for slot in range(topk):
        at = x.ptr + token * x.stride_batch + slot.to(tl.int64) * x.stride_rows + columns
        acc += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out.ptr + token * out.stride_rows + columns, acc.to(out.ptr.dtype.element_ty), mask=inside)
