"""How a checkpoint stores the weights of its linear layers: one class per format, by quantization_config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from aot_runtime.weights import Packed
from checkpoints.awq import Awq
from checkpoints.gptq import Gptq
from checkpoints.linear import LinearShape
from checkpoints.values import Values

Array = np.ndarray
Shapes = dict[str, tuple[int, ...]]


class Format(Protocol):
    """How weights are stored.

    Attributes:
        ops: those of a bundle that the layers need.
    """

    ops: tuple[str, ...]

    def shapes(self, name: str, shape: LinearShape) -> Shapes:
        """Of the tensors of a linear layer but for its bias, by the ends of their names.

        Raises `ValueError`: the layer cannot be stored so.
        """

    def weight(self, tensors: Mapping[str, Array]) -> Array | Packed:
        """From the tensors of one linear layer, by the ends of their names.

        Raises `ValueError`: they are not what the format says.
        """


class Plain:
    """Weights in the checkpoint's dtype."""

    ops = ()

    def shapes(self, name: str, shape: LinearShape) -> Shapes:
        return shape.plain

    def weight(self, tensors: Mapping[str, Array]) -> Array | Packed:
        return tensors["weight"]


METHODS: dict[str, Callable[[Values], Format]] = {"gptq": Gptq.parse, "awq": Awq.parse}
"""By quant_method."""


def format_of(values: Values) -> Format:
    """Raises `CheckpointError`: a format that is not supported."""
    found = values.get("quantization_config")
    if not found:
        return Plain()
    stored = values.part(found)
    method = stored["quant_method"]
    values.demand(method in METHODS, f"quantisation {method}", METHODS)
    return METHODS[method](stored)


def stored_shapes(kept: Format, tensors: Mapping[str, tuple[int, ...]], linears: Mapping[str, LinearShape]) -> Shapes:
    """The shape of every tensor of a checkpoint, by name. tensors: those of no linear layer.

    Raises `ValueError`: a layer cannot be stored so.
    """
    shapes = dict(tensors)
    for name, shape in linears.items():
        shapes |= {f"{name}.{end}": found for end, found in kept.shapes(name, shape).items()}
        if shape.biased:
            shapes[f"{name}.bias"] = (shape.outputs,)
    return shapes
