"""Compare rotary tables, logits and tokens of the tiny checkpoints with transformers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

import torch
import transformers

from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.values import CheckpointError, Values
from aot_models.decoders.families import FAMILIES, config_from, config_of
from aot_models.random_checkpoint import settings, write_checkpoint
from aot_runtime import Bundle
from kernels.tolerance import assert_close
from models.tests.decoders.reference import EXACT, logits
from models.tests.decoders.tiny_families import LLAMA3, LONGROPE, MIXTURES, SMALL, TINY, YARN
from models.tests.random_models import generate, opened, prompts_of, tiny

LLAMAS: dict[str, dict[str, Any]] = {
    "llama": {**SMALL, "rope_scaling": LLAMA3, "attention_bias": True, "mlp_bias": True},
    "mistral": {"family": "mistral", **SMALL, "sliding_window": 7},
}
MODELS = LLAMAS | TINY | MIXTURES
CONTEXTS = {"phi3, long": 40}
"""Most tokens of a sequence, where that is not the model's: shorter than the context of the training."""


# Rotary embeddings

OLDER = {**LONGROPE, "rope_type": "su", "original_max_position_embeddings": 64}
ROPES: dict[str, tuple[dict[str, Any], int]] = {
    "default": ({}, 64),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 64),
    "llama3": ({"rope_scaling": LLAMA3}, 300),
    "dynamic, short": ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 512),
    "dynamic, long": ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 1500),
    "yarn": ({"rope_scaling": YARN}, 300),
    "yarn, given factor": ({"rope_scaling": {**YARN, "attention_factor": 0.75, "beta_fast": 8, "beta_slow": 2}}, 300),
    "yarn, mscale": ({"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False}}, 300),
    "longrope, short": ({"family": "phi3", "rope_scaling": LONGROPE, "partial_rotary_factor": 0.5}, 64),
    "longrope, long": ({"family": "phi3", "rope_scaling": LONGROPE, "partial_rotary_factor": 0.5}, 100),
    "longrope, its older name": ({"family": "phi3", "rope_scaling": OLDER, "partial_rotary_factor": 0.5}, 100),
    "partial": ({"family": "phi3", "partial_rotary_factor": 0.5, "rope_scaling": None}, 64),
}  # fmt: skip
"""A config.json, and the tokens of a sequence."""


@pytest.mark.parametrize("name", ROPES)
def test_rotary_tables(name: str):
    changes, count = ROPES[name]
    found = settings("tiny", **{**SMALL, "hidden_size": 256, "original_max_position_embeddings": 64, **changes})
    if found["model_type"] != "phi3":
        del found["original_max_position_embeddings"]
    rope = config_from(Values(found), count).attention[0].rope
    angles = np.arange(count)[:, None] * np.array(rope.frequencies)
    for ours, theirs in zip((np.cos(angles), np.sin(angles)), tables_of_transformers(found, count), strict=True):
        assert np.abs(ours * rope.scale - theirs[:, : len(rope.frequencies)]).max() < 1e-4 * rope.scale


def tables_of_transformers(found: dict[str, Any], count: int) -> list[np.ndarray]:
    """cos, sin, [count, head_dim], of the model's own module."""
    config = transformers.AutoConfig.for_model(**found)
    with torch.device("meta"):
        layer_type = type(transformers.AutoModelForCausalLM.from_config(config).model.rotary_emb)
    positions = torch.arange(count)[None]
    return [table[0].numpy() for table in layer_type(config)(torch.zeros(1, dtype=torch.float32), positions)]


# Whole models


def in_transformers(folder: Path, dtype: Any) -> Any:
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **plain).eval()


def logits_of(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].double().numpy()


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_is_the_model(name: str, tmp_path: Path):
    """Compare in float64; transformers computes norms and rotary tables in float32 even then."""
    found, tensors = tiny(**MODELS[name])
    write_checkpoint(tmp_path, found, tensors)
    config = config_from(Values(found), CONTEXTS.get(name))
    (prompt,) = prompts_of([CONTEXTS.get(name, 100)], config.vocabulary)
    ours, theirs = logits(EXACT, config, tensors, prompt), logits_of(in_transformers(tmp_path, torch.float64), prompt)
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


# Keys of config.json

CONFIGS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "mixtral": "Mixtral",
           "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe", "deepseek_v2": "DeepseekV2", "phi3": "Phi3",
           "gemma2": "Gemma2", "gemma3": "Gemma3Text"}  # fmt: skip
