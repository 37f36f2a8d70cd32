"""examples/llama.py: tests for any device, of which a test module gives the fixture `llama`: a bundle of
manifests/llama.yaml, at least with the variants of bfloat16 and of heads of 64.

Checkpoints are random, and written in the published format; the model that they are held against is numpy's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from llama import main
from llama_checkpoint import Checkpoint, CheckpointError, Config
from llama_generation import Generation, Sampling, until_end
from llama_model import BLOCK_SIZE, ContextError, Llama, MissingOpError
from llama_random import random_tensors, settings, write_checkpoint
from tokenizers import Tokenizer

from aot_runtime import Bundle, NoVariantError
from kernels.decode.advance_reference import advance
from kernels.rows import reference as rows_reference
from kernels.tolerance import assert_close
from tests.ops.llama.llama_reference import EXACT, logits, rounded_ops

Array = np.ndarray
Tensors = Mapping[str, Array]
BF16 = np.dtype(ml_dtypes.bfloat16)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip


def prompts_of(lengths: Sequence[int], vocabulary: int = 320) -> list[list[int]]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, vocabulary, length).tolist() for length in lengths]


def generate(llama: Bundle, folder: Path, prompts: Sequence[Sequence[int]], count: int) -> tuple[Array, Array]:
    """(tokens [batch, count], logits [batch, count, vocabulary]) of greedy sampling."""
    model = Llama(llama, Checkpoint(folder))
    generation = Generation(model, model.cache(sum(len(p) + count for p in prompts) // BLOCK_SIZE + len(prompts)),
                            prompts, count)  # fmt: skip
    generation.prefill()
    steps = [generation.logits.numpy()]
    while generation.steps < count:
        generation.step()
        steps.append(generation.logits.numpy())
    return generation.tokens(), np.stack(steps, 1)


def check(
    llama: Bundle, folder: Path, found: Mapping[str, object], stored: Tensors, dense: Tensors | None = None,
    lengths: Sequence[int] = (1, 5, 70), count: int = 4,
) -> None:  # fmt: skip
    """Logits of prompts and of steps after them by the tolerance rule, and the tokens that the exact model takes.

    stored: the checkpoint's tensors; dense: what they stand for.
    """
    write_checkpoint(folder, found, stored)
    config = Config.read(folder / "config.json")
    prompts = prompts_of(lengths)
    tokens, actual = generate(llama, folder, prompts, count)
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


def tiny(**changes: object) -> tuple[dict[str, object], dict[str, Array]]:
    found = settings("tiny", **changes)
    return found, random_tensors(found)


# Logits and tokens


def test_logits_of_prompts_and_steps(llama: Bundle, tmp_path: Path):
    check(llama, tmp_path, *tiny())


def test_tied_weights_and_a_stretched_rotary_embedding(llama: Bundle, tmp_path: Path):
    found, tensors = tiny(tie_word_embeddings=True, rope_scaling=LLAMA3, num_hidden_layers=1, num_key_value_heads=1)
    check(llama, tmp_path, found, tensors)


def test_a_window(llama: Bundle, tmp_path: Path):
    """Of Mistral: shorter than the prompt, and than the cache's blocks."""
    changes = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 7}
    check(llama, tmp_path, *tiny(**changes, num_hidden_layers=1), lengths=(3, 70, 130))


def test_a_step_gives_what_a_longer_prompt_gives(llama: Bundle, tmp_path: Path):
    found, tensors = tiny(num_hidden_layers=1)
    write_checkpoint(tmp_path, found, tensors)
    (prompt,) = prompts_of([62])
    tokens, steps = generate(llama, tmp_path, [prompt], 5)
    longer = [[*prompt, *tokens[0, :i]] for i in range(5)]
    _, at_once = generate(llama, tmp_path, longer, 1)
    assert np.abs(steps[0].astype(np.float32) - at_once[:, 0].astype(np.float32)).max() < 0.1
    assert np.array_equal(at_once[:, 0].astype(np.float32).argmax(-1), tokens[0])


