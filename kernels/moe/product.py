"""Products of tokens with the matrices of their experts, a block of one expert's assignments at a time."""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.tensors import Matrices, Matrix
from kernels.gemm.block_scaled import BLOCK as SCALED
from kernels.gemm.epilogue import activate
from kernels.gemm.order import tile_of
from kernels.moe.dequantise import Quantisation, product
from kernels.moe.order import Assignments, Blocks, assignments_of, expert_of, has_one_half
from kernels.rows.gate import sigmoid

GELU_QUICK: tl.constexpr = tl.constexpr(6)
"""A value of `activation` besides those of `epilogue`: gate x * sigmoid(1.702 * gate x)."""


class Gating(NamedTuple):
    """The step between the products: activation(gate x) * (up x + shift).

    limit: if more than 0, gate x is at most that, and up x between it and its negative, before all.
    """

    activation: tl.tensor
    limit: tl.tensor
    shift: tl.tensor


@triton.jit
def gated(gate, up, gating: Gating, ROUNDED: tl.constexpr):
    """Apply a Gating to fp32 values; gate x, up x and the activation are rounded to the dtype ROUNDED."""
    gate, up = gate.to(ROUNDED).to(tl.float32), up.to(ROUNDED).to(tl.float32)
    if gating.limit > 0:
        gate = tl.where(gate > gating.limit, gating.limit, gate)
        up = tl.where(up > gating.limit, gating.limit, tl.where(up < -gating.limit, -gating.limit, up))
    if gating.activation == GELU_QUICK:
        gate *= sigmoid(1.702 * gate)
    else:
        gate = activate(gate, gating.activation)
    return gate.to(ROUNDED).to(tl.float32) * (up + gating.shift)


