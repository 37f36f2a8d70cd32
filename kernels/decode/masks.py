"""Visible keys of a cache: windows, chunks, padding on the left and custom masks, all given at run time."""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.decode.parts import Sequence


class CacheMask(NamedTuple):
    """Bounds of the keys that a query sees, around its diagonal, which is its own place among the keys.

    left, right: keys before and after the diagonal; 2147483647: all of them. attention_chunk: if > 0, keys are in
    chunks of so many, and a query sees only those of the chunk with its diagonal. first_keys: int32 [batch], the first
    key of each sequence that is seen, from which chunks are counted, too; None or null: 0.

    custom_mask: int32 [queries of all sequences, mask_words], packed, or None; bit j % 32 of word j / 32 shows key j.
    """

    left: tl.tensor = 2147483647
    right: tl.tensor = 0
    attention_chunk: tl.tensor = 0
    first_keys: tl.tensor = None
    custom_mask: tl.tensor = None
    mask_words: tl.tensor = 0


class Seen(NamedTuple):
    """Keys [first, first + count) that a query sees."""

    first: tl.tensor
    count: tl.tensor


@triton.jit
def first_key_of(mask: CacheMask, sequence: Sequence):
    """Return the first key of a sequence that is not padding, clamped to its keys."""
    first = 0
    if mask.first_keys is not None and mask.first_keys.to(tl.int64) != 0:
        first = tl.minimum(tl.maximum(tl.load(mask.first_keys + sequence.batch), 0), sequence.keys)
    return first


@triton.jit
def seen_keys(tokens, mask: CacheMask, first_key, sequence: Sequence):
    """Make the Seen of these tokens of a sequence, of which the keys before first_key are padding."""
    diagonal = tokens + (sequence.keys - sequence.queries)
    # No sum overflows.
    first = tl.maximum(tl.maximum(diagonal, mask.left) - mask.left, first_key)
    last = tl.minimum(diagonal, sequence.keys - 1 - mask.right) + mask.right
    if mask.attention_chunk > 0:
        begin = first_key + tl.maximum(diagonal - first_key, 0) // mask.attention_chunk * mask.attention_chunk
        first = tl.maximum(first, begin)
        last = tl.minimum(last - begin, mask.attention_chunk - 1) + begin
        last = tl.where(diagonal < first_key, -1, last)
    return Seen(first, tl.maximum(last + 1 - first, 0))


@triton.jit
def tile_keys(first_row, rows: tl.constexpr, group, mask: CacheMask, first_key, sequence: Sequence, size: tl.constexpr):
    """Return (begin, end) of the keys that `rows` rows of queries from first_row on see; begin: a multiple of size.

    Where the last token sees no key, none before it does.
    """
    last_token = tl.minimum((first_row + rows - 1) // group, sequence.queries - 1)
    first = seen_keys(first_row // group, mask, first_key, sequence).first
    last = seen_keys(last_token, mask, first_key, sequence)
    return first // size * size, tl.where(last.count > 0, last.first + last.count, 0)


@triton.jit
def is_seen(keys, seen: Seen):
    """Test which keys [keys] each row of Seen [rows] has: [rows, keys]."""
    place = keys[None, :] - seen.first[:, None]
    return place.to(tl.uint32, bitcast=True) < seen.count[:, None].to(tl.uint32, bitcast=True)


@triton.jit
def is_shown(start, BLOCK_N: tl.constexpr, queries, mask: CacheMask):
    """Test which of BLOCK_N keys from `start` on the custom mask shows to queries [rows], by their numbers among all:
    [rows, BLOCK_N]. start: a multiple of BLOCK_N, which divides 32."""
    tl.static_assert(32 % BLOCK_N == 0)
    word, bits = start // 32, start % 32 + tl.arange(0, BLOCK_N)
    at = mask.custom_mask + queries.to(tl.int64) * mask.mask_words + word
    words = tl.load(at, word < mask.mask_words, 0)
    return (words[:, None] >> bits[None, :]) & 1 != 0


@triton.jit
def within(keys, first_key, sequence: Sequence):
    """Clamp keys to those of a sequence that are not padding."""
    return tl.minimum(tl.maximum(keys, first_key), sequence.keys - 1)