CASES = {
    "biases": {"attention_bias": True, "mlp_bias": True},
    "float16": {"torch_dtype": "float16"},
    "heads of 80": {"head_dim": 80, "num_attention_heads": 3, "num_key_value_heads": 1},
    "heads of 128": {"head_dim": 128, "num_key_value_heads": 4},
    "ragged": {"hidden_size": 100, "intermediate_size": 150, "vocab_size": 321, "head_dim": 36},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "new rotary keys": {"rope_theta": None, "rope_parameters": {"rope_theta": 1e4, **LLAMA3}},
    "deep": {"num_hidden_layers": 5, "num_attention_heads": 8, "hidden_size": 512, "intermediate_size": 1024},
}


def check_case(llama: Bundle, folder: Path, name: str) -> None:
    """One of CASES, of a bundle with all variants."""
    check(llama, folder, *tiny(**CASES[name]), lengths=(2, 33, 200), count=6)


PLAIN = [1, 0.19392276, 0.037606031, 0.0072926651, 0.0014142134, 0.00027424819, 5.3182957e-05, 1.0313385e-05]
FREQUENCIES = {
    "plain": (None, PLAIN),
    "linear": ({"type": "linear", "factor": 4.0}, [frequency / 4 for frequency in PLAIN]),
    "llama3": (  # three as they were, one between, the others an eighth
        {**LLAMA3, "original_max_position_embeddings": 8192},
        [*PLAIN[:4], 0.00052484602, *(frequency / 8 for frequency in PLAIN[5:])],
    ),
}
"""Rotary scalings, and the frequencies that transformers has for them: heads of 16, theta 500000."""


@pytest.mark.parametrize("name", FREQUENCIES)
def test_frequencies_of_the_rotary_embedding(name: str):
    scaling, wanted = FREQUENCIES[name]
    found = Config.parse(settings("tiny", head_dim=16, rope_scaling=scaling), Path("config.json")).frequencies
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


# Weights of 4 bits


def pack_words(codes: Array, order: Sequence[int] = range(8)) -> Array:
    """Eight codes of the last dim in an int32, the first of `order` lowest."""
    grouped = codes.reshape(*codes.shape[:-1], -1, 8)[..., list(order)].astype(np.uint32)
    return np.bitwise_or.reduce(grouped << np.arange(0, 32, 4, dtype=np.uint32), -1).view(np.int32)


def quantised(
    found: Mapping[str, object], tensors: Tensors, method: str, size: int, act_order: bool = False, less: int = 1
) -> tuple[dict[str, object], dict[str, Array], dict[str, Array]]:
    """(config, stored tensors, dense ones) of a random model of 4 bits, in the layout that the method publishes."""
    rng = np.random.default_rng(0)
    stored, dense = dict(tensors), dict(tensors)
    for name in [name for name in tensors if "_proj.weight" in name]:
        n, k = tensors[name].shape
        groups = -(-k // size)
        codes, zeros = rng.integers(0, 16, (k, n)), rng.integers(1, 16, (groups, n))
        scales = (rng.uniform(0.5, 1.5, (groups, n)) * 0.2 * k**-0.5).astype(BF16)
        group_of = rng.permutation(np.arange(k) // size) if act_order else np.arange(k) // size
        dense[name] = ((codes - zeros[group_of]) * scales.astype(np.float64)[group_of]).T
        prefix = name.removesuffix("weight")
        del stored[name]
        if method == "awq":
            order = (0, 2, 4, 6, 1, 3, 5, 7)
            words = {"qweight": pack_words(codes, order), "qzeros": pack_words(zeros, order)}
        else:
            words = {"qweight": pack_words(codes.T).T, "qzeros": pack_words(zeros - less)}
            words["g_idx"] = group_of.astype(np.int32)
        stored |= {prefix + end: array for end, array in {**words, "scales": scales}.items()}
    layout = {"version": "gemm"} if method == "awq" else {"checkpoint_format": "gptq" if less else "gptq_v2"}
    settings_ = {"quant_method": method, "bits": 4, "group_size": size, **layout}
    return {**found, "quantization_config": settings_}, stored, dense


@pytest.mark.parametrize("method, act_order, less", [("gptq", False, 1), ("gptq", True, 0), ("awq", False, 1)])
def test_weights_of_4_bits(llama: Bundle, method: str, act_order: bool, less: int, tmp_path: Path):
    """With act-order each layer has another order of its inputs."""
    found, stored, dense = quantised(*tiny(num_hidden_layers=1), method, 64, act_order, less)
    check(llama, tmp_path, found, stored, dense)


# Sampling, the cache, the next step


def test_sampling_is_what_the_reference_takes(llama: Bundle, tmp_path: Path):
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1))
    model = Llama(llama, Checkpoint(tmp_path))
    prompts = prompts_of([4, 9, 4])
    prompts[2] = prompts[0]
    for sampling in (Sampling(0.8, seed=3), Sampling(1.5, 20, 0.9, seed=2**40)):
        generation = Generation(model, model.cache(3), prompts, 3, sampling)
        generation.prefill()
        found = []
        for step in range(3):
            kept = {"top_k": np.array([20]), "top_p": np.array([0.9])} if sampling.top_k else {}
            positions = np.array(generation.lengths) + step - 1
            seeds, heat = sampling.seed + np.arange(3), np.array([sampling.temperature], np.float32)
            found.append(rows_reference.sample(generation.logits.numpy(), heat, seeds, positions, **kept))
            assert np.array_equal(generation.tokens()[:, -1], found[-1])
            if step < 2:
                generation.step()
        tokens = generation.tokens()
        assert not np.array_equal(tokens[0], tokens[2]), "sequences have seeds of their own"


