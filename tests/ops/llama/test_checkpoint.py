"""Reading checkpoints: what is computed from config.json, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")

from llama_checkpoint import Checkpoint, CheckpointError, Config
from llama_random import settings, write_checkpoint

from tests.ops.llama.checkpoints import LLAMA3, Tensors, quantised, tiny

PLAIN = [1, 0.19392276, 0.037606031, 0.0072926651, 0.0014142134, 0.00027424819, 5.3182957e-05, 1.0313385e-05]
FREQUENCIES = {
    "plain": (None, PLAIN),
    "linear": ({"type": "linear", "factor": 4.0}, [frequency / 4 for frequency in PLAIN]),
    "llama3": (  # three as they were, one between, the others an eighth
        {**LLAMA3, "original_max_position_embeddings": 8192},
        [*PLAIN[:4], 0.00052484602, *(frequency / 8 for frequency in PLAIN[5:])],
    ),
}
"""Rotary scalings, and the frequencies that transformers has for them: heads of 16, theta 500000."""


@pytest.mark.parametrize("name", FREQUENCIES)
def test_frequencies_of_the_rotary_embedding(name: str):
    scaling, wanted = FREQUENCIES[name]
    found = Config.parse(settings("tiny", head_dim=16, rope_scaling=scaling), Path("config.json")).frequencies
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def refused(folder: Path, found: Mapping[str, object], tensors: Tensors) -> str:
    write_checkpoint(folder, found, tensors)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(folder)
    return str(caught.value).removeprefix(f"{folder}: ").removeprefix(f"{folder / 'config.json'}: ")


def test_tensors_that_are_missing_or_misshapen_are_all_named(tmp_path: Path):
    found, tensors = tiny(num_hidden_layers=1)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]
    assert refused(tmp_path, found, tensors) == (
        "there is no tensor 'model.layers.0.mlp.up_proj.weight'; "
        "tensor 'model.norm.weight' is [127], and should be [128]"
    )
    found, stored, _ = quantised("gptq")
    name = "model.layers.0.self_attn.k_proj.qzeros"
    stored[name] = stored[name][:1]
    assert refused(tmp_path, found, stored) == f"tensor '{name}' is [1, 16], and should be [2, 16]"


def of_4_bits(**changes: object) -> dict[str, object]:
    return {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, **changes}}


@pytest.mark.parametrize(
    "change, message",
    (
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel is not supported; supported: LlamaFor"),
        ({"architectures": None, "model_type": "bert"}, "architecture bert is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
        ({"hidden_size": None}, "there is no 'hidden_size'"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 key heads evenly"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type yarn is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "there is no 'original_max_position_embeddings'"),
        ({"torch_dtype": "float64"}, "dtype float64 is not supported; supported: float16, bfloat16, float32"),
        (of_4_bits(bits=3), "a weight of 3 bits is not"),
        (of_4_bits(quant_method="fp8"), "quantisation fp8 is not supported"),
        (of_4_bits(group_size=96), "groups of 96 do not divide the 128 inputs of self_attn.q_proj"),
        (of_4_bits(quant_method=None), "there is no 'quant_method'"),
    ),
)
def test_models_of_another_kind(change: dict, message: str, tmp_path: Path):
    found, tensors = tiny(num_hidden_layers=1)
    assert refused(tmp_path, {**found, **change}, tensors).startswith(message)


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
    with pytest.raises(CheckpointError, match=f"{order}: g_idx"):
        Checkpoint(tmp_path).linear(order)
    with pytest.raises(CheckpointError, match=f"{zeros}: "):
        Checkpoint(tmp_path).linear(zeros)
    found["quantization_config"] |= {"checkpoint_format": "gptq_v2"}
    write_checkpoint(tmp_path, found, stored)
    assert (Checkpoint(tmp_path).linear(zeros).weight.zeros == 8).all()
