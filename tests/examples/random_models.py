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
from tests.support.dtypes import BF16

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


def pack_words(codes: Array, order: Sequence[int] = range(8)) -> Array:
    """Eight codes of the last dim in an int32, the first of `order` lowest."""
    grouped = codes.reshape(*codes.shape[:-1], -1, 8)[..., list(order)].astype(np.uint32)
    return np.bitwise_or.reduce(grouped << np.arange(0, 32, 4, dtype=np.uint32), -1).view(np.int32)


def quantised(
    method: str, size: int = 64, act_order: bool = False, less: int = 1
) -> tuple[dict[str, object], dict[str, Array], dict[str, Array]]:
    """(config, stored tensors, dense ones) of a model of one layer and 4 bits, in the layout that the method publishes.

    less: what GPTQ's zeros are stored less.
    """
    (found, tensors), rng = tiny(num_hidden_layers=1), np.random.default_rng(0)
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
