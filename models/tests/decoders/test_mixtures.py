"""Families with experts: their keys of config.json, and logits and tokens against a model in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from aot_models.checkpoints.values import CheckpointError, Values
from aot_models.decoders.families import config_from
from aot_models.random_checkpoint import settings, write_checkpoint
from aot_runtime import Bundle
from kernels.moe.quantised_reference import in_8_bits
from kernels.moe.reference import Experts, same_dtype_sum
from kernels.tolerance import assert_close
from models.tests.checkpoints.published import FORMATS
from models.tests.decoders.checking import check
from models.tests.decoders.reference import EXACT, logits
from models.tests.decoders.rounding import rounding
from models.tests.decoders.tiny_families import MIXTURES
from models.tests.random_models import generate, opened, prompts_of, quantised, tiny
from tests.support.dtypes import eight_bits

Array = np.ndarray


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_logits_of_prompts_and_steps(mixtures: Bundle, name: str, tmp_path: Path):
    check(mixtures, tmp_path, *tiny(**MIXTURES[name]), lengths=(3, 13), count=3)


SHARED = {"family": "qwen2_moe", "vocab_size": 320, "hidden_size": 128, "num_experts": 4, "num_experts_per_tok": 4,
          "moe_intermediate_size": 128, "shared_expert_intermediate_size": 256}  # fmt: skip
"""A token has all experts: no rounding changes who they are."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ("gptq of 4 bits", "fp8 of blocks", "fp8, dynamic", "int-quantized by token",
                                  "int-quantized, weights alone"))  # fmt: skip
def test_quantised_experts(mixtures: Bundle, name: str, tmp_path: Path):
    # Qwen2 has biases, which are not beside scales of blocks.
    blocks = "blocks" in name
    found, stored, dense = quantised(name, **SHARED | ({"family": "qwen3_moe"} if blocks else {}))
    write_checkpoint(tmp_path, found, stored)
    model, (prompt,) = opened(mixtures, tmp_path), prompts_of((5,))
    tokens, actual = generate(model, [prompt], 2)
    ops = rounding(mixtures, name, None)
    if FORMATS[name].activations:
        kind, block = eight_bits(mixtures, FORMATS[name].kind), 128 if blocks else None
        ops = replace(ops, experts=partial(_experts, seen=partial(in_8_bits, storage=kind, block=block)))
    read = [*prompt, *tokens[0, :-1].tolist()]
    exact, same = (logits(these, model.config, dense, read)[-2:] for these in (EXACT, ops))
    assert_close(actual[0], exact, same, 1e-3)


def _experts(
    x: Array, gate_up: Array, down: Array, weights: Array, chosen: Array, shared: Array | None,
    seen: Callable[[Array], Array],
) -> Array:  # fmt: skip
    matrices = Experts(gate_up.astype(np.float32), down.astype(np.float32), seen)
    return same_dtype_sum(x, matrices, weights, chosen, shared, "silu")


@pytest.mark.slow
def test_experts_in_act_order_are_refused(mixtures: Bundle, tmp_path: Path):
    write_checkpoint(tmp_path, *quantised("gptq of 4 bits, act-order, version 2", **SHARED)[:2])
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
