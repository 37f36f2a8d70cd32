"""Read checkpoints of any content, as far as possible without a device.

The result is the configuration of a model and its tensors, or `CheckpointError`, `ChatError` or `OptionError`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from aot_models.checkpoints.adapters import Adapter
from aot_models.checkpoints.folder import Checkpoint, wanted_tensors
from aot_models.checkpoints.formats import format_of
from aot_models.checkpoints.shards import read_shards
from aot_models.checkpoints.values import CheckpointError, Values, read_json
from aot_models.decoders.config import Config
from aot_models.decoders.families import config_from, config_of
from aot_models.generation.chat import ChatError, _special_tokens, _templates
from aot_models.generation.options import Defaults, OptionError
from aot_models.generation.prompts import Tokens
from aot_models.random_checkpoint import FAMILIES, QUANTISATIONS, settings, write_checkpoint
from models.tests.checkpoints.published_adapters import adapter, write_adapter
from models.tests.decoders.tiny_families import LLAMA3, MIXTURES, TINY, YARN
from models.tests.random_models import tiny
from tests.fuzz.edits import Edit, edit_bytes, edit_tree, places
from tests.fuzz.random_edits import Draw, texts_of

REFUSALS = (CheckpointError, ChatError, OptionError)
_PATTERNS = (
    "(.|.)*X", "((a*)*)*$", "(.*)*Y", "(?:.{1,30}){1,30}Z", "(", "[", "a{99999999999}", "(?P<x>.)(?P=x)", "(?i)a",
    "(?<=a)b", "re:.*", "re:(.|.)*X", "-:(.|.)*X", "+:x", "\\", "(" * 500, "model.layers.0", "lm_head",
)  # fmt: skip
_NESTED = '{"a":' * 100000
_KEYS = (
    "is_causal", "layer_types", "mlp_bias", "sliding_window", "rope_parameters", "partial_rotary_factor",
    "q_lora_rank", "num_local_experts", "attn_scale", "quantization_config", "architectures", "init_lora_weights",
    "dynamic", "modules_to_not_convert", "ignore", "chat_template", "text_config",
)  # fmt: skip


@dataclass(frozen=True)
class CheckpointInput:
    """Edits of a seed, each of its `tree` or of its `text`, in bytes."""

    seed: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Seed:
    """A file of a checkpoint to edit. read: the function that reads it; prefix, suffix: bytes around its JSON."""

    file: str
    tree: Any = field(repr=False)
    read: Callable[[Path], Any] = field(repr=False)
    suffix: bytes = b""

    @cached_property
    def places(self) -> list[tuple[tuple[str | int, ...], Any]]:
        return [*places(self.tree)]

    @cached_property
    def texts(self) -> tuple[str, ...]:
        return (*texts_of(self.tree), *_PATTERNS, *_KEYS)

    def content(self, tree: Any) -> bytes:
        text = json.dumps(tree).encode()
        return len(text).to_bytes(8, "little") + text + self.suffix if self.suffix else text


class Checkpoints:
    """Handles the files of checkpoints, one after the other, in a folder of its own."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.readable, self.seed = folder, folder, seed
        self._whole = folder / "whole"
        found, tensors = tiny(num_hidden_layers=1)
        write_checkpoint(self._whole, found, tensors)
        one, added = adapter(np.random.default_rng(0), tensors, ("q_proj", "down_proj"))
        write_adapter(self._whole, one, added)
        self.seeds = dict(_seeds(self._whole))

    def warm_up(self) -> None:
        """Read each seed as it is."""
        for name in self.seeds:
            given = CheckpointInput(name, ())
            prepared = self.prepare(given)
            assert self.handle(given, prepared) == "taken", name
            self.undo(given, prepared)

    def draw(self, number: int) -> CheckpointInput:
        """Draw the input of a number."""
        rng = random.Random(f"checkpoints:{self.seed}:{number}")
        name = rng.choice(list(self.seeds))
        seed = self.seeds[name]
        draw = Draw(rng, seed.texts)
        return CheckpointInput(name, tuple(_edit(seed, draw) for _ in range(rng.choice((1, 1, 1, 2, 3)))))

    def prepare(self, given: CheckpointInput) -> bytes:
        """Write an input's file; returns what was there."""
        path = self._whole / self.seeds[given.seed].file
        before = path.read_bytes() if path.exists() else b""
        path.write_bytes(content_of(given, self.seeds[given.seed]))
        return before

    def undo(self, given: CheckpointInput, prepared: bytes) -> None:
        path = self._whole / self.seeds[given.seed].file
        if prepared:
            path.write_bytes(prepared)
        else:
            path.unlink()

    def handle(self, given: CheckpointInput, prepared: bytes) -> str:
        """Return the outcome of an input; raise what is wrong with it."""
        try:
            self.seeds[given.seed].read(self._whole)
        except REFUSALS as error:
            assert str(error) and len(str(error)) < 100_000, "an error without words, or with too many"
            return "refused"
        return "taken"