def test_blocks_are_taken_and_given_back(llama: Bundle, tmp_path: Path):
    """A sequence in blocks that another one has written to gives what it gives in fresh ones."""
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1))
    model = Llama(llama, Checkpoint(tmp_path))
    cache = model.cache(3)
    results = []
    for lengths in ([70], [100], [70]):
        generation = Generation(model, cache, prompts_of(lengths), 4)
        *_, tokens = generation.bursts(2)
        results.append(tokens)
        with pytest.raises(ContextError, match="need 2 blocks of 64 tokens; the cache has 1 free"):
            cache.take([65])
        generation.close()
        generation.close()
    assert np.array_equal(results[0], results[2])
    tables = cache.take([1, 64, 64])
    assert sorted(tables[:, 0].tolist()) == [0, 1, 2]


def test_more_steps_than_were_asked_for(llama: Bundle, tmp_path: Path):
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1))
    model = Llama(llama, Checkpoint(tmp_path))
    generation = Generation(model, model.cache(1), [[5]], 1)
    generation.prefill()
    with pytest.raises(ContextError, match="have got their 1 tokens"):
        generation.step()


def test_advance(llama: Bundle):
    """Across blocks, to blocks that are not there, at the last token and past it; more than a program's sequences."""
    rng, batch, length, size = np.random.default_rng(0), 150, 40, 8
    tables = rng.integers(-1, 300, (batch, 4), np.int32)
    state = {
        "tokens": rng.integers(0, 99, (batch, length), np.int32),
        "positions": rng.integers(-1, length + 2, batch, np.int32),
        "slots": rng.integers(0, 99, batch, np.int32),
        "seqlens_k": rng.integers(0, length, batch, np.int32),
    }
    sampled = rng.integers(100, 200, batch, np.int32)
    device = {name: llama.device.array(array) for name, array in state.items()}
    llama.advance(llama.device.array(sampled), llama.device.array(tables), **device, block_size=size)
    wanted = advance(sampled, tables, **state, block_size=size)
    for name, array in zip(state, wanted, strict=True):
        assert np.array_equal(device[name].numpy(), array), name


# Bad input


def refused(folder: Path, found: Mapping[str, object], tensors: Tensors) -> str:
    write_checkpoint(folder, found, tensors)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(folder)
    return str(caught.value).removeprefix(f"{folder}: ").removeprefix(f"{folder / 'config.json'}: ")


