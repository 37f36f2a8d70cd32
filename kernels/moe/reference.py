"""Mixtures of experts in numpy: exactly, and as hardware rounds. Shapes are those of manifests/moe.yaml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.gemm.reference import ACTIVATIONS, sum_in_order

Array = np.ndarray


def moe_route(
    logits: Array, topk: int, bias: Array | None = None, scoring: str = "softmax", renormalise: bool = True,
    groups: int = 1, topk_groups: int = 1, scale: float = 1, bias_float16: Array | None = None,
    bias_bfloat16: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return (weights float64, chosen int32), each [tokens, topk]: best experts first, and of equals the first."""
    bias = next((x for x in (bias, bias_float16, bias_bfloat16) if x is not None), None)
    return _routed(logits.astype(np.float64), topk, bias, scoring, renormalise, groups, topk_groups, scale)


def moe_route_same_dtype(
    logits: Array, topk: int, bias: Array | None = None, scoring: str = "softmax", renormalise: bool = True,
    groups: int = 1, topk_groups: int = 1, scale: float = 1, bias_float16: Array | None = None,
    bias_bfloat16: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """`moe_route` in fp32."""
    bias = next((x for x in (bias, bias_float16, bias_bfloat16) if x is not None), None)
    return _routed(logits.astype(np.float32), topk, bias, scoring, renormalise, groups, topk_groups, np.float32(scale))


def _routed(
    x: Array, topk: int, bias: Array | None, scoring: str, renormalise: bool, groups: int, topk_groups: int,
    scale: float,
) -> tuple[Array, Array]:  # fmt: skip
    """Route in the dtype of x."""
    weights = expert_weights(x, scoring)
    worth = x if bias is None else weights + bias.astype(x.dtype)
    worth = np.where(in_best_groups(worth, bias is not None, groups, topk_groups), worth, -np.inf)
    chosen = np.argsort(-worth, axis=1, kind="stable")[:, :topk].astype(np.int32)
    picked = np.take_along_axis(weights, chosen, 1)
    if renormalise:
        picked = picked / picked.sum(1, keepdims=True)
    return picked * scale, chosen


def expert_weights(x: Array, scoring: str) -> Array:
    """Return the weights of all experts, in the dtype of x."""
    if scoring == "sigmoid":
        return 1 / (1 + np.exp(-x))
    if scoring == "sqrt_softplus":
        return np.sqrt(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def in_best_groups(worth: Array, by_two: bool, groups: int, topk_groups: int) -> Array:
    """Mark the experts in the best groups: bool [tokens, experts], like `worth`."""
    by_group = worth.reshape(len(worth), groups, -1)
    best = np.sort(by_group, 2)[:, :, -2:].sum(2) if by_two else by_group.max(2)
    kept = np.argsort(-best, axis=1, kind="stable")[:, :topk_groups]
    taking_part = np.zeros(best.shape, bool)
    np.put_along_axis(taking_part, kept, True, 1)
    return np.repeat(taking_part, by_group.shape[2], 1)


@dataclass(frozen=True)
class Experts:
    """Dequantised matrices of experts, [experts, 2 * intermediate, hidden] and [experts, hidden, intermediate].

    Attributes:
        seen: rounds the rows that are multiplied by gate and up.
        seen_between: rounds the rows that are multiplied by down; None: as `seen`.
        rounds_factors: the products with gate and up, and the activation, are rounded to the dtype of x before they are
            multiplied, since their product is quantised next.
    """

    gate_up: Array
    down: Array
    seen: Callable[[Array], Array] = lambda rows: rows
    rounds_factors: bool = False
    seen_between: Callable[[Array], Array] | None = None


def gated(
    gate: Array, up: Array, rounded: np.dtype, activation: str = "silu", limit: float = 0.0, shift: float = 0.0
) -> Array:
    """Return activation(gate) * (up + shift) in the dtype of gate; both, and the activation, are rounded on the way.

    limit: if not 0, gate is at most that, and up between it and its negative, before all.
    """
    real = gate.dtype.type
    gate, up = (x.astype(rounded).astype(real) for x in (gate, up))
    if limit:
        bound = real(np.float32(limit))
        gate, up = np.minimum(gate, bound), np.clip(up, -bound, bound)
    gate = gate / (1 + np.exp(real(-1.702) * gate)) if activation == "gelu_quick" else ACTIVATIONS[activation](gate)
    return gate.astype(rounded).astype(real) * (up + real(np.float32(shift)))


def moe(
    x: Array, gate_up: Array, down: Array, weights: Array, chosen: Array, shared: Array | None = None, **gating: Any
) -> Array:
    """Return `shared` plus the sum over a token's experts of weight * down (`gated` gate x and up x), in float64."""
    matrices = Experts(gate_up.astype(np.float64), down.astype(np.float64))
    return exact_sum(x, matrices, weights, chosen, shared, **gating)


def moe_same_dtype(
    x: Array, gate_up: Array, down: Array, weights: Array, chosen: Array, shared: Array | None = None, **gating: Any
) -> Array:
    """`moe` as hardware does it: see `same_dtype_sum`."""
    matrices = Experts(gate_up.astype(np.float32), down.astype(np.float32))
    return same_dtype_sum(x, matrices, weights, chosen, shared, **gating)


def exact_sum(x: Array, matrices: Experts, weights: Array, chosen: Array, shared: Array | None, **gating: Any) -> Array:
    """Compute `moe` with float64 matrices."""
    out = np.zeros(x.shape) if shared is None else shared.astype(np.float64)
    for expert, tokens, slots in _assignments(chosen, len(matrices.down)):
        gate, up = np.split(matrices.seen(x[tokens].astype(np.float64)) @ matrices.gate_up[expert].T, 2, axis=1)
        act = (matrices.seen_between or matrices.seen)(gated(gate, up, np.dtype(np.float64), **gating))
        # A token may have an expert twice.
        np.add.at(out, tokens, weights[tokens, slots][:, None] * (act @ matrices.down[expert].T))
    return out


def same_dtype_sum(
    x: Array, matrices: Experts, weights: Array, chosen: Array, shared: Array | None, **gating: Any
) -> Array:
    """Compute `moe` with float32 matrices, as hardware does it.

    Sums are in fp32, one element after the other. Results of the first products and of each expert are rounded to the
    dtype of x.
    """
    parts = np.zeros((*chosen.shape, x.shape[1]), x.dtype)
    for expert, tokens, slots in _assignments(chosen, len(matrices.down)):
        both = sum_in_order(matrices.seen(x[tokens].astype(np.float32)), matrices.gate_up[expert].T)
        gate, up = np.split(both, 2, axis=1)
        between = x.dtype if matrices.rounds_factors else np.dtype(np.float32)
        act = gated(gate, up, between, **gating).astype(x.dtype).astype(np.float32)
        product = sum_in_order((matrices.seen_between or matrices.seen)(act), matrices.down[expert].T)
        parts[tokens, slots] = (weights[tokens, slots][:, None] * product).astype(x.dtype)
    out = np.zeros(x.shape, np.float32) if shared is None else shared.astype(np.float32)
    for slot in range(chosen.shape[1]):
        out += parts[:, slot]
    return out.astype(x.dtype)


def _assignments(chosen: Array, experts: int) -> list[tuple[int, Array, Array]]:
    """Yield (expert, its tokens, their slots) of each expert."""
    return [(expert, *np.nonzero(chosen == expert)) for expert in range(experts)]
