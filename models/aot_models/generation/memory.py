"""Plan the memory of a device before weights are uploaded: weights, buffers, and the size of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aot_models.decoders.buffers import Buffers
from aot_models.decoders.config import Config
from aot_models.decoders.rows import EightBitRows
from aot_models.generation.blocks import blocks_for
from aot_models.generation.cache import BLOCK_SIZE
from aot_models.generation.engine import batch_sizes
from aot_runtime import Device

MARGIN = 0.05
"""Fraction of the free memory that is reserved for code, graphs, scratch memory and fragmentation."""
SAMPLE = 256
"""Tokens of the buffers that are allocated to measure their size."""
GIB = 1 << 30


class TooLargeError(ValueError):
    """A model with its cache does not fit on the device."""


@dataclass(frozen=True)
class Load:
    """The expected load.

    Attributes:
        slots, chunk: as for `Scheduler`.
        length: the longest sequence, in tokens.
        is_penalised: some sequence has penalties for earlier tokens.
    """

    slots: int
    chunk: int
    length: int
    is_penalised: bool = False


@dataclass(frozen=True)
class Plan:
    """Sizes in bytes, and the number of blocks of the cache.

    Attributes:
        weights: weights and the tables of rotary embeddings.
        buffers: intermediate results, and the state of batches.
        block: one block of the cache.
        free: free memory of the device.
    """

    weights: int
    buffers: int
    block: int
    blocks: int
    free: int

    @property
    def usable(self) -> int:
        return int(self.free * (1 - MARGIN))

    def __str__(self) -> str:
        return (
            f"memory: weights {_gib(self.weights)}, buffers {_gib(self.buffers)}, a cache of "
            f"{self.blocks * BLOCK_SIZE} tokens {_gib(self.blocks * self.block)}; of {_gib(self.free)} that are free, "
            f"{_gib(self.free - self.usable)} are left as a margin"
        )


def plan(
    device: Device, config: Config, dtype: np.dtype, weights: int, load: Load, lengths: Sequence[int] = (),
    tokens: int | None = None,
) -> Plan:  # fmt: skip
    """Plan the memory. The cache has `tokens` tokens, or as many as fit and sequences of these lengths can use.

    weights: bytes of the checkpoint; float32 weights are converted to half of that.

    Raises:
        TooLargeError: the model does not fit, or the longest sequence does not fit into the cache.
    """
    longest = blocks_for(load.length, BLOCK_SIZE)
    found = Plan(
        weights=weights // (2 if config.dtype == "float32" else 1) + _rope_bytes(config),
        buffers=_buffer_bytes(device, config, dtype, load),
        block=(1 if config.latent else 2)
        * config.layers
        * BLOCK_SIZE
        * config.heads_kv
        * config.head_dim
        * dtype.itemsize,
        blocks=longest if tokens is None else blocks_for(tokens, BLOCK_SIZE),
        free=device.free_memory(),
    )
    fitting = (found.usable - found.weights - found.buffers) // found.block
    if fitting < found.blocks:
        kind = f"for one sequence of {load.length} tokens" if tokens is None else f"of {tokens} tokens"
        raise TooLargeError(
            f"the weights need {_gib(found.weights)}, buffers {_gib(found.buffers)} and a cache {kind} "
            f"{_gib(found.blocks * found.block)}; {device} has {_gib(found.free)} free, of which "
            f"{_gib(found.free - found.usable)} are left as a margin"
        )
    if tokens is not None:
        return found
    wanted = sum(sorted((blocks_for(length, BLOCK_SIZE) for length in lengths), reverse=True)[: load.slots])
    return Plan(found.weights, found.buffers, found.block, max(longest, min(fitting, wanted or fitting)), found.free)


def _buffer_bytes(device: Device, config: Config, dtype: np.dtype, load: Load) -> int:
    """Bytes for the largest pass and for all batch sizes. Logits, tables and tokens are counted by row."""
    before = device.memory_stats().in_use
    # An upper bound: not all layers need 8-bit rows.
    needs = [EightBitRows(shape.inputs, np.dtype(np.int8), 128) for shape in config.linears().values()]
    sample = Buffers(device, config, dtype, SAMPLE, needs)
    token = (device.memory_stats().in_use - before) / SAMPLE
    del sample
    counts = dtype.itemsize + np.dtype(np.int32).itemsize if load.is_penalised else 0
    row = config.vocabulary * (dtype.itemsize + counts) + 4 * (load.length + blocks_for(load.length, BLOCK_SIZE))
    rows = sum(batch_sizes(load.slots))
    return int((load.chunk + load.slots + rows) * token + (load.slots + rows) * row)


def _rope_bytes(config: Config) -> int:
    return sum(8 * config.context * len(rope.frequencies) for rope in {layer.rope for layer in config.attention})


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB / 100 else f"{nbytes / (1 << 20):.1f} MiB"
