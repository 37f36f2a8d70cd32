"""The keys and values of sequences on a device, in blocks; which block is whose, `BlockPool` says."""

from __future__ import annotations

from aot_models.decoders.decoder import Decoder

BLOCK_SIZE = 64
"""Tokens of a cache's block."""


class Cache:
    """Keys and values of all layers.

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
