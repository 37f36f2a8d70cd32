"""AWQ: weights of 4 bits in groups of inputs, in the layout `gemm`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aot_models.checkpoints.keys import Table, held, or_null, text, whole
from aot_models.checkpoints.linear import LinearShape, Wanted, Weight
from aot_models.checkpoints.patterns import NAMES, Listed
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
from aot_models.checkpoints.values import Values, said
from aot_models.quantise import PER_WORD, from_awq

_NUMBER = or_null(whole(0, 1 << 10))
KEYS: Table = {
    **TRAINING,
    "bits": _NUMBER,
    "w_bit": _NUMBER,
    "group_size": or_null(GROUP_SIZE),
    "q_group_size": or_null(GROUP_SIZE),
    "version": or_null(text(), "gemm"),
    "modules_to_not_convert": or_null(NAMES, []),
}


@dataclass(frozen=True)
class Awq:
    """AWQ's scheme. group_size: inputs that share a scale; -1: all."""

    group_size: int
    ops: tuple[str, ...] = ("linear_int4",)
    float8: bool = False

    def wanted(self, shape: LinearShape, ends: Collection[str]) -> dict[str, Wanted]:
        groups, words = check_groups(self.group_size, shape.inputs), check_words(shape.outputs, PER_WORD, "outputs")
        return {
            "qweight": Wanted(((shape.inputs, words),), ("int32",)),
            "qzeros": Wanted(((groups, words),), ("int32",)),
            "scales": Wanted(((groups, shape.outputs),)),
        }

    def weight(self, tensors: Tensors) -> Weight:
        return from_awq(tensors["qweight"], tensors["qzeros"], tensors["scales"])


def parse(stored: Values) -> Format:
    """Read a quantization_config. Raises `CheckpointError` if it is not supported."""
    stored = held(stored, KEYS)
    bits = stored.get("bits", stored.get("w_bit"))
    stored.demand(bits == 4, f"AWQ's weight of {bits} bits", ["4 bits"])
    layout = stored.get("version", "gemm").lower()
    stored.demand(layout == "gemm", f"AWQ's layout {said(layout)}", ["gemm"])
    size = stored.get("group_size", stored.get("q_group_size"))
    scheme = Awq(stored["group_size"] if size is None else size)
    left_out = Listed(stored, stored.get("modules_to_not_convert", []))

    def scheme_of(name: str) -> Scheme:
        return Plain() if name.endswith("lm_head") or name in left_out else scheme

    return scheme_of
