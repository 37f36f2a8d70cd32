"""Caches of keys and values: contiguous, [batch, heads, tokens, head_dim], or paged, [blocks, heads, block_size,
head_dim], with a table of each sequence's blocks.

Block numbers are clamped, so nothing outside of a cache is read.
"""

from typing import NamedTuple

import triton
import triton.language as tl


class BlockTables(NamedTuple):
    """Each sequence's blocks, in order: int32 [batch, blocks of a sequence]. ptr is None for contiguous caches.

    blocks: number of blocks in the cache; block_size: tokens in a block. WHOLE_BLOCKS: it is a multiple of 64. PACK:
    the cache is in pieces of so many elements, or 0; see `split.load_key_pieces` and `split.load_value_pieces`.
    """

    ptr: tl.tensor
    stride_batch: tl.tensor
    blocks: tl.tensor
    block_size: tl.tensor
    WHOLE_BLOCKS: tl.constexpr = False
    PACK: tl.constexpr = 0


@triton.jit
def find(tables: BlockTables, batch, start, tokens, WHOLE_BLOCKS: tl.constexpr):
    """Return (index along the cache's first dim, place along its tokens) of a sequence's `tokens`, a tile that begins
    at `start`, a multiple of its size.

    WHOLE_BLOCKS: block_size is a multiple of 64, so that a tile of up to 64 tokens is of one block.
    """
    if tables.ptr is None:
        return batch, tokens
    else:
        table = tables.ptr + batch * tables.stride_batch
        if WHOLE_BLOCKS and tokens.shape[0] <= 64:
            block = tl.load(table + start // tables.block_size)
            place = tokens - start // tables.block_size * tables.block_size
        else:
            block = tl.load(table + tokens // tables.block_size)
            place = tokens % tables.block_size
        return tl.minimum(tl.maximum(block, 0), tables.blocks - 1), place


@triton.jit
def columns_of(head_dim, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr):
    """Return the columns of a cache for tiles of HEAD_DIM; PADDED: columns from head_dim on repeat the first ones.

    Queries are 0 there, and results there are not stored, so loads need no masks.
    """
    columns = tl.arange(0, HEAD_DIM)
    return columns % head_dim if PADDED else columns


@triton.jit
def load_rows(array, at, columns):
    """Load rows of an array, [len(at), len(columns)]."""
    return tl.load(array + at[:, None] + columns[None, :])
