"""The keys and values of sequences, in blocks that they take and give back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from generation.scheduler import ContextError
from models.decoder import Decoder

Array = np.ndarray
BLOCK_SIZE = 64
"""Tokens of a cache's block."""


class Cache:
    """Keys and values of all layers, in blocks of `BLOCK_SIZE` tokens that sequences take and give back.

    Attributes:
        k, v: of each layer [blocks, BLOCK_SIZE, heads_kv, head_dim].
    """

    def __init__(self, model: Decoder, blocks: int):
        config = model.config
        shape = (blocks, BLOCK_SIZE, config.heads_kv, config.head_dim)
        self.k = [model.device.empty(shape, model.dtype) for _ in range(config.layers)]
        # Of latent vectors, keys and values are the same rows.
        self.v = self.k if config.latent else [model.device.empty(shape, model.dtype) for _ in range(config.layers)]
        for array in (*self.k, *self.v):
            array.fill(0)
        self._free = list(range(blocks))

    def take(self, lengths: Sequence[int]) -> Array:
        """Block tables for sequences of these lengths: int32 [batch, blocks_per_sequence], -1 where there is none.

        Raises `ContextError` where too few blocks are free.
        """
        counts = [blocks_for(length) for length in lengths]
        if sum(counts) > len(self._free):
            raise ContextError(
                f"sequences of {', '.join(map(str, lengths))} tokens need {sum(counts)} blocks of {BLOCK_SIZE} tokens; "
                f"the cache has {len(self._free)} free"
            )
        tables = np.full((len(lengths), max(counts)), -1, np.int32)
        for row, count in zip(tables, counts, strict=True):
            row[:count] = [self._free.pop() for _ in range(count)]
        return tables

    def give_back(self, tables: Array) -> None:
        self._free += tables[tables >= 0].tolist()


def blocks_for(length: int) -> int:
    """Blocks of the cache that a sequence of `length` tokens needs."""
    return -(-length // BLOCK_SIZE)