@triton.jit
def gate_up(
    x: Matrix, w: Matrices, act, of_blocks: Blocks, topk, intermediate, hidden, blocks, gating: Gating,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1, quantisation: Quantisation = None, PADDING: tl.constexpr = "loaded",
):  # fmt: skip
    """act[i] = `gated` gate x and up x of each assignment i. Grid: (blocks * cdiv(intermediate, BLOCK_N),).

    x: [tokens, hidden]; w: [experts, 2 * intermediate, hidden], the rows of gate before those of up; the last dims
    contiguous; `quantisation` gives their format. act: [assignments, intermediate], packed. PADDING: see
    `assignments_of`. Where x and w have scales, so that act is quantised next, the two products and the activation are
    rounded to act's dtype, too.
    """
    await_earlier_launches()
    block, tile = tile_of(tl.program_id(0), blocks * BLOCK_M, intermediate, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    expert = expert_of(of_blocks, block)
    if expert >= 0:
        if PADDING == "halved" and has_one_half(of_blocks, block, BLOCK_M):
            half = assignments_of(of_blocks, block, BLOCK_M, BLOCK_M // 2, PADDING)
            _gate_up(half, x, w, act, topk, intermediate, hidden, gating, quantisation, tile, expert, BLOCK_N, BLOCK_K)
        else:
            whole = assignments_of(of_blocks, block, BLOCK_M, BLOCK_M, PADDING)
            _gate_up(whole, x, w, act, topk, intermediate, hidden, gating, quantisation, tile, expert, BLOCK_N, BLOCK_K)


@triton.jit
def _gate_up(
    assignments: Assignments, x, w, act, topk, intermediate, hidden, gating, quantisation, tile, expert,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of `gate_up`."""
    # A column of gate and the same one of up are neighbours, so a thread has both.
    pair = tl.arange(0, 2 * BLOCK_N)
    column, is_up = (tile * BLOCK_N + pair // 2) % intermediate, pair % 2
    scaled = (2 * expert + is_up) * tl.cdiv(intermediate, SCALED) + column // SCALED
    tokens = assignments.inside // topk
    of_gate_and_up = column + is_up * intermediate
    acc = product(
        x, w, quantisation, expert, tokens, of_gate_and_up, scaled, 2 * intermediate, hidden, BLOCK_K,
        assignments.loaded,
    )  # fmt: skip
    gate, up = acc.reshape([acc.shape[0], BLOCK_N, 2]).split()
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    at = act + assignments.rows[:, None].to(tl.int64) * intermediate + columns[None, :]
    stored = assignments.known[:, None] & (columns < intermediate)[None, :]
    dtype: tl.constexpr = act.dtype.element_ty
    # Other libraries multiply stored, rounded values: rounding later would give other quantised values.
    QUANTISED: tl.constexpr = quantisation.FORMAT == "channels" or quantisation.FORMAT == "blocks"
    result = gated(gate, up, gating, dtype if QUANTISED else tl.float32)
    tl.store(at, result.to(dtype), stored)


@triton.jit
def down(
    act, w: Matrices, weights, part, of_blocks: Blocks, hidden, intermediate, blocks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1, quantisation: Quantisation = None, PADDING: tl.constexpr = "loaded",
):  # fmt: skip
    """part[i] = weights[i] * (down act[i]) of each assignment i. Grid: (blocks * cdiv(hidden, BLOCK_N),).

    act: [assignments, intermediate], packed; w: [experts, hidden, intermediate], the last dim contiguous;
    `quantisation` gives their format; weights: fp32 [assignments]. part: [assignments, hidden], packed. PADDING: see
    `assignments_of`.
    """
    await_earlier_launches()
    block, tile = tile_of(tl.program_id(0), blocks * BLOCK_M, hidden, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    expert = expert_of(of_blocks, block)
    if expert >= 0:
        if PADDING == "halved" and has_one_half(of_blocks, block, BLOCK_M):
            half = assignments_of(of_blocks, block, BLOCK_M, BLOCK_M // 2, PADDING)
            _down(half, act, w, weights, part, hidden, intermediate, quantisation, tile, expert, BLOCK_N, BLOCK_K)
        else:
            whole = assignments_of(of_blocks, block, BLOCK_M, BLOCK_M, PADDING)
            _down(whole, act, w, weights, part, hidden, intermediate, quantisation, tile, expert, BLOCK_N, BLOCK_K)


@triton.jit
def _down(
    assignments: Assignments, act, w, weights, part, hidden, intermediate, quantisation, tile, expert,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of `down`."""
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    rows, known, source = assignments.rows, assignments.known, Matrix(act, intermediate, 1)
    scaled = expert * tl.cdiv(hidden, SCALED) + columns % hidden // SCALED
    acc = product(
        source, w, quantisation, expert, assignments.inside, columns % hidden, scaled, hidden, intermediate, BLOCK_K,
        assignments.loaded,
    )  # fmt: skip
    acc *= tl.load(weights + rows, known, 0.0)[:, None]
    at = part + rows[:, None].to(tl.int64) * hidden + columns[None, :]
    tl.store(at, acc.to(part.dtype.element_ty), known[:, None] & (columns < hidden)[None, :])


@triton.jit
def add_experts(
    part, chosen, shared: Matrix, out: Matrix, topk, hidden, experts, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr = 1
):
    """out[t] = the sum of part[t, j] over the slots j of a token, in their order, and shared[t]. Grid: (tokens,
    cdiv(hidden, BLOCK)).

    part: [tokens, topk, hidden], packed; slots whose `chosen`, int32 [tokens, topk], is out of range are skipped.
    shared: [tokens, hidden], or a null pointer; out: [tokens, hidden], columns contiguous; of one dtype. AT_ONCE: slots
    that are loaded at a time.
    """
    await_earlier_launches()
    token = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    at = shared.ptr + token.to(tl.int64) * shared.stride_rows + columns
    acc = tl.load(at, mask=inside & (shared.ptr.to(tl.int64) != 0), other=0.0).to(tl.float32)
    for first in range(0, topk, AT_ONCE):
        for slot in tl.static_range(AT_ONCE):
            assignment = token.to(tl.int64) * topk + first + slot
            expert = tl.load(chosen + assignment, mask=first + slot < topk, other=-1)
            is_there = inside & (expert >= 0) & (expert < experts)
            acc += tl.load(part + assignment * hidden + columns, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out.ptr + token.to(tl.int64) * out.stride_rows + columns, acc.to(out.ptr.dtype.element_ty), mask=inside)
