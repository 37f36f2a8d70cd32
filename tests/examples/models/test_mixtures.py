"""Families with experts: what config.json says of them, and logits and tokens against a model in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")

from aot_runtime import Bundle
from checkpoints.values import CheckpointError, Values
from models.families import config_from
from random_checkpoint import settings, write_checkpoint
from tests.examples.models.checking import check
from tests.examples.models.tiny_families import EXPERTS, MIXTURES
from tests.examples.random_models import Tensors, opened, tiny


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_logits_of_prompts_and_steps(mixtures: Bundle, name: str, tmp_path: Path):
    check(mixtures, tmp_path, *tiny(**MIXTURES[name]), lengths=(3, 13), count=3)


PACKED = {**EXPERTS, "family": "qwen2_moe", "num_hidden_layers": 1, "intermediate_size": 64,
          "moe_intermediate_size": 64, "shared_expert_intermediate_size": 128}  # fmt: skip


def of_4_bits(size: int, act_order: bool = False) -> tuple[dict[str, object], Tensors, Tensors]:
    """(config, stored tensors, what they stand for), as GPTQ publishes them."""
    found, tensors = tiny(**PACKED)
    stored, dense, rng = dict(tensors), dict(tensors), np.random.default_rng(0)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        outputs, inputs = stored.pop(name).shape
        group_of = np.arange(inputs) // size
        group_of = (rng.permutation(group_of) if act_order else group_of).astype(np.int32)
        codes, zeros = (rng.integers(1, 15, (rows, outputs)) for rows in (inputs, inputs // size))
        scales = (rng.uniform(0.5, 1.5, zeros.shape) * 0.2 * inputs**-0.5).astype(np.float16)
        dense[name] = ((codes - zeros[group_of]) * scales.astype(np.float64)[group_of]).T
        words = {"qweight": _words(codes.T).T, "qzeros": _words(zeros - 1), "scales": scales, "g_idx": group_of}
        stored |= {name.replace("weight", end): array for end, array in words.items()}
    settings_ = {"quant_method": "gptq", "bits": 4, "group_size": size, "checkpoint_format": "gptq"}
    return {**found, "quantization_config": settings_}, stored, dense


def _words(codes: np.ndarray) -> np.ndarray:
    """Eight in an int32, the first lowest."""
    shifted = codes.reshape(len(codes), -1, 8).astype(np.uint32) << np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(shifted, -1).view(np.int32)


@pytest.mark.slow
def test_experts_of_4_bits(mixtures: Bundle, tmp_path: Path):
    check(mixtures, tmp_path, *of_4_bits(32), lengths=(1, 5), count=2)


@pytest.mark.slow
def test_experts_in_act_order_are_refused(mixtures: Bundle, tmp_path: Path):
    write_checkpoint(tmp_path, *of_4_bits(32, act_order=True)[:2])
    with pytest.raises(CheckpointError, match=r"model\.layers\.0.*act-order"):
        opened(mixtures, tmp_path)


def test_deepseek_v2_lite():
    yarn = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096}  # fmt: skip
    found = settings(
        "tiny", "deepseek_v2", hidden_size=2048, num_attention_heads=16, num_key_value_heads=16, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, num_experts_per_tok=6,
        moe_intermediate_size=1408, rope_scaling=yarn, max_position_embeddings=163840,
    )  # fmt: skip
    config = config_from(Values(found))
    assert (config.heads, config.heads_kv, config.head_dim, config.context) == (16, 1, 576, 163840)
    assert config.score_scale == pytest.approx(192**-0.5 * 1.2608**2, rel=1e-4)
    assert config.attention[0].rope.scale == 1 and len(config.attention[0].rope.frequencies) == 32
    shapes = config.linears()
    assert shapes["model.layers.0.self_attn.kv_b_proj"].outputs == 16 * 256
    assert shapes["model.layers.1.self_attn.o_proj"].inputs == 16 * 128
    assert "model.layers.0.mlp.gate_proj" in shapes and "model.layers.1.mlp.shared_experts.up_proj" in shapes
    changes = {"q_lora_rank": 1536, "topk_method": "noaux_tc", "norm_topk_prob": True, "scoring_func": "sigmoid"}
    for key, value in changes.items():
        with pytest.raises(CheckpointError, match=key):
            config_from(Values({**found, key: value}))


def test_published_models():
    """Figures of Mixtral 8x7B, Qwen1.5-MoE-A2.7B and Qwen3-30B-A3B."""
    experts = config_from(Values(settings("tiny", "mixtral", intermediate_size=14336))).experts
    assert experts and (experts.count, experts.chosen, experts.intermediate, experts.renormalise) == (8, 2, 14336, True)
    found = settings("tiny", "qwen2_moe", moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
                     num_experts=60)  # fmt: skip
    experts = config_from(Values(found)).experts
    assert experts and (experts.count, experts.shared, experts.renormalise) == (60, 4, False)
    found = settings("tiny", "qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    config = config_from(Values(found))
    assert [config.experts_of(layer) is None for layer in range(6)] == [True, False, True, True, True, False]
    assert "model.layers.1.mlp.experts.15.down_proj" in config.linears() and "lm_head" in config.linears()
    assert config.tensors()["model.layers.5.mlp.gate.weight"] == (16, 128)
    with pytest.raises(CheckpointError, match="shared_expert_intermediate_size 100"):
        config_from(Values(settings("tiny", "qwen2_moe", shared_expert_intermediate_size=100)))
