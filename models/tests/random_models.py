"""Small random checkpoints in the published formats, and helpers to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from aot_models.checkpoints.folder import Checkpoint
from aot_models.decoders.decoder import Decoder
from aot_models.decoders.families import config_of
from aot_models.generation.blocks import BlockPool, blocks_for
from aot_models.generation.cache import BLOCK_SIZE, Cache
from aot_models.generation.engine import Engine, serve
from aot_models.generation.options import Limits
from aot_models.generation.scheduler import Request, Scheduler
from aot_models.random_checkpoint import random_tensors, settings, write_checkpoint
from aot_runtime import Bundle
from models.tests.checkpoints.published import FORMATS

Array = np.ndarray
Tensors = Mapping[str, Array]


def tiny(family: str = "llama", **changes: object) -> tuple[dict[str, object], dict[str, Array]]:
    """Return (config.json, tensors) of a model of two layers."""
    found = settings("tiny", family, **changes)
    return found, random_tensors(found)


def one_layer(bundle: Bundle, folder: Path, **changes: object) -> Decoder:
    """A model of one layer, whose checkpoint is written to the folder."""
    write_checkpoint(folder, *tiny(num_hidden_layers=1, **changes))
    return opened(bundle, folder)


def opened(bundle: Bundle, folder: Path, dtype: str | None = None, context: int | None = None) -> Decoder:
    """Return the model of a checkpoint."""
    checkpoint = Checkpoint(folder)
    return Decoder(bundle, config_of(checkpoint, context), checkpoint, dtype)


def prompts_of(lengths: Sequence[int], vocabulary: int = 320) -> list[list[int]]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, vocabulary, length).tolist() for length in lengths]


def generate(model: Decoder, prompts: Sequence[Sequence[int]], count: int) -> tuple[Array, Array]:
    """Return (tokens [batch, count], logits [batch, count, vocabulary]) of greedy sampling."""
    requests = [Request(tuple(prompt), limits=Limits(count, logprobs=0)) for prompt in prompts]
    scheduler, engine = service(model, requests)
    sequences = [scheduler.submit(request) for request in requests]
    logits: dict[int, list[Array]] = {sequence.number: [] for sequence in sequences}
    for event in serve(scheduler, engine):
        logits[event.sequence.number].append(event.logits)
    return np.array([sequence.new_tokens for sequence in sequences]), np.array(list(logits.values()))


def service(
    model: Decoder, requests: Sequence[Request], blocks: int = 0, slots: int = 0, chunk: int = 1 << 16, burst: int = 4
) -> tuple[Scheduler, Engine]:
    """Return a scheduler and an engine. By default all requests run together, each prompt in one chunk."""
    blocks = blocks or sum(blocks_for(request.longest, BLOCK_SIZE) for request in requests)
    slots, longest = slots or len(requests), max(request.longest for request in requests)
    scheduler = Scheduler(BlockPool(blocks), BLOCK_SIZE, slots, chunk, burst, model.config.context)
    return scheduler, Engine(model, Cache(model, blocks), slots, longest, burst)


def quantised(name: str, **changes: object) -> tuple[dict[str, object], dict[str, Array], dict[str, Array]]:
    """Return (config, stored tensors, dense ones) of a one-layer model in the published format of that name."""
    published = FORMATS[name]
    (found, tensors), rng = tiny(**{"num_hidden_layers": 1, **changes}), np.random.default_rng(0)
    stored, dense = dict(tensors), dict(tensors)
    for weight in [weight for weight in tensors if "_proj.weight" in weight]:
        layer = published.store(rng, *tensors[weight].shape)
        dense[weight] = layer.dense
        del stored[weight]
        stored |= {weight.removesuffix("weight") + end: array for end, array in layer.tensors.items()}
    return {**found, "quantization_config": published.config}, stored, dense
