"""`advance` in numpy."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def advance(
    sampled: Array,
    block_tables: Array,
    tokens: Array,
    positions: Array,
    slots: Array,
    seqlens_k: Array,
    block_size: int,
) -> tuple[Array, Array, Array, Array]:
    """Return (tokens, positions, slots, seqlens_k) after appending each sequence's sampled token.

    sampled, positions, slots, seqlens_k: int32 [batch]; block_tables: int32 [batch, blocks_per_sequence]; tokens: int32
    [batch, length].
    """
    tokens, positions, slots, seqlens_k = (array.copy() for array in (tokens, positions, slots, seqlens_k))
    for sequence, token in enumerate(sampled):
        position = positions[sequence] + 1
        slots[sequence] = -1
        if 0 <= position < tokens.shape[1]:
            tokens[sequence, position], positions[sequence] = token, position
            seqlens_k[sequence] = position + 1
            entry, place = divmod(int(position), block_size)
            block = block_tables[sequence, entry] if entry < block_tables.shape[1] else -1
            slots[sequence] = block * block_size + place if block >= 0 else -1
    return tokens, positions, slots, seqlens_k


advance_same_dtype = advance
