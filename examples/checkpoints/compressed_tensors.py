"""compressed-tensors, as llm-compressor writes it: groups of layers, each with a scheme for weights and activations."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_runtime.weights import Packed, from_compressed_tensors
from checkpoints.eight_bits import EightBits
from checkpoints.linear import BLOCK, LinearShape, Wanted, Weight
from checkpoints.scheme import Format, Plain, Scheme, Tensors, check_groups, check_words
from checkpoints.values import CheckpointError, Values

SUPPORTED = (
    "pack-quantized: weights of 4 or 8 bits, activations as they are",
    "int-quantized: int8 by tensor or channel, activations as they are, or int8 by token or static",
    "float-quantized: float8 by tensor or channel with activations by token or static, or in blocks of 128 x 128",
)
FLOAT8 = "float8_e4m3fn"


@dataclass(frozen=True)
class PackQuantized:
    """Codes packed in int32. group_size: inputs that share a scale, -1: all of them."""

    bits: int
    group_size: int
    symmetric: bool
    float8: bool = False

    @property
    def ops(self) -> tuple[str, ...]:
        return (f"linear_int{self.bits}",)

    def wanted(self, shape: LinearShape, ends: Collection[str]) -> dict[str, Wanted]:
        groups, per_word = check_groups(self.group_size, shape.inputs), 32 // self.bits
        found = {
            "weight_packed": Wanted(((shape.outputs, -(-shape.inputs // per_word)),), ("int32",)),
            "weight_scale": Wanted(((shape.outputs, groups),)),
            "weight_shape": Wanted(((2,),), ("int64", "int32")),
        }
        if not self.symmetric:
            words = check_words(shape.outputs, per_word, "outputs")
            found["weight_zero_point"] = Wanted(((words, groups),), ("int32",))
        order = {"weight_g_idx": Wanted(((shape.inputs,),), ("int32", "int64"))} if "weight_g_idx" in ends else {}
        return found | order

    def weight(self, tensors: Tensors) -> Weight:
        zeros = None if self.symmetric else tensors["weight_zero_point"]
        packed, scales, shape = (tensors[f"weight_{end}"] for end in ("packed", "scale", "shape"))
        return from_compressed_tensors(packed, scales, shape, zeros, tensors.get("weight_g_idx"), self.bits)


@dataclass(frozen=True)
class Int8Weights:
    """Codes of 8 bits as they are, for activations of 16 bits, with scales of outputs, or one for all."""

    symmetric: bool
    float8: bool = False
    ops: tuple[str, ...] = ("linear_int8",)

    def wanted(self, shape: LinearShape, ends: Collection[str]) -> dict[str, Wanted]:
        of_outputs = ((shape.outputs, 1), (shape.outputs,), (1,), ())
        zeros = {} if self.symmetric else {"weight_zero_point": Wanted(of_outputs, ("int8",))}
        weight = Wanted(((shape.outputs, shape.inputs),), ("int8",))
        return {"weight": weight, "weight_scale": Wanted(of_outputs), **zeros}

    def weight(self, tensors: Tensors) -> Weight:
        codes = tensors["weight"]
        zeros = np.int8(0) if self.symmetric else tensors["weight_zero_point"].reshape(1, -1)
        spread = (np.broadcast_to(x, (1, len(codes))) for x in (tensors["weight_scale"].reshape(1, -1), zeros))
        scales, zeros = (np.ascontiguousarray(x) for x in spread)
        return Packed(codes, scales, zeros, codes.shape[1])


def parse(stored: Values) -> Format:
    """Of a quantization_config. Raises `CheckpointError`: what is not supported."""
    _refuse_others(stored)
    groups = stored["config_groups"]
    schemes = [(_targets(stored, group), _scheme(stored, name, group)) for name, group in groups.items()]
    by_target = {target: scheme for targets, scheme in schemes for target in targets}
    left_out = stored.get("ignore", ())

    def scheme_of(name: str) -> Scheme:
        if any(_matches(name, target) for target in left_out):
            return Plain()
        # Names before expressions before classes; a model's linear layers are all of the class Linear.
        ordered = sorted(by_target, key=lambda target: (target == "Linear", target.startswith("re:"), target))
        found = next((target for target in ordered if target == "Linear" or _matches(name, target)), None)
        return Plain() if found is None else by_target[found]

    return scheme_of


def _refuse_others(stored: Values) -> None:
    sparsity = (stored.get("sparsity_config") or {}).get("format", "dense")
    stored.demand(sparsity == "dense", f"compressed-tensors' sparsity {sparsity}", ["dense"])
    transforms = list((stored.get("transform_config") or {}).get("config_groups") or ())
    stored.demand(not transforms, f"compressed-tensors' transform {', '.join(transforms)}", ["none"])


def _targets(stored: Values, group: Any) -> list[str]:
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise CheckpointError(f"{stored.path}: a group of 'config_groups' has no 'weights'")
    return list(group.get("targets") or ["Linear"])


def _matches(name: str, target: str) -> bool:
    return bool(re.match(target[3:], name)) if target.startswith("re:") else name == target


def _scheme(stored: Values, name: str, group: dict[str, Any]) -> Scheme:
    kind = group.get("format") or stored.get("format", "")
    weights, activations = group["weights"], group.get("input_activations")
    found = None if group.get("output_activations") else _known(kind, weights, activations)
    stored.demand(found is not None, f"compressed-tensors' {_described(name, kind, group)}", SUPPORTED)
    return found


def _known(kind: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> Scheme | None:
    bits, numbers = weights.get("num_bits"), weights.get("type", "int")
    strategy, symmetric = _strategy(weights), weights.get("symmetric", True)
    size = weights.get("group_size") if strategy == "group" else -1
    if kind == "pack-quantized" and (numbers, activations) == ("int", None) and bits in (4, 8):
        return PackQuantized(bits, size, symmetric) if strategy in ("group", "channel") else None
    if kind not in ("int-quantized", "float-quantized", "naive-quantized") or bits != 8:
        return None
    if numbers == "int" and activations is None:
        return Int8Weights(symmetric) if strategy in ("tensor", "channel") else None
    if not symmetric or activations is None or not _alike(weights, activations):
        return None
    dtype, static = FLOAT8 if numbers == "float" else "int8", not activations.get("dynamic", False)
    if strategy == "block":
        fits = list(weights.get("block_structure") or ()) == [BLOCK, BLOCK] and activations.get("group_size") == BLOCK
        return EightBits(dtype, "block", False) if fits and not static and numbers == "float" else None
    by_activations = ("tensor",) if static else ("tensor", "token")
    fits = strategy in ("tensor", "channel") and _strategy(activations) in by_activations
    return EightBits(dtype, strategy, static) if fits else None


def _strategy(arguments: dict[str, Any]) -> str:
    """Where it is not said, the size of groups says it."""
    size = arguments.get("group_size")
    implied = "tensor" if size is None else "channel" if size == -1 else "group"
    return arguments.get("strategy") or implied


def _alike(weights: dict[str, Any], activations: dict[str, Any]) -> bool:
    """Whether activations are symmetric numbers of the weights' kind."""
    kinds = [(arguments.get("type", "int"), arguments.get("num_bits", 8)) for arguments in (weights, activations)]
    return kinds[0] == kinds[1] and activations.get("symmetric", True)


def _described(name: str, kind: str, group: dict[str, Any]) -> str:
    def said(arguments: dict[str, Any] | None) -> str:
        if arguments is None:
            return "as they are"
        how = "dynamic" if arguments.get("dynamic") else "static"
        even = "symmetric" if arguments.get("symmetric", True) else "asymmetric"
        return f"{arguments.get('type', 'int')}{arguments.get('num_bits')} by {_strategy(arguments)}, {how}, {even}"

    weights, activations = said(group["weights"]), said(group.get("input_activations"))
    results = "; results quantised" if group.get("output_activations") else ""
    return f"{name} of format {kind or 'unknown'} (weights {weights}; activations {activations}{results})"
