"""Low-rank adapters in PEFT's format: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints.linear import LinearShape, Wanted
from checkpoints.shards import faults_of, read_file
from checkpoints.values import CheckpointError, Values

Array = np.ndarray
PREFIX = "base_model.model."
"""Of the tensors' names, before the layer's."""
LARGEST_RANK = 1024
ALLOWED: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "use_dora": (False,), "modules_to_save": (None, []), "bias": ("none",),
    "lora_bias": (False,), "fan_in_fan_out": (False,), "rank_pattern": ({},), "alpha_pattern": ({},),
    "layer_replication": (None,), "target_parameters": (None, []), "trainable_token_indices": (None,),
    "use_qalora": (False,), "alora_invocation_tokens": (None,),
}  # fmt: skip
"""Keys of the config, and what they may say; the first is what they say where they are not there."""


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to a layer: scale * (x downᵀ) upᵀ. down: [rank, inputs]; up: [outputs, rank]."""

    down: Array
    up: Array
    scale: float


class Adapter:
    """A folder of a published adapter. Tensors are read when they are asked for.

    Raises `CheckpointError`: a file that is not there or is broken, an adapter of a kind that is not supported.

    Attributes:
        rank: of all its layers.
        scale: factor of what it adds: lora_alpha / rank, or / its root.
        nbytes: of its tensors.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        values = Values.read(folder / "adapter_config.json")
        for key, allowed in ALLOWED.items():
            found = values.get(key, allowed[0])
            values.demand(found in allowed, f"an adapter with {key} = {found!r}", [repr(allowed[0])])
        self.rank = int(values["r"])
        values.demand(1 <= self.rank <= LARGEST_RANK, f"rank {self.rank}", [f"1 to {LARGEST_RANK}"])
        self.scale = values["lora_alpha"] / (self.rank**0.5 if values.get("use_rslora") else self.rank)
        self._stored = read_file(folder / "adapter_model.safetensors")
        self.nbytes = sum(stored.nbytes for stored in self._stored.values())

    def check(self, linears: Mapping[str, LinearShape]) -> None:
        """Raises `CheckpointError`, with all that is at fault: tensors for modules that are no linear layer of the
        model, that are missing beside others, or of another shape or dtype."""
        wanted = dict(self._wanted(linears))
        others = sorted(set(self._stored) - set(wanted))
        faults = [f"tensor '{name}' is for no layer that may have an adapter" for name in others]
        faults += faults_of(wanted, self._stored)
        if not wanted:
            faults.append("there is no tensor for a layer of the model")
        if faults:
            raise CheckpointError(f"{self.folder}: " + "; ".join(faults))

    def of(self, name: str) -> LowRank | None:
        """What the adapter adds to a linear layer; None: nothing."""
        down, up = _names(name)
        if down not in self._stored:
            return None
        return LowRank(self._stored[down].array(), self._stored[up].array(), self.scale)

    def _wanted(self, linears: Mapping[str, LinearShape]) -> Iterator[tuple[str, Wanted]]:
        for name, shape in linears.items():
            down, up = _names(name)
            if down in self._stored or up in self._stored:
                yield down, Wanted(((self.rank, shape.inputs),))
                yield up, Wanted(((shape.outputs, self.rank),))


def _names(layer: str) -> tuple[str, str]:
    """Of the two matrices' tensors."""
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"
