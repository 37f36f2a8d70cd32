"""GPTQ: weights of 4 or 8 bits in groups of inputs, whose order may be by activation (act-order)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aot_models.checkpoints.keys import Table, an_object, flag, held, listed, only, or_null, text, whole
from aot_models.checkpoints.linear import LinearShape, Wanted, Weight
from aot_models.checkpoints.patterns import Budget, Matching
from aot_models.checkpoints.scheme import (
    GROUP_SIZE,
    TRAINING,
    Format,
    Plain,
    Scheme,
    Tensors,
    check_groups,
    check_words,
)
from aot_models.checkpoints.values import CheckpointError, Values, said
from aot_models.quantise import from_gptq

KEYS: Table = {
    **TRAINING,
    "bits": whole(0, 1 << 10),
    "group_size": GROUP_SIZE,
    "sym": or_null(flag(), False),
    "checkpoint_format": or_null(text(), "gptq"),
    "dynamic": or_null(an_object()),
    "lm_head": or_null(flag(), False),
    "modules_in_block_to_quantize": or_null(listed(listed(text(), 64), 64)),
    "pack_dtype": only("int32", "torch.int32", None),
}


@dataclass(frozen=True)
class Gptq:
    """GPTQ's scheme. group_size: inputs that share a scale; -1: all. The other attributes are those of `from_gptq`."""

    bits: int
    group_size: int
    zeros_are_less_one: bool
    symmetric: bool
    float8: bool = False

    @property
    def ops(self) -> tuple[str, ...]:
        return (f"linear_int{self.bits}",)

    def wanted(self, shape: LinearShape, ends: Collection[str]) -> dict[str, Wanted]:
        groups, per_word = check_groups(self.group_size, shape.inputs), 32 // self.bits
        inputs, outputs = (check_words(getattr(shape, what), per_word, what) for what in ("inputs", "outputs"))
        order = {"g_idx": Wanted(((shape.inputs,),), ("int32",))} if "g_idx" in ends else {}
        return {
            "qweight": Wanted(((inputs, shape.outputs),), ("int32",)),
            "qzeros": Wanted(((groups, outputs),), ("int32",)),
            "scales": Wanted(((groups, shape.outputs),)),
            **order,
        }

    def weight(self, tensors: Tensors) -> Weight:
        codes, zeros, scales = (tensors[end] for end in ("qweight", "qzeros", "scales"))
        order = tensors.get("g_idx")
        return from_gptq(codes, zeros, scales, order, self.zeros_are_less_one, self.symmetric, self.bits)


def parse(stored: Values) -> Format:
    """Read a quantization_config. Raises `CheckpointError` if it is not supported."""
    stored = held(stored, KEYS)
    bits = stored["bits"]
    stored.demand(bits in (4, 8), f"a weight of {bits} bits", ["4 bits", "8 bits"])
    version = stored.get("checkpoint_format", "gptq")
    stored.demand(version in ("gptq", "gptq_v2", "gemm"), f"checkpoint_format {said(version)}", ("gptq", "gptq_v2"))
    scheme = Gptq(bits, stored["group_size"], version != "gptq_v2", stored.get("sym", False))
    left_out, ends = Matching(Budget(stored), _left_out(stored)), _ends(stored)
    head = stored.get("lm_head", False)

    def scheme_of(name: str) -> Scheme:
        is_one = head if name.endswith("lm_head") else not ends or name.endswith(ends)
        return scheme if is_one and name not in left_out else Plain()

    return scheme_of


def _left_out(stored: Values) -> list[str]:
    """GPTQModel's regular expressions of layers that are not quantised. Raises for settings of single layers."""
    patterns = list(stored.get("dynamic", {}))
    if others := [pattern for pattern in patterns if not pattern.startswith("-:")]:
        names = ", ".join(map(said, others))
        raise CheckpointError(
            f"{stored.path}: GPTQ's 'dynamic' with settings for {names} is not supported; "
            "supported: '-:' before layers that are not quantised"
        )
    return [pattern.removeprefix("-:") for pattern in patterns]


def _ends(stored: Values) -> tuple[str, ...]:
    return tuple(name for names in stored.get("modules_in_block_to_quantize", ()) for name in names)
