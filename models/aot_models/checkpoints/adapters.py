"""Low-rank adapters in PEFT's format: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from aot_models.checkpoints.keys import Key, Table, flag, harmless, held, number, one_or_listed, only, or_null, whole
from aot_models.checkpoints.linear import LinearShape, Wanted
from aot_models.checkpoints.patterns import NAMES
from aot_models.checkpoints.shards import faults_of, read_file
from aot_models.checkpoints.values import CheckpointError, Values, joined, said

Array = np.ndarray
PREFIX = "base_model.model."
"""The prefix of a layer's name in the names of tensors."""
LARGEST_RANK = 1024
_USED: Table = {
    "peft_type": replace(only("LORA"), allowed="'LORA'"),
    "r": replace(whole(most=LARGEST_RANK), words="rank {value}"),
    "lora_alpha": number(0, 1e6),
    "use_rslora": or_null(flag(), False),
    "target_modules": or_null(Key("texts", lambda value: isinstance(value, str) or NAMES.fits(value))),
    "layers_to_transform": or_null(one_or_listed(whole(0), 1 << 12)),
    "init_lora_weights": only(True, False, None, "gaussian", "eva", "orthogonal", "mica"),
    "bias": only("none"),
    "enable_lora": only(None),
    "fan_in_fan_out": only(False, None),
    "lora_bias": only(False, None),
    "modules_to_save": only(None, []),
    "rank_pattern": only({}, None),
    "alpha_pattern": only({}, None),
    "use_dora": only(False, None),
    "use_qalora": only(False, None),
    "use_bdlora": only(None, False),
    "layer_replication": only(None, []),
    "target_parameters": only(None, []),
    "trainable_token_indices": only(None, [], {}),
    "alora_invocation_tokens": only(None, []),
    "arrow_config": only(None, {}),
    "kasa_config": only(None, {}),
    "corda_config": only(None, {}),
    "loftq_config": only({}, None),
    "lora_ga_config": only(None, {}),
    "velora_config": only(None, {}),
    "monteclora_config": only(None, {}),
}
KEYS: Table = {
    **harmless(
        """
        task_type auto_mapping peft_version base_model_name_or_path revision inference_mode lora_dropout layers_pattern
        exclude_modules megatron_config megatron_core runtime_config qalora_group_size ensure_weight_tying
        eva_config merge_weights
        """
    ),
    **{
        name: replace(key, words="an adapter with {name} = {shown}") if key.words == Key.words else key
        for name, key in _USED.items()
    },
}
"""Keys of adapter_config.json. PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA are not among the values of
`init_lora_weights`: they change the model's own weights when an adapter is loaded."""


@dataclass(frozen=True)
class LowRank:
    """The update scale * (x downᵀ) upᵀ of a layer. down: [rank, inputs]; up: [outputs, rank]."""

    down: Array
    up: Array
    scale: float


class Adapter:
    """A folder of a published adapter. Tensors are read on demand.

    Attributes:
        rank: the rank of all layers.
        scale: the factor of the update: lora_alpha / rank, or lora_alpha / sqrt(rank) with rsLoRA.
        nbytes: the size of the tensors.

    Raises:
        CheckpointError: a file is missing or damaged, or the kind of adapter is not supported.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._values = values = held(Values.read(folder / "adapter_config.json"), KEYS)
        self.rank: int = values["r"]
        self.scale = values["lora_alpha"] / (self.rank**0.5 if values.get("use_rslora") else self.rank)
        self._stored = read_file(folder / "adapter_model.safetensors")
        self.nbytes = sum(stored.nbytes for stored in self._stored.values())

    def check(self, linears: Mapping[str, LinearShape]) -> None:
        """Compare the tensors with a model's linear layers.

        Raises:
            CheckpointError: tensors of other modules, missing ones, other shapes or dtypes. The error lists all.
        """
        wanted = dict(self._wanted(linears))
        others = sorted(set(self._stored) - set(wanted))
        faults = [f"tensor '{said(name)}' is for a layer that cannot have an adapter" for name in others]
        left_out = filter(self._leaves_out, wanted)
        faults += [f"tensor '{name}' is for a layer that the config leaves out" for name in left_out]
        faults += faults_of(wanted, self._stored)
        if not wanted:
            faults.append("there is no tensor for a layer of the model")
        if faults:
            raise CheckpointError(f"{self.folder}: {joined(faults)}")

    def of(self, name: str) -> LowRank | None:
        """The update of a linear layer; None if the adapter leaves it alone."""
        down, up = _names(name)
        if down not in self._stored:
            return None
        return LowRank(self._stored[down].array(), self._stored[up].array(), self.scale)

    def _leaves_out(self, tensor: str) -> bool:
        """True if target_modules or layers_to_transform exclude the tensor's layer: PEFT would not read it."""
        layer = tensor.removeprefix(PREFIX).rpartition(".lora_")[0]
        targets, numbers = self._values.get("target_modules"), self._values.get("layers_to_transform")
        if isinstance(targets, list) and not any(f".{layer}".endswith(f".{target}") for target in targets):
            return True
        if numbers is None:
            return False
        number = layer.partition(".layers.")[2].partition(".")[0]
        return number not in map(str, numbers if isinstance(numbers, list) else [numbers])

    def _wanted(self, linears: Mapping[str, LinearShape]) -> Iterator[tuple[str, Wanted]]:
        for name, shape in linears.items():
            down, up = _names(name)
            if down in self._stored or up in self._stored:
                yield down, Wanted(((self.rank, shape.inputs),))
                yield up, Wanted(((shape.outputs, self.rank),))


def _names(layer: str) -> tuple[str, str]:
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"
