"""The plan of a device's memory, and its text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot_models.checkpoints.folder import Checkpoint
from aot_models.decoders.config import Config
from aot_models.decoders.families import config_of
from aot_models.generation.cache import BLOCK_SIZE, Cache
from aot_models.generation.engine import Engine
from aot_models.generation.memory import MARGIN, Load, TooLargeError, plan
from aot_models.random_checkpoint import write_checkpoint
from aot_runtime import Bundle, Device
from models.tests.random_models import opened, tiny

HALF = np.dtype(np.float16)
"""A dtype of the size of bfloat16."""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    write_checkpoint(tmp_path, *tiny())
    return config_of(Checkpoint(tmp_path))


def test_no_more_memory_is_taken_than_was_said(llama: Bundle, config: Config, tmp_path: Path):
    """Nor is much less taken. Counted are the model, its cache, the buffers of the largest pass, and a batch of each
    size."""
    device, load = llama.device, Load(slots=5, chunk=900, length=300)
    checkpoint = Checkpoint(tmp_path)
    config_of(checkpoint)
    found = plan(device, config, HALF, checkpoint.nbytes, load, tokens=640)
    before = device.memory_stats().in_use
    model = opened(llama, tmp_path)
    weights = device.memory_stats().in_use - before
    assert weights <= found.weights * 1.02 and found.weights <= weights * 1.02
    cache = Cache(model, found.blocks)
    assert found.blocks == 10 and sum(array.nbytes for array in (*cache.k, *cache.v)) == found.blocks * found.block
    before = device.memory_stats().in_use
    engine = Engine(model, cache, load.slots, load.length, 8)
    batches = [engine.batch(size) for size in engine.sizes]
    buffers = model.buffers(load.chunk + load.slots)
    taken = device.memory_stats().in_use - before
    assert batches and buffers and found.buffers * 0.6 <= taken <= found.buffers


def test_the_cache_is_as_large_as_is_of_use_and_fits(llama: Bundle, config: Config, monkeypatch: pytest.MonkeyPatch):
    def blocks(free: int | None = None, **given: object) -> int:
        if free is not None:
            monkeypatch.setattr(Device, "free_memory", lambda device: free)
        found = plan(llama.device, config, HALF, 1000, Load(2, 64, 100), **given)
        assert found.weights + found.buffers + found.blocks * found.block <= found.usable
        return found.blocks

    whole = plan(llama.device, config, HALF, 1000, Load(2, 64, 100))
    assert whole.blocks == (whole.usable - whole.weights - whole.buffers) // whole.block
    lengths = [100, 10, 100, 65]
    assert blocks(lengths=lengths) == 4, "two slots, two blocks in each"
    needed = whole.weights + whole.buffers
    enough = [int((needed + (count + 0.5) * whole.block) / (1 - MARGIN)) for count in range(5)]
    assert blocks(enough[3], lengths=lengths) == 3 and blocks(enough[2], lengths=lengths) == 2
    assert blocks(enough[2], lengths=lengths, tokens=BLOCK_SIZE) == 1
    with pytest.raises(TooLargeError, match=r"and a cache for one sequence of 100 tokens .* are left as a margin"):
        blocks(enough[1], lengths=lengths)
    with pytest.raises(TooLargeError, match=r"^the weights need .* MiB, buffers .* a cache of 256 tokens "):
        blocks(enough[3], lengths=lengths, tokens=256)
    assert str(whole).startswith("memory: weights ") and f" a cache of {whole.blocks * 64} tokens " in str(whole)
