"""Small checkpoints of random numbers, in the published formats, and what a model makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from aot_runtime import Bundle
from checkpoints.folder import Checkpoint
from generation.batch import Generation
from generation.cache import BLOCK_SIZE, Cache
from models.decoder import Decoder
from models.families import config_of
from random_checkpoint import random_tensors, settings, write_checkpoint
from tests.examples.checkpoints.published import FORMATS

Array = np.ndarray
Tensors = Mapping[str, Array]


def tiny(family: str = "llama", **changes: object) -> tuple[dict[str, object], dict[str, Array]]:
    """(config.json, tensors) of a model of two layers."""
    found = settings("tiny", family, **changes)
    return found, random_tensors(found)


def one_layer(bundle: Bundle, folder: Path, **changes: object) -> Decoder:
    """A model of one layer, whose checkpoint is written to the folder."""
    write_checkpoint(folder, *tiny(num_hidden_layers=1, **changes))
    return opened(bundle, folder)


def opened(bundle: Bundle, folder: Path, dtype: str | None = None, context: int | None = None) -> Decoder:
    """The model of a checkpoint."""
    checkpoint = Checkpoint(folder)
    return Decoder(bundle, config_of(checkpoint, context), checkpoint, dtype)


def prompts_of(lengths: Sequence[int], vocabulary: int = 320) -> list[list[int]]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, vocabulary, length).tolist() for length in lengths]


def generate(model: Decoder, prompts: Sequence[Sequence[int]], count: int) -> tuple[Array, Array]:
    """(tokens [batch, count], logits [batch, count, vocabulary]) of greedy sampling."""
    blocks = sum(len(p) + count for p in prompts) // BLOCK_SIZE + len(prompts)
    generation = Generation(model, Cache(model, blocks), prompts, count)
    generation.prefill()
    steps = [generation.logits.numpy()]
    while generation.steps < count:
        generation.step()
        steps.append(generation.logits.numpy())
    return generation.tokens(), np.stack(steps, 1)


def quantised(name: str) -> tuple[dict[str, object], dict[str, Array], dict[str, Array]]:
    """(config, stored tensors, dense ones) of a model of one layer in one of the published formats, by its name."""
    published = FORMATS[name]
    (found, tensors), rng = tiny(num_hidden_layers=1), np.random.default_rng(0)
    stored, dense = dict(tensors), dict(tensors)
    for weight in [weight for weight in tensors if "_proj.weight" in weight]:
        layer = published.store(rng, *tensors[weight].shape)
        dense[weight] = layer.dense
        del stored[weight]
        stored |= {weight.removesuffix("weight") + end: array for end, array in layer.tensors.items()}
    return {**found, "quantization_config": published.config}, stored, dense
