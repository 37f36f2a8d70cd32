"""The paged cache of keys and values on a device. `BlockPool` tracks which sequence uses which block."""

from __future__ import annotations

from aot_models.decoders.decoder import Decoder

BLOCK_SIZE = 64
"""Tokens in a block."""


class Cache:
    """Keys and values of all layers.

    Attributes:
        k, v: the arrays of each layer, [blocks, BLOCK_SIZE, heads_kv, head_dim].
    """

    def __init__(self, model: Decoder, blocks: int):
        config = model.config
        shape = (blocks, BLOCK_SIZE, config.heads_kv, config.head_dim)
        self.k = [model.device.empty(shape, model.dtype) for _ in range(config.layers)]
        # With latent attention, keys and values are the same rows.
        self.v = self.k if config.latent else [model.device.empty(shape, model.dtype) for _ in range(config.layers)]
        for array in (*self.k, *self.v):
            array.fill(0)
