"""Register arrays, and conversion of lane masks to and from words."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def lanes_of(low: Array, high: Array, lanes: int) -> Array:
    """The bits of a mask's words, bool [wavefronts, lanes]; `high` has those from lane 32."""
    words = np.stack([low, high] if lanes == 64 else [low], axis=1)
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").view(bool)


def words_of(lanes: Array) -> tuple[Array, Array]:
    """What `lanes_of` takes: the low and the high word of a mask of 32 or 64 lanes; high ones of 32 are 0."""
    words = np.packbits(lanes, axis=1, bitorder="little").view(np.uint32)
    return words[:, 0], words[:, 1] if words.shape[1] > 1 else np.zeros_like(words[:, 0])


def join(low: Array, high: Array) -> Array:
    """Combine two uint32 arrays of the same shape to uint64."""
    words = np.stack([low, high], axis=-1)
    return words.view(np.uint64)[..., 0]
