"""What families make of a config.json: those of published models, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")

from checkpoints.folder import Checkpoint
from checkpoints.values import CheckpointError, Values
from models.families import FAMILIES, config_from, config_of
from random_checkpoint import settings, write_checkpoint

ROOT = Path(__file__).parents[3]
QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "sliding_window": 32768,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
"""Of Qwen2.5-0.5B."""
GEMMA_2 = {
    "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0, "eos_token_id": 1, "head_dim": 128,
    "final_logit_softcapping": 30.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 4608, "rope_theta": 1e4,
    "hidden_activation": "gelu_pytorch_tanh", "intermediate_size": 36864, "max_position_embeddings": 8192,
    "num_attention_heads": 32, "num_hidden_layers": 46, "num_key_value_heads": 16, "query_pre_attn_scalar": 144,
    "rms_norm_eps": 1e-6, "sliding_window": 4096, "torch_dtype": "float32", "vocab_size": 256000,
}  # fmt: skip
"""Of Gemma 2 27B."""
GEMMA_3 = {
    "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "torch_dtype": "bfloat16",
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024},
}  # fmt: skip
"""Of Gemma 3 4B: the other keys are left out."""
PHI_4 = {
    "architectures": ["Phi3ForCausalLM"], "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17920,
    "max_position_embeddings": 16384, "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
    "original_max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 250000,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 100352,
}  # fmt: skip


def test_the_page_lists_the_families():
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+For\w+)`", page[page.index("### Families") : page.index("## How it works")])
    assert listed == list(FAMILIES)


def test_qwen_2():
    config = config_from(Values(QWEN))
    assert (config.head_dim, config.tied, {layer.window for layer in config.attention}) == (64, True, {None})
    biased = {name.rpartition(".")[2] for name, shape in config.linears().items() if shape.biased}
    assert biased == {"q_proj", "k_proj", "v_proj"}
    config = config_from(Values({**QWEN, "use_sliding_window": True}))
    assert [layer.window for layer in config.attention] == [None] * 21 + [32768] * 3
    longer = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}
    assert config_from(Values({**QWEN, **longer})).context == 131072


def test_gemma_2():
    config = config_from(Values(GEMMA_2), 1 << 20)
    assert [layer.window for layer in config.attention] == [4096, None] * 23
    assert (config.score_scale, config.embedding_scale, config.context) == (1 / 12, 4608**0.5, 8192)
    assert (config.attention_softcap, config.logits_softcap, config.zero_centred) == (50, 30, True)
    assert config.tied and config.activation == "gelu_tanh"
    assert sum(name.endswith("norm.weight") for name in config.tensors()) == 4 * 46 + 1


def test_gemma_3():
    config = config_from(Values(GEMMA_3))
    assert [layer.window for layer in config.attention] == ([1024] * 5 + [None]) * 5 + [1024] * 4
    slowest = [layer.rope.frequencies[-1] for layer in config.attention[4:6]]
    np.testing.assert_allclose(slowest, [1e4 ** (-254 / 256), 1e6 ** (-254 / 256) / 8])
    assert (config.context, config.end, config.logits_softcap) == (131072, {1, 106}, 0)
    assert config.tensors()["language_model.model.layers.33.self_attn.k_norm.weight"] == (256,)
    assert config.linears()["language_model.model.layers.0.self_attn.q_proj"].outputs == 2048


def test_phi_4():
    config = config_from(Values(PHI_4))
    shapes = {name: (shape.outputs, shape.inputs) for name, shape in config.linears().items()}
    assert shapes["model.layers.39.self_attn.qkv_proj"] == (7680, 5120)
    assert shapes["model.layers.0.mlp.gate_up_proj"] == (35840, 5120) and len(shapes) == 4 * 40 + 1


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
        ({"rope_scaling": {"rope_type": "axial", "factor": 4.0}}, "rope_type axial is not supported"),
        ({"family": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
        ({"family": "gemma2", "layer_types": ["full_attention"] * 3}, "layer_types has 3 entries for 2 layers"),
        ({"family": "gemma3", "layer_types": ["linear"] * 2}, "layer type linear is not supported; supported: full_"),
        ({"family": "gemma3", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
        ({"family": "gemma2", "hidden_activation": "relu"}, "hidden_act relu is not supported; supported: gelu_pyto"),
        (
            {"family": "phi3", "rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1]}},
            "short_factor has 1 numbers, not one for 32",
        ),
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
    family = change.get("family", "llama")
    write_checkpoint(tmp_path, {**settings("tiny", family), **change}, {})
    with pytest.raises(CheckpointError) as caught:
        config_of(Checkpoint(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {message}")
