"""Rotary embeddings: plain, or stretched for longer contexts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from checkpoints.values import Values
from models.config import Rope

Array = np.ndarray


def rope_of(values: Values, dims: int) -> Rope:
    """What config.json says. dims: elements of a head that are rotated.

    Raises `CheckpointError`: a kind that is not supported, a key of it that is missing.
    """
    scaling = values.part(values.get("rope_parameters") or values.get("rope_scaling"))
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    values.demand(kind in KINDS, f"rope_type {kind}", KINDS)
    theta = float(scaling.get("rope_theta") or values.get("rope_theta") or 10000.0)
    plain = theta ** (-np.arange(0, dims, 2) / dims)
    return Rope(tuple(KINDS[kind](scaling, plain).tolist()))


def _default(scaling: Values, plain: Array) -> Array:
    return plain


def _linear(scaling: Values, plain: Array) -> Array:
    return plain / scaling["factor"]


def _llama3(scaling: Values, plain: Array) -> Array:
    """Fast ones stay, slow ones are stretched, and those between are mixed, by their turns in the original context."""
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0, 1)
    return share * plain + (1 - share) * plain / scaling["factor"]


KINDS: dict[str, Callable[[Values, Array], Array]] = {"default": _default, "linear": _linear, "llama3": _llama3}
"""By rope_type: the frequencies, from the plain ones."""
