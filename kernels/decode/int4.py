"""4-bit values, two in a byte, the even one low: nibble * factor + shift, with a (factor, shift) pair for each group of
a row.

Neighbours share a byte, so unpacking moves nothing between lanes. The tile goes through LDS once, like a float16 tile
on its way to the matrix units. perf-kernels' flash decoding has the same bytes: rows of int32 with eight nibbles each,
after a prefix of pairs. `aot_models.kv_quantise` makes views of them.
"""

import triton
import triton.language as tl

from kernels.common.rounding import quotient, scale_of

MOST_GROUPS: tl.constexpr = tl.constexpr(8)


@triton.jit
def in_eighths(width, WIDTH: tl.constexpr):
    """Places 0 to WIDTH - 1 in the order in which each eighth of a row of `width` is padded for itself, so that groups
    are whole eighths of a tile; int32 [WIDTH], those from `width` on are padding. width: a multiple of 8.
    """
    at = tl.arange(0, WIDTH)
    size = width // MOST_GROUPS
    WIDE: tl.constexpr = WIDTH // MOST_GROUPS
    eighth, place = at // WIDE, at % WIDE
    return tl.where(place < size, eighth * size + place, width + eighth * (WIDE - size) + place - size)


@triton.jit
def load_int4(
    rows, at, pairs, groups, head_dim,
    COLUMNS: tl.constexpr, GROUPS: tl.constexpr, WORDS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Load rows as fp16 [len(at), COLUMNS]. rows: uint8; pairs: addresses [len(at)] of each row's `groups` (factor,
    shift) pairs of fp16; `groups` divides GROUPS.

    WORDS: rows are at multiples of 4 bytes. They take half as many instructions, and have columns as `interleave` does;
    with PADDED a group is a multiple of 8 values. Else, with PADDED, columns are in the order of `in_eighths`. Padding
    columns are finite if the row is.
    """
    # The bits of 1024 + n in fp16 are those of 1024 plus n, so no conversion is needed.
    PIECES: tl.constexpr = COLUMNS // 8 if WORDS and PADDED else GROUPS  # of a row, each of one group
    piece = tl.arange(0, PIECES)
    group = piece * groups // GROUPS
    if WORDS:
        word = tl.arange(0, COLUMNS // 8)
        pointers = (rows + at[:, None]).to(tl.pointer_type(tl.int32)) + word[None, :]
        words = tl.load(pointers, (word < head_dim // 8)[None, :], 0) if PADDED else tl.load(pointers)
        values = _unpack_words(words)
        if PADDED:
            group = tl.minimum(8 * piece, head_dim - 1) * groups // head_dim
    else:
        byte = in_eighths(head_dim // 2, COLUMNS // 2) % (head_dim // 2) if PADDED else tl.arange(0, COLUMNS // 2)
        packed = tl.load(rows + at[:, None] + byte[None, :])
        nibbles = tl.join(packed & 15, packed >> 4)
        values = (nibbles.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)
    values = values.reshape(at.shape[0], PIECES, COLUMNS // PIECES)
    pair = pairs[:, None] + 2 * group[None, :]
    factor = tl.broadcast_to(tl.load(pair)[:, :, None], values.shape)
    shift = tl.broadcast_to(tl.load(pair + 1)[:, :, None], values.shape)
    return tl.fma(values - 1024.0, factor, shift).reshape(at.shape[0], COLUMNS)


@triton.jit
def _unpack_words(words):
    """1024 + n as fp16 [.., 2, 2, 2], of the nibbles 0, 4, 1, 5, 2, 6, 3, 7 of each word.

    A mask leaves two nibbles of a word, 16 bits apart; they stay where they are, and become a pair of neighbours as the
    matrix units want them.
    """
    low0, high0 = _halves(words)
    low1, high1 = _halves(words >> 4)
    low2, high2 = _halves(words >> 8)
    low3, high3 = _halves(words >> 12)
    low = tl.join(tl.join(low0, low2), tl.join(low1, low3))
    return tl.join(low, tl.join(tl.join(high0, high2), tl.join(high1, high3)))


@triton.jit
def _halves(words):
    """1024 + n as fp16, of the lowest nibble n of each half of the words."""
    bits = words & 0x000F000F | 0x64006400
    return bits.to(tl.uint16).to(tl.float16, bitcast=True), (bits >> 16).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def interleave(x):
    """Columns 0 to 7 of each eight in the order 0, 4, 1, 5, 2, 6, 3, 7."""
    return x.reshape(x.shape[0], x.shape[1] // 8, 2, 4).permute(0, 1, 3, 2).reshape(x.shape)


@triton.jit
def deinterleave(x):
    """The inverse of `interleave`."""
    return x.reshape(x.shape[0], x.shape[1] // 8, 4, 2).permute(0, 1, 3, 2).reshape(x.shape)


@triton.jit
def store_int4(values, rows, at, pairs, present, groups, head_dim, COLUMNS: tl.constexpr, PADDED: tl.constexpr):
    """Quantise fp32 [len(at), COLUMNS] between each group's least and largest value, and store it as `load_int4` reads.

    PADDED: columns are as `in_eighths` has them. A row has 1, 2, 4 or 8 groups. Each pair is rounded to fp16 before it
    is used, so that what is read is as near as 4 bits can be.
    """
    grouped = values.reshape(at.shape[0], MOST_GROUPS, COLUMNS // MOST_GROUPS)
    low_of, high_of = grouped, grouped
    if PADDED:
        known = (tl.arange(0, COLUMNS // MOST_GROUPS) < head_dim // MOST_GROUPS)[None, None, :]
        low_of, high_of = tl.where(known, grouped, float("inf")), tl.where(known, grouped, float("-inf"))
    least, largest = -_largest_of_groups(-tl.min(low_of, 2), groups), _largest_of_groups(tl.max(high_of, 2), groups)
    shift = least.to(tl.float16)
    factor = scale_of(largest - shift.to(tl.float32), 15.0).to(tl.float16)
    divisor = tl.where(factor == 0, 1.0, factor.to(tl.float32))
    above = grouped - shift.to(tl.float32)[:, :, None]
    steps = quotient(above, divisor[:, :, None])
    nibbles = tl.minimum(tl.maximum(steps + 0.5, 0.0), 15.0).to(tl.uint8)
    low, high = tl.split(nibbles.reshape(at.shape[0], COLUMNS // 2, 2))
    eighth = tl.arange(0, MOST_GROUPS)
    pair = pairs[:, None] + 2 * (eighth * groups // MOST_GROUPS)[None, :]
    first = present[:, None] & (eighth * groups % MOST_GROUPS == 0)[None, :]
    tl.store(pair, factor, first)
    tl.store(pair + 1, shift, first)
    byte = in_eighths(head_dim // 2, COLUMNS // 2) if PADDED else tl.arange(0, COLUMNS // 2)
    stored = present[:, None] & (byte < head_dim // 2)[None, :] if PADDED else present[:, None]
    tl.store(rows + at[:, None] + byte[None, :], low | (high << 4), stored)


@triton.jit
def _largest_of_groups(x, groups):
    """x [rows, MOST_GROUPS], a number for each eighth of a row, replaced by the largest of its group's eighths."""
    for halvings in tl.static_range(1, 4):
        joined = tl.max(x.reshape(x.shape[0], MOST_GROUPS >> halvings, 1 << halvings), 2)[:, :, None]
        joined = tl.broadcast_to(joined, (x.shape[0], MOST_GROUPS >> halvings, 1 << halvings)).reshape(x.shape)
        x = tl.where(groups <= MOST_GROUPS >> halvings, joined, x)
    return x
