"""Adapters in PEFT's format: their effect on logits, row by row, and refused ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.values import CheckpointError
from aot_models.decoders.config import Config
from aot_models.decoders.decoder import Decoder, MissingOpError
from aot_models.decoders.families import adapters_of, config_of
from aot_models.generation.cache import BLOCK_SIZE, Cache
from aot_models.generation.engine import serve
from aot_models.generation.options import Limits
from aot_models.generation.scheduler import Request
from aot_models.random_checkpoint import write_checkpoint
from aot_runtime import Bundle
from kernels.tolerance import assert_close
from models.tests.checkpoints.published_adapters import adapter, merged, write_adapter
from models.tests.decoders.reference import EXACT, logits, rounded_ops
from models.tests.decoders.rounding import rounding
from models.tests.decoders.tiny_families import MIXTURES
from models.tests.random_models import prompts_of, quantised, service, tiny
from tests.support.dtypes import BF16

Array = np.ndarray
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def computed(model: Decoder, prompts: Sequence[Sequence[int]], chosen: Sequence[int]) -> list[Array]:
    """Return the logits of each prompt's tokens. chosen: the number of each prompt's adapter."""
    lengths, put = [len(prompt) for prompt in prompts], model.device.array
    starts, total = np.cumsum([0, *lengths]), sum(lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    ids, positions, slots = (
        put(np.asarray(x, np.int32)) for x in (np.concatenate(prompts), positions, np.arange(total))
    )
    attend, buffers = model.attend_prompts(put(starts.astype(np.int32)), max(lengths), None), model.buffers(total)
    buffers.rows.choose(np.repeat(chosen, lengths))
    cache = Cache(model, -(-total // BLOCK_SIZE))
    hidden = model.hidden(ids, positions, slots, cache, attend, buffers, None)
    found = model.device.empty((total, model.config.vocabulary), model.dtype)
    model.head(hidden, found, buffers.rows, None)
    return np.split(found.numpy(), starts[1:-1])


def opened(bundle: Bundle, folder: Path, adapters: Sequence[Path]) -> Decoder:
    checkpoint = Checkpoint(folder)
    config = config_of(checkpoint)
    return Decoder(bundle, config, checkpoint, adapters=adapters_of(named(*adapters), config))


def named(*folders: Path) -> dict[str, Path]:
    return {f"adapter {number}": folder for number, folder in enumerate(folders)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ("", "gptq of 4 bits, act-order, version 2", "fp8, dynamic"))
def test_each_row_has_the_adapter_that_is_chosen_for_it(llama: Bundle, name: str, tmp_path: Path):
    """The rows use two adapters of different ranks and layers, and none, on plain and on quantised weights."""
    found, stored, dense = quantised(name) if name else (*tiny(num_hidden_layers=1), None)
    dense, rng, rounded = dense or stored, np.random.default_rng(0), rounding(llama, name or "awq", None)
    published = [adapter(rng, dense, ALL), adapter(rng, dense, ("q_proj", "v_proj", "down_proj"), r=3, use_rslora=True)]
    write_checkpoint(tmp_path, found, stored)
    folders = [write_adapter(tmp_path / str(i), *one) for i, one in enumerate(published)]
    model, prompts, chosen = opened(llama, tmp_path, folders), prompts_of((3, 1, 5)), (1, -1, 0)
    variants = [dense, *(merged(dense, *one) for one in published)]
    for row, prompt, which in zip(computed(model, prompts, chosen), prompts, chosen, strict=True):
        exact, same = (logits(ops, model.config, variants[which + 1], prompt) for ops in (EXACT, rounded))
        assert_close(row, exact, same, 1e-3)
        others = [variant for number, variant in enumerate(variants) if number != which + 1]
        assert all(np.abs(logits(EXACT, model.config, other, prompt) - exact).max() > 1 for other in others)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers"), (
    ("qwen3_moe", ("q_proj", "k_proj", "v_proj", "o_proj")),
    ("deepseek_v2", ("q_proj", "kv_a_proj_with_mqa", "o_proj")),
))  # fmt: skip
def test_adapters_beside_experts(mixtures: Bundle, name: str, layers: tuple[str, ...], tmp_path: Path):
    found, tensors = tiny(**MIXTURES[name])
    one = adapter(np.random.default_rng(2), tensors, layers)
    write_checkpoint(tmp_path, found, tensors)
    model, (prompt,) = opened(mixtures, tmp_path, [write_adapter(tmp_path / "adapter", *one)]), prompts_of((5,))
    with_it = merged(tensors, *one)
    exact, same = (logits(ops, model.config, with_it, prompt) for ops in (EXACT, rounded_ops(model.dtype)))
    assert_close(computed(model, [prompt], [0])[0], exact, same, 1e-3)
    assert np.abs(logits(EXACT, model.config, tensors, prompt) - exact).max() > 1


@pytest.mark.slow
def test_requests_of_a_batch_have_adapters_of_their_own(llama: Bundle, tmp_path: Path):
    """Prompts, the first step and captured steps give what a whole pass over the text gives with that adapter."""
    _, tensors = model_of_a_layer(tmp_path)
    rng = np.random.default_rng(4)
    folders = [write_adapter(tmp_path / str(rank), *adapter(rng, tensors, ALL, r=rank)) for rank in (2, 5)]
    model, (prompt,) = opened(llama, tmp_path, folders), prompts_of((7,))
    requests = [Request(tuple(prompt), limits=Limits(4), adapter=name) for name in ("adapter 1", "", "adapter 0")]
    scheduler, engine = service(model, requests)
    sequences = [scheduler.submit(request) for request in requests]
    for _ in serve(scheduler, engine):
        pass
    assert scheduler.shared == 0, "other adapters have other keys and values"
    texts = [[*prompt, *sequence.new_tokens[:-1]] for sequence in sequences]
    for sequence, row in zip(sequences, computed(model, texts, (1, -1, 0)), strict=True):
        assert sequence.new_tokens == row[-4:].astype(np.float32).argmax(-1).tolist()
    assert len({tuple(sequence.new_tokens) for sequence in sequences}) == 3


@pytest.mark.slow
def test_logits_are_those_of_peft(llama: Bundle, tmp_path: Path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    peft = pytest.importorskip("peft", reason="peft is not installed")
    found, tensors = tiny(num_hidden_layers=1)
    config, added = adapter(np.random.default_rng(1), tensors, ALL, use_rslora=True)
    write_checkpoint(tmp_path, found, tensors)
    folder, (prompt,) = write_adapter(tmp_path / "adapter", config, added), prompts_of((6,))
    theirs = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64), folder
    ).double()
    with torch.no_grad():
        exact = theirs(torch.tensor([prompt])).logits[0].numpy()
    model = opened(llama, tmp_path, [folder])
    (actual,) = computed(model, [prompt], [0])
    ours, same = (
        logits(ops, model.config, merged(tensors, config, added), prompt) for ops in (EXACT, rounded_ops(BF16))
    )
    assert np.abs(ours - exact).max() < 1e-4, "the reference is PEFT's model"
    assert_close(actual, exact, same, 1e-3)


# What is refused


def model_of_a_layer(folder: Path) -> tuple[Config, dict[str, Array]]:
    found, tensors = tiny(num_hidden_layers=1)
    write_checkpoint(folder, found, tensors)
    return config_of(Checkpoint(folder)), tensors


REFUSED: dict[str, tuple[Mapping[str, object], str]] = {
    "dora": ({"use_dora": True}, "an adapter with use_dora = True is not supported; supported: False"),
    "other methods": ({"peft_type": "IA3"}, "an adapter with peft_type = 'IA3' is not supported; supported: 'LORA'"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, r"an adapter with modules_to_save = \['lm_head'\] is not"),
    "biases": ({"bias": "all"}, "an adapter with bias = 'all' is not supported"),
    "ranks of their own": ({"rank_pattern": {"q_proj": 4}}, "an adapter with rank_pattern = {'q_proj': 4} is not"),
    "rank 0": ({"r": 0}, "rank 0 is not supported; supported: 1 to 1024"),
    "no rank": ({"r": None}, "there is no 'r'"),
    "no scale": ({"lora_alpha": None}, "there is no 'lora_alpha'"),
    "rank 4.7": ({"r": 4.7}, "rank 4.7 is not supported"),
    "rank [1]": ({"r": [1]}, r"rank \[1\] is not supported"),
    "a scale of text": ({"lora_alpha": "x"}, "an adapter with lora_alpha = 'x' is not supported"),
    "a scale of NaN": ({"lora_alpha": float("nan")}, "an adapter with lora_alpha = nan is not"),
    "an infinite scale": ({"lora_alpha": float("inf")}, "an adapter with lora_alpha = inf is not"),
    "a rank-stabilised text": ({"use_rslora": "false"}, "an adapter with use_rslora = 'false' is not"),
    "unknown keys": ({"use_mora": True}, "the key 'use_mora' is not known, and may change the results"),
    **{
        f"weights changed by {name}": (
            {"init_lora_weights": name},
            f"an adapter with init_lora_weights = '{name}' is not",
        )
        for name in ("pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga")
    },
    "a kind of its own": ({"arrow_config": {"top_k": 3}}, "an adapter with arrow_config = "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_kinds_of_adapters_that_are_refused(name: str, tmp_path: Path):
    change, message = REFUSED[name]
    config, tensors = model_of_a_layer(tmp_path)
    one, added = adapter(np.random.default_rng(0), tensors, ("q_proj",))
    with pytest.raises(CheckpointError, match=rf"adapter_config\.json: {message}"):
        adapters_of(named(write_adapter(tmp_path / "adapter", {**one, **change}, added)), config)


@pytest.mark.parametrize("name", (True, False, "gaussian", "eva", "orthogonal"))
def test_beginnings_that_leave_the_weights_as_they_are(name: object, tmp_path: Path):
    config, tensors = model_of_a_layer(tmp_path)
    one, added = adapter(np.random.default_rng(0), tensors, ("q_proj",), init_lora_weights=name)
    assert adapters_of(named(write_adapter(tmp_path / "adapter", one, added)), config)


@pytest.mark.parametrize(
    "change", ({"target_modules": ["k_proj"]}, {"layers_to_transform": [1]}, {"layers_to_transform": 3})
)
def test_tensors_of_layers_that_the_config_leaves_out(change: dict[str, object], tmp_path: Path):
    """They are refused, since PEFT does not read them."""
    config, tensors = model_of_a_layer(tmp_path)
    one, added = adapter(np.random.default_rng(0), tensors, ("q_proj",))
    assert adapters_of(named(write_adapter(tmp_path / "0", {**one, "layers_to_transform": [0]}, added)), config)
    with pytest.raises(CheckpointError, match=r"q_proj\.lora_A\.weight' is for a layer that the config leaves out"):
        adapters_of(named(write_adapter(tmp_path / "adapter", {**one, **change}, added)), config)


def test_adapters_of_other_models_are_refused_with_all_that_is_at_fault(tmp_path: Path):
    config, tensors = model_of_a_layer(tmp_path)
    one, added = adapter(np.random.default_rng(0), tensors, ("q_proj", "k_proj", "lm_head"))
    layer = "base_model.model.model.layers.0.self_attn"
    del added[f"{layer}.k_proj.lora_B.weight"]
    added[f"{layer}.q_proj.lora_A.weight"] = np.zeros((8, 64), np.float32)
    added["base_model.model.model.layers.7.mlp.up_proj.lora_A.weight"] = np.zeros((8, 128), np.float32)
    with pytest.raises(CheckpointError) as caught:
        adapters_of(named(write_adapter(tmp_path / "adapter", one, added)), config)
    head, other = "base_model.model.lm_head", "base_model.model.model.layers.7.mlp.up_proj"
    assert str(caught.value).removeprefix(f"{tmp_path / 'adapter'}: ").split("; ") == [
        f"tensor '{head}.lora_A.weight' is for a layer that cannot have an adapter",
        f"tensor '{head}.lora_B.weight' is for a layer that cannot have an adapter",
        f"tensor '{other}.lora_A.weight' is for a layer that cannot have an adapter",
        f"tensor '{layer}.q_proj.lora_A.weight' is [8, 64], and should be [8, 128]",
        f"there is no tensor '{layer}.k_proj.lora_B.weight'",
    ]
    with pytest.raises(CheckpointError, match="there is no tensor for a layer of the model"):
        adapters_of(named(write_adapter(tmp_path / "adapter", one, {})), config)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (tmp_path / "adapter" / name).unlink()
        with pytest.raises(CheckpointError, match=name):
            adapters_of(named(tmp_path / "adapter"), config)


def test_a_bundle_without_the_op(llama: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, tensors = model_of_a_layer(tmp_path)
    folder = write_adapter(tmp_path / "adapter", *adapter(np.random.default_rng(0), tensors, ("q_proj",)))
    monkeypatch.setattr(Bundle, "ops", tuple(op for op in llama.ops if op != "lora_add"))
    with pytest.raises(MissingOpError, match="has no lora_add, which the model needs"):
        opened(llama, tmp_path, [folder])


def test_layers_that_are_absorbed_have_no_adapter(tmp_path: Path):
    found, tensors = tiny(**MIXTURES["deepseek_v2"])
    write_checkpoint(tmp_path, found, tensors)
    one, added = adapter(np.random.default_rng(0), tensors, ("kv_b_proj",))
    with pytest.raises(CheckpointError, match=r"kv_b_proj\.lora_A\.weight' is for a layer that cannot have an adapter"):
        adapters_of(named(write_adapter(tmp_path / "adapter", one, added)), config_of(Checkpoint(tmp_path)))
