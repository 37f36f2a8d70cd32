"""Linear layers on the host: their shapes, the tensors that a checkpoint has of them, and what these stand for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aot_models.quantise import Packed

Array = np.ndarray
Shape = tuple[int, ...]
FLOATS = ("float16", "bfloat16", "float32")
BLOCK = 128
"""Outputs, and inputs, that share a scale where scales are of blocks."""


@dataclass(frozen=True)
class LinearShape:
    outputs: int
    inputs: int
    biased: bool = False


@dataclass(frozen=True)
class Wanted:
    """A tensor that a checkpoint has to have: the shapes and the dtypes that it may have, the usual ones first."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = FLOATS

    def fault(self, shape: Shape, dtype: str) -> str:
        """What is wrong with what was found, or nothing."""
        if shape not in self.shapes:
            return f"is {list(shape)}, and should be {' or '.join(str(list(wanted)) for wanted in self.shapes)}"
        return "" if dtype in self.dtypes else f"is {dtype}, and should be {' or '.join(self.dtypes)}"


@dataclass(frozen=True)
class Scaled:
    """Weights of 8 bits that are multiplied by activations of 8 bits: codes * scales.

    Attributes:
        weight: int8 or float8_e4m3fn [outputs, inputs].
        scales: float32: one for all [1], of each output [outputs], or of blocks of 128 x 128 [cdiv(outputs, 128),
            cdiv(inputs, 128)].
        input_scale: that of all activations; None: each row has one of its own, of blocks each 128 numbers of a row.
    """

    weight: Array
    scales: Array
    input_scale: float | None = None

    @property
    def of_blocks(self) -> bool:
        return self.scales.ndim == 2


Weight = Array | Packed | Scaled
"""Of a linear layer: an array [outputs, inputs], codes of 4 or 8 bits for activations of 16, or of 8 for such of 8."""


@dataclass(frozen=True)
class Linear:
    """A linear layer. bias: [outputs]."""

    weight: Weight
    bias: Array | None = None

    @property
    def outputs(self) -> int:
        weight = self.weight
        return len(weight.w if isinstance(weight, Packed) else weight.weight if isinstance(weight, Scaled) else weight)
