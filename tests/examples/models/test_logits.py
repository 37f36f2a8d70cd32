"""A model's logits and tokens against a model in numpy, and against transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")

from aot_runtime import Bundle
from kernels.tolerance import assert_close
from random_checkpoint import write_checkpoint
from tests.examples.models.reference import EXACT, logits, rounded_ops
from tests.examples.random_models import LLAMA3, Tensors, generate, opened, prompts_of, quantised, tiny
from tests.support.dtypes import BF16

pytestmark = pytest.mark.sampled(2)


def check(
    llama: Bundle, folder: Path, found: Mapping[str, object], stored: Tensors, dense: Tensors | None = None,
    lengths: Sequence[int] = (1, 5, 127), count: int = 3,
) -> None:  # fmt: skip
    """Logits of prompts and of steps after them by the tolerance rule, and the tokens that the exact model takes.

    stored: the checkpoint's tensors; dense: what they stand for. lengths: one gets over the end of a cache's block.
    """
    write_checkpoint(folder, found, stored)
    model, prompts = opened(llama, folder), prompts_of(lengths)
    config = model.config
    tokens, actual = generate(model, prompts, count)
    dtype = np.dtype({"float16": np.float16, "bfloat16": BF16}[config.dtype])
    exact, same = (
        np.stack([logits(ops, config, dense or stored, [*prompt, *row[:-1]])[-count:]
                  for prompt, row in zip(prompts, tokens, strict=True)])
        for ops in (EXACT, rounded_ops(dtype))
    )  # fmt: skip
    assert_close(actual, exact, same, 1e-3)
    ordered = np.sort(exact, -1)
    clear = ordered[..., -1] - ordered[..., -2] > 2 * np.abs(actual.astype(np.float64) - exact).max()
    assert clear.mean() > 0.5 and np.array_equal(tokens[clear], exact.argmax(-1)[clear])
    assert np.array_equal(tokens, actual.astype(np.float32).argmax(-1))


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_logits_of_prompts_and_steps(llama: Bundle, name: str, tmp_path: Path):
    check(llama, tmp_path, *tiny(**CASES[name]))


@pytest.mark.sampled(0)
@pytest.mark.parametrize("name", ("gptq of 4 bits, act-order, version 2", "awq"))
def test_weights_of_4_bits(llama: Bundle, name: str, tmp_path: Path):
    """With act-order each layer has another order of its inputs."""
    check(llama, tmp_path, *quantised(name), lengths=(1, 5), count=2)


def test_logits_and_tokens_are_those_of_transformers(llama: Bundle, tmp_path: Path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    found, tensors = tiny(rope_scaling=LLAMA3)
    write_checkpoint(tmp_path, found, tensors)
    (prompt,) = prompts_of([40])
    model = opened(llama, tmp_path)
    tokens, actual = generate(model, [prompt], 8)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    written = theirs.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=-1)
    assert written[0, len(prompt) :].tolist() == tokens[0].tolist()
    with torch.no_grad():
        given = theirs(torch.tensor([[*prompt, *tokens[0, :-1]]])).logits[0, -8:].float().numpy()
        exact = theirs.double()(torch.tensor([[*prompt, *tokens[0, :-1]]])).logits[0, -8:].numpy()
    assert np.abs(given - exact).max() < 0.1
    assert_close(actual[0], exact, given, 1e-3)
    ours = logits(EXACT, model.config, tensors, [*prompt, *tokens[0, :-1]])[-8:]
    assert np.abs(ours - exact).max() < 1e-4, "the reference is the model"
