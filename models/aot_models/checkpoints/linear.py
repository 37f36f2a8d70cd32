"""Linear layers on the host: their shapes, the tensors that a checkpoint stores for them, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from aot_models.quantise import Packed

Array = np.ndarray
Shape = tuple[int, ...]
FLOATS = ("float16", "bfloat16", "float32")
BLOCK = 128
"""Side of the square blocks of weights that share a scale."""


@dataclass(frozen=True)
class LinearShape:
    outputs: int
    inputs: int
    biased: bool = False


@dataclass(frozen=True)
class Wanted:
    """A required tensor of a checkpoint: its allowed shapes and dtypes, the usual ones first."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = FLOATS

    def fault(self, shape: Shape, dtype: str) -> str:
        """Describe how a stored shape or dtype differs from the allowed ones; "" if it does not."""
        if shape not in self.shapes:
            return f"is {list(shape)}, and should be {' or '.join(str(list(wanted)) for wanted in self.shapes)}"
        return "" if dtype in self.dtypes else f"is {dtype}, and should be {' or '.join(self.dtypes)}"


@dataclass(frozen=True)
class Scaled:
    """Weights of 8 bits that are multiplied by activations of 8 bits: codes * scales.

    Attributes:
        weight: int8 or float8_e4m3fn [outputs, inputs].
        scales: float32, per tensor [1], per output [outputs], or per block of 128 x 128 [cdiv(outputs, 128),
            cdiv(inputs, 128)].
        input_scale: the scale of all activations; None: they are scaled at run time, by row or 128 columns of a row.
    """

    weight: Array
    scales: Array
    input_scale: float | None = None

    @property
    def of_blocks(self) -> bool:
        return self.scales.ndim == 2


Weight = Array | Packed | Scaled
"""A linear layer's weights: an array [outputs, inputs]; `Packed` for 16-bit activations; `Scaled` for 8-bit ones."""


Kind = TypeVar("Kind", Array, Packed, Scaled)


def all_of(kind: type[Kind], weights: Sequence[Weight]) -> list[Kind] | None:
    """The weights, if all are of one kind; otherwise None."""
    found = [weight for weight in weights if isinstance(weight, kind)]
    return found if len(found) == len(weights) else None


@dataclass(frozen=True)
class Linear:
    """A linear layer. bias: [outputs]."""

    weight: Weight
    bias: Array | None = None

    @property
    def outputs(self) -> int:
        weight = self.weight
        return len(weight.w if isinstance(weight, Packed) else weight.weight if isinstance(weight, Scaled) else weight)
