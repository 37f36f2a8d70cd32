"""Logits and tokens of models against a model in numpy: figures, families, and every published format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot_models.random_checkpoint import write_checkpoint
from aot_runtime import Bundle
from kernels.tolerance import assert_close
from models.tests.checkpoints.published import FORMATS
from models.tests.decoders.checking import check
from models.tests.decoders.reference import EXACT, logits
from models.tests.decoders.rounding import rounding
from models.tests.decoders.tiny_families import LLAMA3, TINY
from models.tests.random_models import generate, opened, prompts_of, quantised, tiny

pytestmark = pytest.mark.sampled(0)  # by default the first of the families runs


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", TINY)
def test_families_that_differ_in_more_than_figures(llama: Bundle, name: str, tmp_path: Path):
    check(llama, tmp_path, *tiny(**TINY[name]), lengths=(3, 14), count=2)


@pytest.mark.parametrize("name", FORMATS)
def test_published_formats(llama: Bundle, name: str, tmp_path: Path):
    """Compare with a float64 model of the dequantised weights."""
    found, stored, dense = quantised(name)
    write_checkpoint(tmp_path, found, stored)
    model, prompts = opened(llama, tmp_path), prompts_of((1, 5))
    tokens, actual = generate(model, prompts, 2)
    ends = ("input_scale", "activation_scale")
    scale = next((float(x.reshape(-1)[0]) for end, x in stored.items() if end.endswith(ends)), None)
    exact, same = (
        np.stack(
            [
                logits(ops, model.config, dense, [*prompt, *row[:-1]])[-2:]
                for prompt, row in zip(prompts, tokens, strict=True)
            ]
        )
        for ops in (EXACT, rounding(llama, name, scale))
    )
    assert_close(actual, exact, same, 1e-3)
    assert np.array_equal(tokens, actual.astype(np.float32).argmax(-1))