def test_tensors_that_are_missing_or_misshapen_are_all_named(tmp_path: Path):
    found, tensors = tiny(num_hidden_layers=1)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]
    assert refused(tmp_path, found, tensors) == (
        "there is no tensor 'model.layers.0.mlp.up_proj.weight'; "
        "tensor 'model.norm.weight' is [127], and should be [128]"
    )
    found, stored, _ = quantised(*tiny(num_hidden_layers=1), "gptq", 64)
    name = "model.layers.0.self_attn.k_proj.qzeros"
    stored[name] = stored[name][:1]
    assert refused(tmp_path, found, stored) == f"tensor '{name}' is [1, 16], and should be [2, 16]"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel is not supported; supported: LlamaFor"),
        ({"architectures": None, "model_type": "bert"}, "architecture bert is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
        ({"hidden_size": None}, "there is no 'hidden_size'"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 key heads evenly"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type yarn is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "there is no 'original_max_position_embeddings'"),
        ({"torch_dtype": "float64"}, "dtype float64 is not supported; supported: float16, bfloat16, float32"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3, "group_size": 128}}, "a weight of 3 bits is not"),
        ({"quantization_config": {"quant_method": "fp8", "bits": 8}}, "quantisation fp8 is not supported"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 96}},
            "groups of 96 do not divide the 128 inputs of self_attn.q_proj",
        ),
        ({"quantization_config": {"bits": 4}}, "there is no 'quant_method'"),
    ],
)
def test_models_of_another_kind(change: dict, message: str, tmp_path: Path):
    found, tensors = tiny(num_hidden_layers=1)
    assert refused(tmp_path, {**found, **change}, tensors).startswith(message)


def test_files_that_are_missing_or_broken(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"config\.json: No such file"):
        Checkpoint(tmp_path)
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1))
    weights = tmp_path / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: "):
        Checkpoint(tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"there is no \.safetensors file"):
        Checkpoint(tmp_path)
    index = {"weight_map": {"model.norm.weight": "part-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"part-2\.safetensors: "):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: no JSON: "):
        Checkpoint(tmp_path)


def test_an_order_that_is_none(tmp_path: Path):
    found, stored, _ = quantised(*tiny(num_hidden_layers=1), "gptq", 64, act_order=True)
    name = "model.layers.0.self_attn.q_proj"
    stored[f"{name}.g_idx"] = np.where(stored[f"{name}.g_idx"] == 1, 0, 1)[:100].astype(np.int32)
    write_checkpoint(tmp_path, found, stored)
    with pytest.raises(CheckpointError, match=f"{name}: g_idx"):
        Checkpoint(tmp_path).linear(name)


def test_zeros_of_the_other_version_of_gptq(tmp_path: Path):
    """Zeros of 8 that are stored as they are, in a checkpoint that says they are less one."""
    found, stored, _ = quantised(*tiny(num_hidden_layers=1), "gptq", 64)
    name = "model.layers.0.mlp.down_proj"
    stored[f"{name}.qzeros"] = np.full_like(stored[f"{name}.qzeros"], 0x88888888 - 2**32)
    found["quantization_config"] |= {"sym": True}
    write_checkpoint(tmp_path, found, stored)
    with pytest.raises(CheckpointError, match=f"{name}: "):
        Checkpoint(tmp_path).linear(name)
    found["quantization_config"] |= {"checkpoint_format": "gptq_v2"}
    write_checkpoint(tmp_path, found, stored)
    assert (Checkpoint(tmp_path).linear(name).weight.zeros == 8).all()


def test_sequences_that_do_not_fit(llama: Bundle, tmp_path: Path):
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1, max_position_embeddings=100))
    model = Llama(llama, Checkpoint(tmp_path))
    cache = model.cache(2)

    def fault(prompts: Sequence[Sequence[int]], count: int) -> str:
        with pytest.raises(ValueError) as caught:
            Generation(model, cache, prompts, count)
        return str(caught.value)

    assert fault([[1], [1] * 99], 2) == "prompt 1 has 99 tokens, with 2 new ones 101; the context has 100"
    assert fault([[1], [1], [1]], 5) == ("sequences of 6, 6, 6 tokens need 3 blocks of 64 tokens; the cache has 2 free")
    assert fault([[1], []], 5) == "prompt 1 has no tokens"
    assert fault([[1, 320]], 5) == "prompt 0: tokens are 0 to 319"
    assert fault([[-1]], 5) == "prompt 0: tokens are 0 to 319"
    assert fault([[1]], 0) == "0 new tokens; at least one is needed"
    Generation(model, cache, [[1] * 98], 2)  # as long as can be


