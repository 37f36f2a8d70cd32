"""Register arrays, and conversion of lane masks to and from words."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def lanes_of(low: Array, high: Array, lanes: int) -> Array:
    """Convert the words of a lane mask to bool [wavefronts, lanes]; `high` holds lanes 32 and up."""
    words = np.stack([low, high] if lanes == 64 else [low], axis=1)
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").view(bool)


def words_of(lanes: Array) -> tuple[Array, Array]:
    """Convert a mask of 32 or 64 lanes to (low, high) words, the inverse of `lanes_of`. For 32 lanes, high is 0."""
    words = np.packbits(lanes, axis=1, bitorder="little").view(np.uint32)
    return words[:, 0], words[:, 1] if words.shape[1] > 1 else np.zeros_like(words[:, 0])


def join(low: Array, high: Array) -> Array:
    """Combine two uint32 arrays of the same shape to uint64."""
    words = np.stack([low, high], axis=-1)
    return words.view(np.uint64)[..., 0]
