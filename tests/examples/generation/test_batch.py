"""Sequences that grow together: sampling, the cache, the next step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")

from aot_runtime import Bundle
from generation.batch import Generation, Sampling, until_end
from generation.cache import Cache, ContextError
from kernels.decode.advance_reference import advance
from kernels.rows import reference as rows_reference
from models.decoder import MissingOpError
from random_checkpoint import write_checkpoint
from tests.examples.random_models import one_layer, opened, prompts_of, quantised

pytestmark = pytest.mark.sampled(1)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("sampling", (Sampling(1.5, 20, 0.9, seed=2**40), Sampling(0.8, seed=3)), ids=str)
def test_sampling_is_what_the_reference_takes(llama: Bundle, sampling: Sampling, tmp_path: Path):
    model, prompts = one_layer(llama, tmp_path), prompts_of([4, 9, 4])
    prompts[2] = prompts[0]
    generation = Generation(model, Cache(model, 3), prompts, 2, sampling)
    generation.prefill()
    kept = {"top_k": np.array([20]), "top_p": np.array([0.9])} if sampling.top_k else {}
    for step in range(2):
        positions = np.array(generation.lengths) + step - 1
        seeds, heat = sampling.seed + np.arange(3), np.array([sampling.temperature], np.float32)
        wanted = rows_reference.sample(generation.logits.numpy(), heat, seeds, positions, **kept)
        assert np.array_equal(generation.tokens()[:, -1], wanted)
        if step == 0:
            generation.step()
    tokens = generation.tokens()
    assert not np.array_equal(tokens[0], tokens[2]), "sequences have seeds of their own"
    with pytest.raises(ContextError, match="have got their 2 tokens"):
        generation.step()


def test_blocks_are_taken_and_given_back(llama: Bundle, tmp_path: Path):
    """A sequence in blocks that another one has written to gives what it gives in fresh ones."""
    model = one_layer(llama, tmp_path)
    cache = Cache(model, 2)
    results = []
    for lengths in ([5], [62], [5]):
        generation = Generation(model, cache, prompts_of(lengths), 2)
        *_, tokens = generation.bursts(2)
        results.append(tokens)
        with pytest.raises(ContextError, match="need 3 blocks of 64 tokens; the cache has "):
            cache.take([129])
        generation.close()
        generation.close()
    assert np.array_equal(results[0], results[2])
    assert sorted(cache.take([1, 64])[:, 0].tolist()) == [0, 1]


def test_advance(llama: Bundle):
    """Across blocks, to blocks that are not there, at the last token and past it; more than a program's sequences."""
    rng, batch, length, size = np.random.default_rng(0), 150, 40, 8
    tables, sampled = rng.integers(-1, 300, (batch, 4), np.int32), rng.integers(100, 200, batch, np.int32)
    state = {
        "tokens": rng.integers(0, 99, (batch, length), np.int32),
        "positions": rng.integers(-1, length + 2, batch, np.int32),
        "slots": rng.integers(0, 99, batch, np.int32),
        "seqlens_k": rng.integers(0, length, batch, np.int32),
    }
    device = {name: llama.device.array(array) for name, array in state.items()}
    llama.advance(llama.device.array(sampled), llama.device.array(tables), **device, block_size=size)
    wanted = advance(sampled, tables, **state, block_size=size)
    for name, array in zip(state, wanted, strict=True):
        assert np.array_equal(device[name].numpy(), array), name


# What is refused


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "prompts, count, message",
    (
        ([[1], [1] * 99], 2, "prompt 1 has 99 tokens, with 2 new ones 101; the context has 100"),
        ([[1], [1], [1]], 5, "sequences of 6, 6, 6 tokens need 3 blocks of 64 tokens; the cache has 2 free"),
        ([[1], []], 5, "prompt 1 has no tokens"),
        ([[1, 320]], 5, "prompt 0: tokens are 0 to 319"),
        ([[-1]], 5, "prompt 0: tokens are 0 to 319"),
        ([[1]], 0, "0 new tokens; at least one is needed"),
    ),
)
def test_sequences_that_do_not_fit(llama: Bundle, prompts: list, count: int, message: str, tmp_path: Path):
    model = one_layer(llama, tmp_path, max_position_embeddings=100)
    cache = Cache(model, 2)
    with pytest.raises(ValueError) as caught:
        Generation(model, cache, prompts, count)
    assert str(caught.value) == message
    Generation(model, cache, [[1] * 98], 2)  # as long as can be


def test_models_that_a_bundle_does_not_serve(llama: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="heads of 288 elements are not supported; the ops take up to 256"):
        one_layer(llama, tmp_path, head_dim=288)
    found, stored, _ = quantised("awq")
    write_checkpoint(tmp_path, found, stored)
    with pytest.raises(ValueError, match="dtype float32 is not supported; supported: float16, bfloat16"):
        opened(llama, tmp_path, "float32")
    monkeypatch.setattr(Bundle, "ops", tuple(op for op in llama.ops if op not in ("linear_int4", "advance")))
    with pytest.raises(MissingOpError, match="has no advance, linear_int4, which the model needs"):
        opened(llama, tmp_path)


def test_texts_end_at_an_end():
    assert until_end([3, 4, 7, 5], frozenset({7})) == [3, 4]
    assert until_end(np.array([3, 4]), frozenset({7})) == [3, 4]
