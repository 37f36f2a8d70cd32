"""The scheme of layers with 8-bit weights and activations, float8 or int8; formats name the tensors differently."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from aot_models.checkpoints.linear import BLOCK, LinearShape, Scaled, Shape, Wanted, Weight
from aot_models.checkpoints.scheme import Array, Tensors

SCALES = ("float32", "bfloat16", "float16", "float8_e8m0fnu")
ONE: tuple[Shape, ...] = ((1,), ())


@dataclass(frozen=True)
class EightBits:
    """Codes with scales, and optionally a static scale of the activations.

    Attributes:
        dtype: the dtype of the codes, int8 or float8_e4m3fn.
        strategy: scales per tensor, per output channel, either of the two ("any"), or per block of 128 x 128.
        static: the checkpoint has a scale for the activations; otherwise they are scaled at run time.
        scales, input_scales: possible names of the tensors, the usual one first.
    """

    dtype: str
    strategy: Literal["tensor", "channel", "any", "block"]
    static: bool
    scales: tuple[str, ...] = ("weight_scale",)
    input_scales: tuple[str, ...] = ("input_scale",)

    @property
    def float8(self) -> bool:
        return self.dtype.startswith("float8")

    @property
    def ops(self) -> tuple[str, ...]:
        product = "block_scaled_matmul" if self.strategy == "block" else "scaled_matmul"
        return ("quantise_static" if self.static else "quantise", product)

    def wanted(self, shape: LinearShape, ends: Collection[str]) -> dict[str, Wanted]:
        if shape.biased and self.strategy == "block":
            raise ValueError("a bias beside scales of blocks is not supported")
        found = {
            "weight": Wanted(((shape.outputs, shape.inputs),), (self.dtype,)),
            _first(self.scales, ends): Wanted(self._scale_shapes(shape), SCALES),
        }
        return found | ({_first(self.input_scales, ends): Wanted(ONE, SCALES)} if self.static else {})

    def weight(self, tensors: Tensors) -> Weight:
        scales = _numbers(tensors, self.scales)
        scales = scales if self.strategy == "block" else scales.reshape(-1)
        given = _numbers(tensors, self.input_scales) if self.static else None
        return Scaled(tensors["weight"], scales, None if given is None else float(given.reshape(-1)[0]))

    def _scale_shapes(self, shape: LinearShape) -> tuple[Shape, ...]:
        if self.strategy == "block":
            return ((-(-shape.outputs // BLOCK), -(-shape.inputs // BLOCK)),)
        channel: tuple[Shape, ...] = ((shape.outputs, 1), (shape.outputs,))
        return {"tensor": ONE, "channel": channel, "any": ONE + channel}[self.strategy]


def _first(names: tuple[str, ...], ends: Collection[str]) -> str:
    return next((name for name in names if name in ends), names[0])


def _numbers(tensors: Tensors, names: tuple[str, ...]) -> Array:
    """Scales as float32. Raises `ValueError` unless all are finite and above 0."""
    name = _first(names, tensors)
    found = tensors[name].astype(np.float32)
    if not (np.isfinite(found) & (found > 0)).all():
        raise ValueError(f"{name}: scales must be finite and above 0")
    return found
