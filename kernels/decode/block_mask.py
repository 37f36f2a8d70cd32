"""Lists of blocks for flex decoding, from a mask function, in numpy: what flex attention's create_block_mask makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
MaskMod = Callable[[Array, Array, Array, Array], Array]
"""(batch, head, queries, keys), arrays that broadcast against each other -> whether the query sees the key."""


@dataclass(frozen=True)
class BlockMask:
    """Which blocks of keys a row of query blocks sees, in part and in full.

    Attributes:
        kv_num_blocks: int32 [batch, heads], entries of kv_indices that count.
        kv_indices: int32 [batch, heads, kv_blocks], blocks of which some queries see some keys, in order; then 0.
        full_kv_num_blocks, full_kv_indices: the same of blocks of which every query sees every key.
        sparse_block_size: keys of a block.
    """

    kv_num_blocks: Array
    kv_indices: Array
    full_kv_num_blocks: Array
    full_kv_indices: Array
    sparse_block_size: int

    def arguments(self) -> dict[str, Array | int]:
        """As keyword arguments of the ops."""
        return dict(vars(self))


def create_block_mask(
    mask_mod: MaskMod, batch: int, heads: int, seqlen_q: int, seqlen_k: int, sparse_block_size: int = 128
) -> BlockMask:
    """Ask a mask function about each query and key. heads: those of the lists, key heads; 1 for one list for all.

    Raises ValueError for a block size that is no positive multiple of 64.
    """
    if sparse_block_size <= 0 or sparse_block_size % 64:
        raise ValueError(f"sparse_block_size = {sparse_block_size}; a multiple of 64 is needed")
    kv_blocks = -(-seqlen_k // sparse_block_size)
    shown = np.zeros((batch, heads, seqlen_q, kv_blocks * sparse_block_size), bool)
    indices = np.ogrid[:batch, :heads, :seqlen_q, :seqlen_k]
    shown[..., :seqlen_k] = mask_mod(*indices)
    by_block = shown.reshape(batch, heads, seqlen_q, kv_blocks, sparse_block_size)
    existing = (np.arange(kv_blocks * sparse_block_size) < seqlen_k).reshape(kv_blocks, sparse_block_size)
    full = (by_block | ~existing).all((2, 4))
    some = by_block.any((2, 4)) & ~full
    return BlockMask(*_lists(some), *_lists(full), sparse_block_size)


def _lists(chosen: Array) -> tuple[Array, Array]:
    """(counts, chosen blocks in order and then 0), of bool [batch, heads, kv_blocks]."""
    counts = chosen.sum(-1).astype(np.int32)
    order = np.argsort(~chosen, -1, kind="stable").astype(np.int32)
    return counts, np.where(np.arange(chosen.shape[-1]) < counts[..., None], order, 0).astype(np.int32)
