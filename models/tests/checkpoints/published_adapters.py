"""Adapters of random numbers in PEFT's format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.support.dtypes import FP32

Array = np.ndarray
CONFIG = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": None, "inference_mode": True,
    "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False, "use_rslora": False,
    "use_dora": False, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}, "init_lora_weights": True,
}  # fmt: skip
"""The keys of adapter_config.json, without target_modules."""


def adapter(
    rng: np.random.Generator, dense: Mapping[str, Array], targets: Iterable[str], **changes: object
) -> tuple[dict[str, object], dict[str, Array]]:
    """(adapter_config.json, tensors). dense: a model's tensors, of which those that end so have an adapter."""
    config = {**CONFIG, "target_modules": sorted(targets), **changes}
    rank, tensors = int(config["r"]), {}
    for name, array in dense.items():
        layer = name.removesuffix(".weight")
        if layer.endswith(tuple(targets)):
            outputs, inputs = array.shape
            down, up = (rng.standard_normal(shape) for shape in ((rank, inputs), (outputs, rank)))
            tensors[f"base_model.model.{layer}.lora_A.weight"] = (down * inputs**-0.5).astype(FP32)
            tensors[f"base_model.model.{layer}.lora_B.weight"] = (up * 0.3 * rank**-0.5).astype(FP32)
    return config, tensors


def write_adapter(folder: Path, config: Mapping[str, object], tensors: Mapping[str, Array]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def merged(dense: Mapping[str, Array], config: Mapping[str, object], tensors: Mapping[str, Array]) -> dict[str, Array]:
    """A model's tensors with what an adapter adds to them, in float64."""
    root = config["r"] ** 0.5 if config["use_rslora"] else config["r"]
    found = {name: array.astype(np.float64) for name, array in dense.items()}
    for name, down in tensors.items():
        if name.endswith("lora_A.weight"):
            up = tensors[name.replace("lora_A", "lora_B")].astype(np.float64)
            layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            found[f"{layer}.weight"] += config["lora_alpha"] / root * (up @ down.astype(np.float64))
    return found
