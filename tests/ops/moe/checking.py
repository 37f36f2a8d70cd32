"""Mixtures of experts are called with poison around all tensors, and held against the fp64 references."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from aot_runtime import Bundle
from kernels.moe import reference
from kernels.tolerance import assert_close
from tests.support.dtypes import FP32, INT32
from tests.support.poison import into_poison, poisoned

FLOOR = 1e-6


def check_route(moe: Bundle, logits: np.ndarray, topk: int, bias: np.ndarray | None = None, **how: Any) -> np.ndarray:
    """The chosen experts. Each is as good as the exact choice, within what fp32 can tell; and its weight is right."""
    tokens, experts = logits.shape
    given = {"logits": poisoned(moe, logits)} | ({} if bias is None else {"bias": poisoned(moe, bias)})
    chosen = moe.device.empty((tokens, topk), INT32)
    weights = into_poison(
        moe, (tokens, topk), FP32, lambda out: moe.moe_route(**given, topk=topk, weights=out, chosen=chosen, **how)
    )
    found = chosen.numpy()
    assert all(len(set(row)) == topk for row in found.tolist()) and ((found >= 0) & (found < experts)).all()

    scoring, groups = how.get("scoring", "softmax"), how.get("groups", 1)
    exact = reference.expert_weights(logits.astype(np.float64), scoring)
    worth = logits.astype(np.float64) if bias is None else exact + bias
    taking_part = reference.in_best_groups(worth, bias is not None, groups, how.get("topk_groups", 1))
    assert np.take_along_axis(taking_part, found, 1).all()
    order = -np.sort(-np.where(taking_part, worth, -np.inf), 1)[:, :topk]
    assert np.abs(np.take_along_axis(worth, found, 1) - order).max(initial=0) <= 1e-6 * max(1, np.abs(worth).max())

    same = reference.expert_weights(logits.astype(FP32), scoring)
    picked = [np.take_along_axis(scores, found, 1) for scores in (exact, same)]
    if how.get("renormalise", True):
        picked = [scores / scores.sum(1, keepdims=True) for scores in picked]
    scale = how.get("scale", 1)
    assert_close(weights, picked[0] * scale, picked[1] * scale, FLOOR)
    return found


def check_moe(moe: Bundle, activation: str = "silu", **arrays: np.ndarray) -> np.ndarray:
    """The result of `moe` on these tensors."""
    x = arrays["x"]
    # Poison is around rows too, and these two are packed.
    place = dict.fromkeys(("weights", "chosen"), moe.device.array)
    placed = {name: place.get(name, partial(poisoned, moe))(host) for name, host in arrays.items()}
    result = into_poison(moe, x.shape, x.dtype, lambda out: moe.moe(**placed, activation=activation, out=out))
    exact, same = (function(**arrays, activation=activation) for function in (reference.moe, reference.moe_same_dtype))
    assert_close(result, exact, same, FLOOR)
    return result


def made(
    rng: np.random.Generator, tokens: int, experts: int, topk: int, hidden: int, intermediate: int, dtype: np.dtype
) -> dict[str, np.ndarray]:
    """Tensors of `moe`, whose results are of about 1; no token has an expert twice."""
    chosen = np.argsort(rng.random((tokens, experts)), 1)[:, :topk].astype(np.int32)
    return {
        "x": rng.standard_normal((tokens, hidden)).astype(dtype),
        "gate_up": (rng.standard_normal((experts, 2 * intermediate, hidden)) * hidden**-0.5).astype(dtype),
        "down": (rng.standard_normal((experts, hidden, intermediate)) * intermediate**-0.5).astype(dtype),
        "weights": rng.random((tokens, topk)).astype(np.float32),
        "chosen": np.ascontiguousarray(chosen),
    }
