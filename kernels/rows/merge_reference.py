"""`merge_states` and `merge_two_states` in numpy.

Shapes are those of manifests/rows.yaml; each `f` computes in float64, each `f_same_dtype` in float32.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def merge_states(states: Array, lses: Array) -> tuple[Array, Array]:
    """Return (the mean of states [tokens, parts, heads, head_dim] weighted by exp(lses), log(sum(exp(lses))))."""
    return _merged(np.float64, states, lses)


def merge_states_same_dtype(states: Array, lses: Array) -> tuple[Array, Array]:
    out, lse = _merged(np.float32, states, lses)
    return out.astype(states.dtype), lse


def merge_two_states(a: Array, lse_a: Array, b: Array, lse_b: Array, mask: Array | None = None) -> tuple[Array, Array]:
    return merge_states(*_stacked(a, lse_a, b, lse_b, mask))


def merge_two_states_same_dtype(
    a: Array, lse_a: Array, b: Array, lse_b: Array, mask: Array | None = None
) -> tuple[Array, Array]:
    return merge_states_same_dtype(*_stacked(a, lse_a, b, lse_b, mask))


def _stacked(a: Array, lse_a: Array, b: Array, lse_b: Array, mask: Array | None) -> tuple[Array, Array]:
    if mask is not None:
        lse_b = np.where(mask.astype(bool)[:, None], lse_b, np.float32(-np.inf))
    return np.stack((a, b), 1), np.stack((lse_a, lse_b), 1)


def _merged(compute: type, states: Array, lses: Array) -> tuple[Array, Array]:
    lses = np.where(lses == np.inf, -np.inf, lses).astype(compute)
    peak = lses.max(1, keepdims=True)
    with np.errstate(divide="ignore"):
        weights = np.exp(lses - np.where(np.isneginf(peak), 0, peak))
        total = weights.sum(1)
        lse = peak[:, 0] + np.log(total)
    seen = np.where(weights[..., None] > 0, states.astype(compute), compute(0))
    return (weights[..., None] * seen).sum(1) / np.where(total == 0, 1, total)[..., None], lse
