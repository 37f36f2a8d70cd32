"""Linear layers on the host: their shapes, and their weights as a checkpoint has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aot_runtime.weights import Packed

Array = np.ndarray


@dataclass(frozen=True)
class LinearShape:
    outputs: int
    inputs: int
    biased: bool = False

    @property
    def plain(self) -> dict[str, tuple[int, ...]]:
        """The shape of a weight that is stored as it is, by the end of its tensor's name."""
        return {"weight": (self.outputs, self.inputs)}


@dataclass(frozen=True)
class Linear:
    """A linear layer's weights: an array [outputs, inputs], or those of 4 bits; bias: [outputs]."""

    weight: Array | Packed
    bias: Array | None = None