def _seeds(whole: Path) -> Iterator[tuple[str, Seed]]:
    """Each family's config.json, alone and with each format of weights; the other files of a checkpoint."""
    configs = {name: settings("tiny", name) for name in FAMILIES}
    configs |= {name: settings("tiny", **changes) for name, changes in {**TINY, **MIXTURES}.items()}
    for name, scaling in (("llama3", LLAMA3), ("yarn", YARN)):
        configs[name] = settings("tiny", rope_scaling=scaling)
    for name, stored in QUANTISATIONS.items():
        configs[name] = settings("tiny", quantization_config={**stored, "modules_to_not_convert": ["lm_head"]})
        if name.startswith("int"):
            configs[name] = settings("tiny", quantization_config={**stored, "ignore": ["re:.*lm_head"]})
        if name.startswith("gptq"):
            configs[name] = settings("tiny", quantization_config={**stored, "dynamic": {"-:.*down_proj": {}}})
    text = {key: value for key, value in settings("tiny", "gemma3").items() if key != "architectures"}
    configs["images"] = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
    }
    for name, found in configs.items():
        found.pop("family", None)
        yield f"config: {name}", Seed("config.json", found, _read_config)
    header, data = _header(whole / "model.safetensors")
    yield "header", Seed("model.safetensors", header, _read_tensors, data)
    placed = {"metadata": {}, "weight_map": dict.fromkeys(name for name in header if name != "__metadata__")}
    placed["weight_map"] = dict.fromkeys(placed["weight_map"], "model.safetensors")
    yield "index", Seed("model.safetensors.index.json", placed, read_shards)
    yield "adapter", Seed("adapter_config.json", read_json(whole / "adapter_config.json"), _read_adapter)
    header, data = _header(whole / "adapter_model.safetensors")
    yield "adapter's header", Seed("adapter_model.safetensors", header, _read_adapter, data)
    tokenizer = read_json(whole / "tokenizer.json")
    yield "tokenizer", Seed("tokenizer.json", tokenizer, _read_tokens)
    listed = [{"name": "default", "template": "{{ bos_token }}"}, {"name": "rag", "template": "x"}]
    chat = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "chat_template": listed}
    yield "tokenizer's config", Seed("tokenizer_config.json", chat, _read_chat)
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "eos_token_id": [1, 2],
                  "repetition_penalty": 1.05, "suppress_tokens": []}  # fmt: skip
    yield "generation", Seed("generation_config.json", generation, Defaults.read)


def _header(path: Path) -> tuple[Mapping[str, Any], bytes]:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def _read_config(folder: Path) -> None:
    values = Values.read(folder / "config.json")
    config = config_from(values)
    format_ = format_of(values)
    assert sum(1 for _ in wanted_tensors(format_, config.tensors(), config.linears(), values.path))
    _check(config)


def _check(config: Config) -> None:
    sizes = (config.vocabulary, config.hidden, config.intermediate, config.heads, config.heads_kv, config.head_dim,
             config.context, config.layers)  # fmt: skip
    assert all(type(size) is int and size >= 1 for size in sizes), sizes
    figures = [config.eps, config.embedding_scale, config.score_scale]
    for layer in config.attention:
        assert layer.window is None or (type(layer.window) is int and layer.window >= 1)
        figures += [*layer.rope.frequencies, layer.rope.scale]
    assert all(math.isfinite(figure) and figure > 0 for figure in figures), figures
    for bound in (config.attention_softcap, config.logits_softcap):
        assert math.isfinite(bound) and bound >= 0
    assert type(config.tied) is bool and all(type(token) is int for token in config.end)


def _read_tensors(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    config = config_of(checkpoint)
    for name in config.tensors():
        checkpoint.tensor(name).sum()


def _read_adapter(folder: Path) -> None:
    found = Adapter(folder)
    linears = config_from(Values.read(folder / "config.json")).linears()
    found.check(linears)
    assert math.isfinite(found.scale) and found.scale > 0 and all(found.of(name) or True for name in linears)


def _read_tokens(folder: Path) -> None:
    tokens = Tokens(folder)
    tokens.decode(tokens.encode("Once upon a time, 12 <s> é\n")[:20])


def _read_chat(folder: Path) -> None:
    found = read_json(folder / "tokenizer_config.json")
    _templates(folder, found)
    _special_tokens(folder, found)


def content_of(given: CheckpointInput, seed: Seed) -> bytes:
    """The bytes of an input's file."""
    tree = json.loads(json.dumps(seed.tree))
    for edit in given.edits:
        if edit[0] == "tree":
            edit_tree(tree, edit[1:])
    try:
        content = seed.content(tree)
    except (ValueError, OverflowError, TypeError, RecursionError):
        content = repr(tree).encode(errors="replace")
    for edit in given.edits:
        if edit[0] == "text":
            content = edit_bytes(content, edit[1:])
        elif edit[0] == "whole":
            content = bytes.fromhex(edit[1]) if edit[1] else _NESTED.encode()
    return content


def _edit(seed: Seed, draw: Draw) -> Edit:
    kind = draw.rng.random()
    if kind < 0.02:
        return ["whole", draw.rng.choice(("", "ff", "5b5d", "6e756c6c", "7b7d", b"\xef\xbb\xbf{}".hex(), b"NaN".hex()))]
    if kind < 0.12:
        return ["text", *draw.bytes_edit(len(seed.content(seed.tree)) - len(seed.suffix))]
    if kind < 0.2:
        return ["tree", "set", [draw.rng.choice(_KEYS)], draw.value(draw.rng.choice(seed.places)[1])]
    return ["tree", *draw.tree_edit(seed.places)]
