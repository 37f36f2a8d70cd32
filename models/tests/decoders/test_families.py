"""Configurations from config.json: published models, and refused keys and values."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.values import CheckpointError, Values
from aot_models.decoders.config import Config
from aot_models.decoders.families import FAMILIES, config_from, config_of
from aot_models.random_checkpoint import FAMILIES as SETTINGS
from aot_models.random_checkpoint import settings, write_checkpoint
from models.tests.decoders.published_configs import PUBLISHED

ROOT = Path(__file__).parents[3]
QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "sliding_window": 32768,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
"""The config of Qwen2.5-0.5B."""
GEMMA_2 = {
    "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0, "eos_token_id": 1, "head_dim": 128,
    "final_logit_softcapping": 30.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 4608, "rope_theta": 1e4,
    "hidden_activation": "gelu_pytorch_tanh", "intermediate_size": 36864, "max_position_embeddings": 8192,
    "num_attention_heads": 32, "num_hidden_layers": 46, "num_key_value_heads": 16, "query_pre_attn_scalar": 144,
    "rms_norm_eps": 1e-6, "sliding_window": 4096, "torch_dtype": "float32", "vocab_size": 256000,
}  # fmt: skip
"""The config of Gemma 2 27B."""
GEMMA_3 = {
    "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "torch_dtype": "bfloat16",
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024},
}  # fmt: skip
"""The config of Gemma 3 4B, which omits the other keys."""
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
    newer = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    text = {**GEMMA_3["text_config"], "rope_scaling": None, "rope_parameters": newer}
    assert config_from(Values({**GEMMA_3, "text_config": text})) == config


def test_phi_4():
    config = config_from(Values(PHI_4))
    shapes = {name: (shape.outputs, shape.inputs) for name, shape in config.linears().items()}
    assert shapes["model.layers.39.self_attn.qkv_proj"] == (7680, 5120)
    assert shapes["model.layers.0.mlp.gate_up_proj"] == (35840, 5120) and len(shapes) == 4 * 40 + 1


# What each key does


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_keys_of_published_files_are_known(name: str):
    assert config_from(Values(PUBLISHED[name])).layers >= 32


LT = ["sliding_attention", "full_attention"] * 2
SLIDING = {"use_sliding_window": True, "sliding_window": 6}


def read(family: str, drop: str = "", **changes: object) -> Config:
    found = settings("tiny", family, **{"num_hidden_layers": 4, **changes})
    return config_from(Values({key: value for key, value in found.items() if key != drop}), 64)


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    (
        ("qwen3_moe", SLIDING, [6] * 4),
        ("qwen3_moe", {**SLIDING, "max_window_layers": 2}, [6] * 4),
        ("qwen3_moe", {"sliding_window": 6}, [None] * 4),
        ("qwen2_moe", {**SLIDING, "max_window_layers": 2}, [6, None, None, None]),
        ("qwen2_moe", SLIDING, [6, None, 6, None]),
        ("qwen2_moe", {**SLIDING, "layer_types": LT[::-1]}, [None, 6, None, 6]),
        ("qwen2_moe", {"sliding_window": 0}, [None] * 4),
        ("qwen2", {**SLIDING, "max_window_layers": 2}, [None, None, 6, 6]),
        ("qwen2", {**SLIDING, "layer_types": LT}, [6, None, 6, None]),
        ("qwen3", {**SLIDING, "drop": "sliding_window", "max_window_layers": 3}, [None, None, None, 4096]),
        ("mistral", {"drop": "sliding_window"}, [4096] * 4),
        ("mistral", {"sliding_window": 6, "layer_types": LT}, [6, None, 6, None]),
        ("mistral", {"sliding_window": None}, [None] * 4),
        ("mixtral", {"sliding_window": 6, "layer_types": ["sliding_attention"] * 4}, [6] * 4),
        ("gemma2", {"drop": "sliding_window"}, [4096, None] * 2),
    ),
)
def test_windows(family: str, changes: dict, windows: list[int | None]):
    assert [layer.window for layer in read(family, **changes).attention] == windows


@pytest.mark.parametrize(
    ("family", "changes"),
    (
        ("mistral", {"sliding_window": 0}),
        ("mistral", {"sliding_window": -5}),
        ("mistral", {"sliding_window": None, "layer_types": LT}),
        ("mixtral", {"sliding_window": 6, "layer_types": LT}),
        ("llama", {"sliding_window": 6}),
        ("llama", {"layer_types": LT}),
        ("deepseek_v2", {"layer_types": LT}),
        ("qwen2", {"layer_types": LT, "sliding_window": 6}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 0, "max_window_layers": 2}),
        ("qwen3_moe", {**SLIDING, "layer_types": LT}),
        ("gemma2", {"sliding_window": None}),
        ("gemma3", {"sliding_window": 0}),
        ("gemma3", {"sliding_window_pattern": 0}),
    ),
)
def test_windows_that_are_refused(family: str, changes: dict):
    with pytest.raises(CheckpointError, match=r"window|layer_types|slide"):
        read(family, **changes)


def test_defaults_of_keys_that_are_not_there():
    """Defaults are those of the family, and families differ."""

    def base(config: Config) -> float:
        return round((1 / config.attention[0].rope.frequencies[1]) ** (config.head_dim / 2))

    assert base(read("mixtral", "rope_theta")) == 1_000_000
    assert base(read("mistral", "rope_theta")) == 10_000
    assert read("deepseek_v2", "n_shared_experts").experts.shared == 2
    assert read("deepseek_v2", n_shared_experts=None).experts.shared == 0
    assert [read(family, "head_dim").head_dim for family in ("llama", "qwen3", "qwen3_moe", "gemma2")] == [
        32, 128, 32, 256,
    ]  # fmt: skip
    heads = {"mistral": 8, "mixtral": 8, "qwen2": 32, "qwen3": 32, "qwen2_moe": 16, "qwen3_moe": 4, "llama": 32}
    found = {family: read(family, "num_key_value_heads", num_attention_heads=32).heads_kv for family in heads}
    assert found == heads
    assert read("qwen2_moe", qkv_bias=False).biases.queries_keys_values is False
    assert read("qwen3_moe", "num_experts", num_local_experts=32).experts.count == 32


@pytest.mark.parametrize("family", SETTINGS)
@pytest.mark.parametrize(
    "change",
    (
        {"is_causal": False}, {"attn_scale": 2.0}, {"no_rope_layers": [1, 0, 1, 0]}, {"embedding_multiplier": 2.0},
        {"use_qk_norm": True}, {"rope_interleaved": True}, {"use_bidirectional_attention": True},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "alpha": 3}}, {"model_type": "gpt2"},
        {"rope_scaling": {"rope_type": "linear", "factor": 0}}, {"rope_theta": -1}, {"rope_theta": 1.0},
        {"rms_norm_eps": float("nan")}, {"rms_norm_eps": "x"}, {"vocab_size": -1}, {"num_hidden_layers": 2**31},
        {"tie_word_embeddings": "false"}, {"num_attention_heads": ""}, {"eos_token_id": 0.5}, {"rope_scaling": True},
        {"max_position_embeddings": 10**400}, {"hidden_act": ["silu"]}, {"layer_types": 3}, {"dtype": {}},
    ),
)  # fmt: skip
def test_what_no_family_has_or_knows(family: str, change: dict):
    with pytest.raises(CheckpointError, match=rf"factor|alpha|{next(iter(change)).partition('_')[0]}"):
        read(family, **change)


@pytest.mark.parametrize(
    ("family", "change"),
    (
        ("llama", {"partial_rotary_factor": 0.5}),
        ("qwen3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}, "rope_scaling": None}),
        ("gemma3", {"partial_rotary_factor": 0.5}),
        ("deepseek_v2", {"mlp_bias": True}),
        ("deepseek_v2", {"rms_norm_eps": 1e-5}),
        ("deepseek_v2", {"drop": "q_lora_rank"}),
        ("mistral", {"attention_bias": True}),
        ("mixtral", {"num_experts_per_tok": 9}),
        ("mixtral", {"num_local_experts": 1 << 20}),
        ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 1}),
        ("qwen3_moe", {"num_local_experts": 4}),
        ("llama", {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "head_dim": 2}),
        ("llama", {"head_dim": 33}),
        ("gemma3", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
        ("phi3", {"partial_rotary_factor": 0.001}),
    ),
)
def test_what_a_family_has_not(family: str, change: dict):
    with pytest.raises(CheckpointError):
        read(family, **change)


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
