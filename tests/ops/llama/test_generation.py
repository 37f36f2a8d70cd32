"""Sequences that grow together: sampling, the cache, the next step, and the command that continues texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")

from llama import main
from llama_checkpoint import Checkpoint
from llama_generation import Generation, Sampling, until_end
from llama_model import ContextError, Llama, MissingOpError
from llama_random import write_checkpoint
from tokenizers import Tokenizer

from aot_runtime import Bundle, NoVariantError
from kernels.decode.advance_reference import advance
from kernels.rows import reference as rows_reference
from tests.ops.llama.checkpoints import one_layer, prompts_of, quantised
from tests.support.op_bundles import OpBundles

pytestmark = pytest.mark.sampled(1)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("sampling", (Sampling(1.5, 20, 0.9, seed=2**40), Sampling(0.8, seed=3)), ids=str)
def test_sampling_is_what_the_reference_takes(llama: Bundle, sampling: Sampling, tmp_path: Path):
    model, prompts = one_layer(llama, tmp_path), prompts_of([4, 9, 4])
    prompts[2] = prompts[0]
    generation = Generation(model, model.cache(3), prompts, 2, sampling)
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
    cache = model.cache(2)
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
    cache = model.cache(2)
    with pytest.raises(ValueError) as caught:
        Generation(model, cache, prompts, count)
    assert str(caught.value) == message
    Generation(model, cache, [[1] * 98], 2)  # as long as can be


def test_models_that_a_bundle_does_not_serve(llama: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = one_layer(llama, tmp_path, head_dim=256)
    with pytest.raises(NoVariantError, match=r"(rotary|append_kv|flash_attention_varlen): "):
        Generation(model, model.cache(1), [[1, 2]], 2).prefill()
    with pytest.raises(ValueError, match="dtype float32 is not supported; supported: float16, bfloat16"):
        Llama(llama, Checkpoint(tmp_path), "float32")
    found, stored, _ = quantised("awq")
    write_checkpoint(tmp_path, found, stored)
    monkeypatch.setattr(Bundle, "ops", tuple(op for op in llama.ops if op not in ("linear_int4", "advance")))
    with pytest.raises(MissingOpError, match="has no advance, linear_int4, which the model needs"):
        Llama(llama, Checkpoint(tmp_path))


# The command


def test_the_command_continues_texts(
    llama: Bundle, op_bundles: OpBundles, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    model = one_layer(llama, tmp_path, torch_dtype="float32", eos_token_id=[7, 9])
    command = [str(tmp_path), str(llama.path), "Once", "A longer text", "--device", llama.device.driver.name]
    if op_bundles.on != "gpu":  # where no bundle is on disk: variants are compiled when calls need them
        monkeypatch.setattr("llama.open_bundle", lambda folder, device: llama)
    main([*command, "--tokens", "3", "--burst", "1"])
    text = capsys.readouterr().out
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in ("Once", "A longer text")]
    *_, tokens = Generation(model, model.cache(2), prompts, 3).bursts(2)
    ends = [until_end(row, frozenset({7, 9})) for row in tokens]
    written = "\n".join(tokenizer.decode([*prompt, *row]) for prompt, row in zip(prompts, ends, strict=True))
    assert text.startswith(f"{written}\n17 tokens read in ") and text.endswith(" tokens/s\n")
    with pytest.raises(SystemExit, match=r"llama\.py: sequences of 104, 113 tokens need 4 blocks of 64 tokens; the"):
        main([*command, "--tokens", "100", "--cache", "64"])


def test_what_the_command_does_not_find(tmp_path: Path):
    command = [str(tmp_path), str(tmp_path / "nothing"), "Once"]
    with pytest.raises(SystemExit, match=r"llama\.py: .*tokenizer\.json: there is no such file"):
        main(command)
    write_checkpoint(tmp_path, *quantised("awq")[:2])
    with pytest.raises(SystemExit, match=r"llama\.py: .*nothing"):
        main(command)


def test_texts_end_at_an_end():
    assert until_end([3, 4, 7, 5], frozenset({7})) == [3, 4]
    assert until_end(np.array([3, 4]), frozenset({7})) == [3, 4]