def test_what_a_bundle_lacks_is_named(llama: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found, stored, _ = quantised(*tiny(num_hidden_layers=1), "awq", 64)
    write_checkpoint(tmp_path, found, stored)
    kept = tuple(op for op in llama.ops if op not in ("linear_int4", "advance"))
    monkeypatch.setattr(Bundle, "ops", kept)
    with pytest.raises(MissingOpError, match="has no advance, linear_int4, which the model needs"):
        Llama(llama, Checkpoint(tmp_path))


def test_a_model_for_which_nothing_was_compiled(llama: Bundle, tmp_path: Path):
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1, head_dim=256))
    model = Llama(llama, Checkpoint(tmp_path))
    with pytest.raises(NoVariantError, match=r"(rotary|append_kv|flash_attention_varlen): "):
        Generation(model, model.cache(1), [[1, 2]], 2).prefill()


def test_a_dtype_that_there_is_not(llama: Bundle, tmp_path: Path):
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1))
    with pytest.raises(ValueError, match="dtype float32 is not supported; supported: float16, bfloat16"):
        Llama(llama, Checkpoint(tmp_path), "float32")


# The command


def test_the_command_continues_texts(llama: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1, torch_dtype="float32", eos_token_id=[7, 9]))
    command = [str(tmp_path), str(llama.path), "Once", "A longer text", "--device", llama.device.driver.name]
    main([*command, "--tokens", "9", "--burst", "4"])
    text = capsys.readouterr().out
    model = Llama(llama, Checkpoint(tmp_path))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in ("Once", "A longer text")]
    *_, tokens = Generation(model, model.cache(2), prompts, 9).bursts(4)
    ends = [until_end(row, frozenset({7, 9})) for row in tokens]
    written = "\n".join(tokenizer.decode([*prompt, *row]) for prompt, row in zip(prompts, ends, strict=True))
    assert text.startswith(f"{written}\n17 tokens read in ") and text.endswith(" tokens/s\n")
    with pytest.raises(SystemExit, match=r"llama\.py: sequences of 104, 113 tokens need 4 blocks of 64 tokens; the"):
        main([*command, "--tokens", "100", "--cache", "64"])
    with pytest.raises(SystemExit, match=r"llama\.py: .*nothing"):
        main([str(tmp_path), str(tmp_path / "nothing"), "Once"])
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(SystemExit, match=r"tokenizer\.json: there is no such file"):
        main(command)


def test_texts_end_at_an_end():
    assert until_end([3, 4, 7, 5], frozenset({7})) == [3, 4]
    assert until_end(np.array([3, 4]), frozenset({7})) == [3, 4]


# Beside transformers


def test_logits_and_tokens_are_those_of_transformers(llama: Bundle, tmp_path: Path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    found, tensors = tiny(rope_scaling=LLAMA3)
    write_checkpoint(tmp_path, found, tensors)
    (prompt,) = prompts_of([40])
    tokens, actual = generate(llama, tmp_path, [prompt], 8)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    written = theirs.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=-1)
    assert written[0, len(prompt) :].tolist() == tokens[0].tolist()
    with torch.no_grad():
        given = theirs(torch.tensor([[*prompt, *tokens[0, :-1]]])).logits[0, -8:].float().numpy()
        exact = theirs.double()(torch.tensor([[*prompt, *tokens[0, :-1]]])).logits[0, -8:].numpy()
    assert np.abs(given - exact).max() < 0.1
    assert_close(actual[0], exact, given, 1e-3)
    ours = logits(EXACT, Config.read(tmp_path / "config.json"), tensors, [*prompt, *tokens[0, :-1]])[-8:]
    assert np.abs(ours - exact).max() < 1e-4, "the reference is the model"
