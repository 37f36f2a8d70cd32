"""What a config.json may say: all else is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")

from checkpoints.folder import Checkpoint
from checkpoints.values import CheckpointError
from models.families import config_of
from random_checkpoint import write_checkpoint
from tests.examples.random_models import tiny


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
        (
            of_4_bits(quant_method="bitnet"),
            "quantisation bitnet is not supported; supported: gptq, awq, fp8, compressed",
        ),
        (of_4_bits(group_size=96), "model.layers.0.self_attn.q_proj: groups of 96 do not divide the 128 inputs"),
        (of_4_bits(quant_method=None), "there is no 'quant_method'"),
    ),
)
def test_models_of_another_kind(change: dict, message: str, tmp_path: Path):
    found, tensors = tiny(num_hidden_layers=1)
    write_checkpoint(tmp_path, {**found, **change}, tensors)
    with pytest.raises(CheckpointError) as caught:
        config_of(Checkpoint(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {message}")
