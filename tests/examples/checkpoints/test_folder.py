"""Reading checkpoints: files and tensors that are not there, or are not what they should be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")

from checkpoints.folder import Checkpoint
from checkpoints.linear import Linear
from checkpoints.values import CheckpointError
from models.families import config_of
from random_checkpoint import write_checkpoint
from tests.examples.random_models import Tensors, quantised, tiny


def refused(folder: Path, found: Mapping[str, object], tensors: Tensors) -> str:
    write_checkpoint(folder, found, tensors)
    with pytest.raises(CheckpointError) as caught:
        config_of(Checkpoint(folder))
    return str(caught.value).removeprefix(f"{folder}: ")


def test_tensors_that_are_missing_or_misshapen_are_all_named(tmp_path: Path):
    found, tensors = tiny(num_hidden_layers=1)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]
    assert refused(tmp_path, found, tensors) == (
        "tensor 'model.norm.weight' is [127], and should be [128]; "
        "there is no tensor 'model.layers.0.mlp.up_proj.weight'"
    )
    found, stored, _ = quantised("gptq")
    name = "model.layers.0.self_attn.k_proj.qzeros"
    stored[name] = stored[name][:1]
    assert refused(tmp_path, found, stored) == f"tensor '{name}' is [1, 16], and should be [2, 16]"


def test_files_that_are_missing_or_broken(tmp_path: Path):
    def fault() -> str:
        with pytest.raises(CheckpointError) as caught:
            Checkpoint(tmp_path)
        return str(caught.value)

    assert "config.json: No such file" in fault()
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1))
    weights = tmp_path / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    assert "model.safetensors: " in fault()
    weights.unlink()
    assert "there is no .safetensors file" in fault()
    index = {"weight_map": {"model.norm.weight": "part-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "part-2.safetensors: " in fault()
    (tmp_path / "config.json").write_text("{")
    assert "config.json: no JSON: " in fault()


def test_weights_of_4_bits_that_are_not_as_the_config_says(tmp_path: Path):
    """An order that is none; zeros of 8 that are stored as they are, where they should be less one."""
    found, stored, _ = quantised("gptq", act_order=True)
    found["quantization_config"] |= {"sym": True}
    order, zeros = (f"model.layers.0.{name}" for name in ("self_attn.q_proj", "mlp.down_proj"))
    stored[f"{order}.g_idx"] = np.where(stored[f"{order}.g_idx"] == 1, 0, 1)[:100].astype(np.int32)
    stored[f"{order}.qzeros"] = np.full_like(stored[f"{order}.qzeros"], 0x77777777)
    stored[f"{zeros}.qzeros"] = np.full_like(stored[f"{zeros}.qzeros"], 0x88888888 - 2**32)
    write_checkpoint(tmp_path, found, stored)

    def linear(name: str) -> Linear:
        return Checkpoint(tmp_path).linear(name, config_of(Checkpoint(tmp_path)).linears()[name])

    with pytest.raises(CheckpointError, match=f"{order}: g_idx"):
        linear(order)
    with pytest.raises(CheckpointError, match=f"{zeros}: "):
        linear(zeros)
    found["quantization_config"] |= {"checkpoint_format": "gptq_v2"}
    write_checkpoint(tmp_path, found, stored)
    assert (linear(zeros).weight.zeros == 8).all()
