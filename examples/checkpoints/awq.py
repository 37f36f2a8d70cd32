"""AWQ: weights of 4 bits in groups of inputs, in the layout `gemm`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aot_runtime.weights import PER_WORD, Packed, from_awq
from checkpoints.gptq import demand_4_bits, groups_of
from checkpoints.linear import LinearShape
from checkpoints.values import Values

Array = np.ndarray


@dataclass(frozen=True)
class Awq:
    """group_size: inputs that share a scale, -1: all of them."""

    group_size: int
    ops = ("linear_int4",)

    @classmethod
    def parse(cls, stored: Values) -> Awq:
        demand_4_bits(stored)
        layout = stored.get("version", "gemm").lower()
        stored.demand(layout == "gemm", f"AWQ's layout {layout}", ["gemm"])
        return cls(stored["group_size"])

    def shapes(self, name: str, shape: LinearShape) -> dict[str, tuple[int, ...]]:
        if name == "lm_head":
            return shape.plain
        groups = groups_of(self.group_size, name, shape.inputs)
        return {
            "qweight": (shape.inputs, shape.outputs // PER_WORD),
            "qzeros": (groups, shape.outputs // PER_WORD),
            "scales": (groups, shape.outputs),
        }

    def weight(self, tensors: Mapping[str, Array]) -> Array | Packed:
        if "weight" in tensors:
            return tensors["weight"]
        return from_awq(tensors["qweight"], tensors["qzeros"], tensors["scales"])
