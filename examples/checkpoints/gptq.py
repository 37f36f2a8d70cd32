"""GPTQ: weights of 4 bits in groups of inputs, whose order may be by activation (act-order)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aot_runtime.weights import PER_WORD, Packed, from_gptq
from checkpoints.linear import LinearShape
from checkpoints.values import Values

Array = np.ndarray


@dataclass(frozen=True)
class Gptq:
    """group_size: inputs that share a scale, -1: all of them. zeros_are_less_one, symmetric: as for `from_gptq`."""

    group_size: int
    zeros_are_less_one: bool
    symmetric: bool
    ops = ("linear_int4",)

    @classmethod
    def parse(cls, stored: Values) -> Gptq:
        demand_4_bits(stored)
        version = stored.get("checkpoint_format", "gptq")
        stored.demand(version in ("gptq", "gptq_v2", "gemm"), f"checkpoint_format {version}", ("gptq", "gptq_v2"))
        return cls(stored["group_size"], version != "gptq_v2", bool(stored.get("sym", False)))

    def shapes(self, name: str, shape: LinearShape) -> dict[str, tuple[int, ...]]:
        if name == "lm_head":
            return shape.plain
        groups = groups_of(self.group_size, name, shape.inputs)
        return {
            "qweight": (shape.inputs // PER_WORD, shape.outputs),
            "qzeros": (groups, shape.outputs // PER_WORD),
            "scales": (groups, shape.outputs),
        }

    def weight(self, tensors: Mapping[str, Array]) -> Array | Packed:
        if "weight" in tensors:
            return tensors["weight"]
        codes, zeros, scales = (tensors[end] for end in ("qweight", "qzeros", "scales"))
        return from_gptq(codes, zeros, scales, tensors.get("g_idx"), self.zeros_are_less_one, self.symmetric)


def demand_4_bits(stored: Values) -> None:
    bits = stored["bits"]
    stored.demand(bits == 4, f"a weight of {bits} bits", ["4 bits"])


def groups_of(size: int, name: str, inputs: int) -> int:
    """Raises `ValueError`: groups of this size do not divide the inputs."""
    if size == -1:
        return 1
    if size < 1 or inputs % size:
        raise ValueError(f"groups of {size} do not divide the {inputs} inputs of {name}")
    return inputs // size