TYPES = ["sliding_attention", "full_attention"] * 2
SLIDING = {"use_sliding_window": True, "sliding_window": 5}
SMALLEST = {
    **SMALL, "hidden_size": 64, "head_dim": 16, "num_hidden_layers": 4, "num_attention_heads": 4,
    "torch_dtype": "float32", "max_position_embeddings": 64, "sliding_window": 6, "query_pre_attn_scalar": 16,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "num_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2, "original_max_position_embeddings": 32,
}  # fmt: skip
CHANGES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"), SLIDING),
    (("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"), {**SLIDING, "max_window_layers": 2}),
    (
        ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mistral", "gemma2", "gemma3", "llama"),
        {**SLIDING, "layer_types": TYPES},
    ),
    (("qwen2", "qwen3", "mistral", "gemma2", "gemma3"), {"layer_types": TYPES, "sliding_window": 5}),
    (tuple(CONFIGS), {"is_causal": False}),
    (tuple(CONFIGS), {"partial_rotary_factor": 0.5}),
    (tuple(CONFIGS), {"rms_norm_eps": 0.1}),
    (tuple(CONFIGS), {"mlp_bias": True, "attention_bias": True}),
    (tuple(CONFIGS), {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    (tuple(CONFIGS), {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    (tuple(CONFIGS), {"sliding_window": 5}),
    (tuple(CONFIGS), {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
]
MISSING = (
    "rope_theta", "sliding_window", "n_shared_experts", "head_dim", "num_key_value_heads", "qkv_bias", "hidden_act",
    "norm_topk_prob", "tie_word_embeddings", "first_k_dense_replace", "q_lora_rank", "query_pre_attn_scalar",
    "attn_logit_softcapping", "final_logit_softcapping", "max_window_layers", "rms_norm_eps",
)  # fmt: skip


@pytest.mark.parametrize("family", CONFIGS)
def test_all_keys_that_transformers_writes_are_known(family: str):
    written = getattr(transformers, f"{CONFIGS[family]}Config")().to_dict()
    (architecture,) = settings("tiny", family)["architectures"]
    assert written.keys() - FAMILIES[architecture].keys.keys() == set()


@pytest.mark.parametrize(
    ("family", "change"), [(family, change) for families, change in CHANGES for family in families]
)
def test_settings_are_right_or_refused(family: str, change: dict[str, Any], tmp_path: Path):
    right_or_refused({**of_family(family), **change}, tmp_path)


@pytest.mark.parametrize("key", MISSING)
@pytest.mark.parametrize("family", CONFIGS)
def test_defaults_are_right_or_refused(family: str, key: str, tmp_path: Path):
    found = of_family(family)
    if key in found:
        right_or_refused({name: value for name, value in found.items() if name != key}, tmp_path)


def of_family(family: str) -> dict[str, Any]:
    """A small config.json with the keys of a family."""
    found = settings("tiny", family)
    kept = {name: value for name, value in SMALLEST.items() if name in found}
    return {**found, **kept, **({"num_key_value_heads": 4} if family == "deepseek_v2" else {})}


def right_or_refused(found: dict[str, Any], folder: Path) -> None:
    """A model of transformers, as it makes it of a config.json and writes it: its logits are ours, or it is refused."""
    try:
        config = config_from(Values(found), 40)
    except CheckpointError:
        return
    made = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**copy.deepcopy(found)), dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn * (parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5))
    made.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(found))
    try:
        checkpoint = Checkpoint(folder)
        config = config_of(checkpoint, 40)
    except CheckpointError:
        return
    tensors = {name: np.array(checkpoint.tensor(name)) for name in checkpoint._stored}
    (prompt,) = prompts_of([40], config.vocabulary)
    ours, theirs = logits(EXACT, config, tensors, prompt), logits_of(in_transformers(folder, torch.float64), prompt)
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_tokens(request: pytest.FixtureRequest, name: str, tmp_path: Path):
    """Logits by the tolerance rule, from transformers' in float64 and in the model's dtype; greedy tokens are equal."""
    found, tensors = tiny(**MODELS[name])
    write_checkpoint(tmp_path, found, tensors)
    bundle: Bundle = request.getfixturevalue("mixtures" if name in MIXTURES else "llama")
    model, count = opened(bundle, tmp_path, context=CONTEXTS.get(name)), 6
    rounded, exact = (in_transformers(tmp_path, dtype) for dtype in (getattr(torch, model.config.dtype), torch.float64))
    prompt, written = clearest(exact, prompts_of([30] * 16, model.config.vocabulary), count)
    tokens, actual = generate(model, [prompt], count)
    assert tokens[0].tolist() == written
    read = [*prompt, *tokens[0, :-1].tolist()]
    given, wanted = (logits_of(theirs, read)[-count:] for theirs in (rounded, exact))
    assert_close(actual[0], wanted, given, 1e-3)
    print(f"\n{name}: {figures(actual[0], given, wanted)}")


def clearest(model: Any, prompts: list[list[int]], count: int) -> tuple[list[int], list[int]]:
    """Return the prompt whose likeliest tokens stand farthest from the next likely, and these tokens."""
    given = torch.tensor(prompts)
    found = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=count, min_new_tokens=count, do_sample=False,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    first, second = torch.stack(found.logits).topk(2, -1).values.unbind(-1)
    best = (first - second).min(0).values.argmax()
    return prompts[best], found.sequences[best, given.shape[1] :].tolist()


def figures(actual: np.ndarray, given: np.ndarray, wanted: np.ndarray) -> str:
    ours, theirs = (np.abs(x - wanted).max() / np.abs(wanted).max() for x in (actual.astype(np.float64), given))
    return f"largest error of a logit {ours:.1e} of the largest logit, of transformers in the same dtype {theirs:.1e}"
