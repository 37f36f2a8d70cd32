"""Logits and tokens of Llama and Mistral against a model in numpy."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot_runtime import Bundle
from models.tests.decoders.checking import check
from models.tests.decoders.tiny_families import LLAMA3
from models.tests.random_models import quantised, tiny

pytestmark = pytest.mark.sampled(0)  # by default the families' first case runs


CASES = {
    "plain": {},
    "biases": {"num_hidden_layers": 1, "attention_bias": True, "mlp_bias": True},
    "float16": {"torch_dtype": "float16"},
    "heads of 80": {"head_dim": 80, "num_attention_heads": 3, "num_key_value_heads": 1},
    "heads of 128": {"head_dim": 128, "num_key_value_heads": 4},
    "ragged": {"hidden_size": 100, "intermediate_size": 150, "vocab_size": 321, "head_dim": 36},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "new rotary keys": {"rope_theta": None, "rope_parameters": {"rope_theta": 1e4, **LLAMA3}},
    "deep": {"num_hidden_layers": 5, "num_attention_heads": 8, "hidden_size": 512, "intermediate_size": 1024},
    "tied": {"num_hidden_layers": 1, "num_key_value_heads": 1, "tie_word_embeddings": True, "rope_scaling": LLAMA3},
    # Of Mistral: shorter than prompts, and than the cache's blocks
    "window": {"num_hidden_layers": 1, "architectures": ["MistralForCausalLM"], "model_type": "mistral",
               "sliding_window": 7},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_logits_of_prompts_and_steps(llama: Bundle, name: str, tmp_path: Path):
    check(llama, tmp_path, *tiny(**CASES[name]))


@pytest.mark.parametrize("name", ("gptq of 4 bits, act-order, version 2", "awq"))
def test_weights_of_4_bits(llama: Bundle, name: str, tmp_path: Path):
    """With act-order each layer has another order of its inputs."""
    check(llama, tmp_path, *quantised(name), lengths=(1, 5), count=2)
