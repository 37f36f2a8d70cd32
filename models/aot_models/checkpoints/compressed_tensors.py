"""compressed-tensors, as llm-compressor writes it: each group of layers has a scheme for weights and activations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_models.checkpoints.eight_bits import EightBits
from aot_models.checkpoints.keys import Table, an_object, flag, harmless, held, listed, only, or_null, text, whole
from aot_models.checkpoints.linear import BLOCK, LinearShape, Wanted, Weight
from aot_models.checkpoints.patterns import NAMES, Budget, Matching
from aot_models.checkpoints.scheme import GROUP_SIZE, Format, Plain, Scheme, Tensors, check_groups, check_words
from aot_models.checkpoints.values import CheckpointError, Values, said
from aot_models.quantise import Packed, from_compressed_tensors

SUPPORTED = (
    "pack-quantized: weights of 4 or 8 bits, activations as they are",
    "int-quantized: int8 by tensor or channel, activations as they are, or int8 by token or static",
    "float-quantized: float8 by tensor or channel with activations by token or static, or in blocks of 128 x 128",
)
FLOAT8 = "float8_e4m3fn"
KEYS: Table = {
    **harmless("quant_method quantization_status global_compression_ratio version kv_cache_scheme"),
    "config_groups": an_object(),
    "format": or_null(text(), ""),
    "ignore": or_null(NAMES, []),
    "sparsity_config": or_null(an_object()),
    "transform_config": or_null(an_object()),
}
GROUP: Table = {
    "targets": or_null(NAMES, []),
    "format": or_null(text()),
    "weights": an_object(),
    "input_activations": or_null(an_object()),
    "output_activations": or_null(an_object()),
}
ARGUMENTS: Table = {
    **harmless("observer observer_kwargs actorder scale_dtype zp_dtype"),
    "num_bits": or_null(whole(1, 64), 8),
    "type": or_null(text(), "int"),
    "strategy": or_null(text()),
    "group_size": or_null(GROUP_SIZE),
    "block_structure": or_null(listed(whole(), 2)),
    "symmetric": flag(True),
    "dynamic": only(False, True, "local"),
}
"""Keys of the arguments of weights and of activations."""


@dataclass(frozen=True)
class PackQuantized:
    """Codes packed in int32. group_size: inputs that share a scale; -1: all."""

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
    """Unpacked 8-bit codes for 16-bit activations, with scales per output or per tensor."""

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
    """Read a quantization_config. Raises `CheckpointError` if it is not supported."""
    stored = held(stored, KEYS)
    _refuse_others(stored)
    groups = [(name, _group(stored, group)) for name, group in stored["config_groups"].items()]
    schemes = [(group["targets"] or ["Linear"], _scheme(stored, name, group.found)) for name, group in groups]
    by_target = {target: scheme for targets, scheme in schemes for target in targets}
    # Names before expressions before classes; a model's linear layers are all of the class Linear.
    ordered = sorted(by_target, key=lambda target: (target == "Linear", target.startswith("re:"), target))
    budget = Budget(stored)
    targets = [(by_target[target], Targets(budget, [target])) for target in ordered]
    left_out = Targets(budget, [target for target in stored["ignore"] if target != "Linear"])

    def scheme_of(name: str) -> Scheme:
        budget.spend(len(targets))
        if name in left_out:
            return Plain()
        return next((scheme for scheme, target in targets if name in target), Plain())

    return scheme_of


class Targets:
    """A set of linear layers: by names, by regular expressions, or all of them."""

    def __init__(self, budget: Budget, targets: list[str]):
        self._all, self._names = "Linear" in targets, frozenset(targets)
        self._expressions = Matching(budget, [target[3:] for target in targets if target.startswith("re:")])

    def __contains__(self, name: str) -> bool:
        return self._all or name in self._names or name in self._expressions


def _refuse_others(stored: Values) -> None:
    sparsity = stored.get("sparsity_config", {}).get("format", "dense")
    stored.demand(sparsity == "dense", f"compressed-tensors' sparsity {said(sparsity)}", ["dense"])
    transforms = stored.get("transform_config", {}).get("config_groups")
    names = ", ".join(map(said, transforms)) if isinstance(transforms, dict) else said(transforms)
    stored.demand(not transforms, f"compressed-tensors' transform {names}", ["none"])


def _group(stored: Values, group: Any) -> Values:
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise CheckpointError(f"{stored.path}: a group of 'config_groups' has no 'weights'")
    found = held(stored.part(group), GROUP)
    parts = {
        name: held(stored.part(found[name]), ARGUMENTS).found
        for name in ("weights", "input_activations", "output_activations")
        if found.get(name) is not None
    }
    return found.but(**parts)


def _scheme(stored: Values, name: str, group: Mapping[str, Any]) -> Scheme:
    kind = group.get("format") or stored.get("format", "")
    weights, activations = group["weights"], group.get("input_activations")
    found = None if group.get("output_activations") else _known(kind, weights, activations)
    stored.demand(found is not None, f"compressed-tensors' {_described(name, kind, group)}", SUPPORTED)
    assert found is not None
    return found


def _known(kind: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> Scheme | None:
    bits, numbers, symmetric = weights["num_bits"], weights["type"], weights["symmetric"]
    strategy = _strategy(weights)
    size = weights["group_size"] if strategy == "group" else -1
    if kind == "pack-quantized" and (numbers, activations) == ("int", None) and bits in (4, 8):
        return PackQuantized(bits, size, symmetric) if strategy in ("group", "channel") and size else None
    if kind not in ("int-quantized", "float-quantized", "naive-quantized") or bits != 8:
        return None
    if numbers == "int" and activations is None:
        return Int8Weights(symmetric) if strategy in ("tensor", "channel") else None
    if not symmetric or activations is None or not _alike(weights, activations):
        return None
    dtype, static = FLOAT8 if numbers == "float" else "int8", not activations["dynamic"]
    if strategy == "block":
        fits = weights["block_structure"] == [BLOCK, BLOCK] and activations["group_size"] == BLOCK
        return EightBits(dtype, "block", False) if fits and not static and numbers == "float" else None
    by_activations = ("tensor",) if static else ("tensor", "token")
    if strategy not in ("tensor", "channel") or _strategy(activations) not in by_activations:
        return None
    return EightBits(dtype, "tensor" if strategy == "tensor" else "channel", static)


def _strategy(arguments: dict[str, Any]) -> str:
    size = arguments["group_size"]
    implied = "tensor" if size is None else "channel" if size == -1 else "group"
    return arguments["strategy"] or implied


def _alike(weights: dict[str, Any], activations: dict[str, Any]) -> bool:
    kinds = [(arguments["type"], arguments["num_bits"]) for arguments in (weights, activations)]
    return kinds[0] == kinds[1] and activations["symmetric"]


def _described(name: str, kind: str, group: Mapping[str, Any]) -> str:
    weights, activations = _numbers(group["weights"]), _numbers(group.get("input_activations"))
    results = "; results quantised" if group.get("output_activations") else ""
    return f"{said(name)} of format {said(kind) or 'unknown'} (weights {weights}; activations {activations}{results})"


def _numbers(arguments: dict[str, Any] | None) -> str:
    if arguments is None:
        return "as they are"
    how = "dynamic" if arguments["dynamic"] else "static"
    even = "symmetric" if arguments["symmetric"] else "asymmetric"
    return f"{said(arguments['type'])}{arguments['num_bits']} by {said(_strategy(arguments))}, {how}, {even}"
