"""Tiles of a cache for `hopper`: how they lie in registers, from loads of whole rows to operands of the matrix units.

A warp has KEYS keys of its own. Four lanes share a key of K, eight lanes one of V. What a product sums over may come in
any order that both operands have: so each lane has what it loaded, in the order that the products want, and nothing
moves between lanes or through shared memory. Columns of queries and rows of results are reordered instead, once.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.tensors import HeadRows, Heads
from kernels.decode.cache import BlockTables

PIECE = gl.constexpr(16)
"""Keys that lie in one block of a cache."""


class Cache(NamedTuple):
    """K, V, and the (factor, shift) pairs of each if it has 4 bits a number."""

    k: Heads
    v: Heads
    k_pairs: HeadRows
    v_pairs: HeadRows


class Tile(NamedTuple):
    """Words of K and V, int32 [warps, KEYS, ..], and of 4-bit numbers their (factor, shift) pairs, else 0."""

    k: gl.tensor
    k_pairs: gl.tensor
    v: gl.tensor
    v_pairs: gl.tensor


class Place(NamedTuple):
    """Where a cache is read. batch, head_kv: of the sequence. last: its last key, which stands for those past it."""

    batch: gl.tensor
    head_kv: gl.tensor
    last: gl.tensor
    tables: BlockTables


@gluon.constexpr_function
def bits(begin, end):
    """Powers of two from begin to below end."""
    return [1 << i for i in range(end.bit_length()) if begin <= 1 << i < end]


@gluon.constexpr_function
def k_layout(warps, keys, words, chunk):
    """Of [warps, keys, words]: four lanes share a key, each with chunks of words."""
    registers = [[0, 0, b] for b in bits(1, chunk) + bits(4 * chunk, words)] + [[0, b, 0] for b in bits(8, keys)]
    lanes = [[0, 0, chunk], [0, 0, 2 * chunk], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[b, 0, 0] for b in bits(1, warps)], [], [warps, keys, words])


@gluon.constexpr_function
def v_layout(warps, keys, words, chunk):
    """Of [warps, keys, words]: eight lanes share a key, each with chunks of words; a lane has neighbours of keys."""
    registers = [[0, 0, b] for b in bits(1, chunk)] + [[0, 1, 0]]
    registers += [[0, 0, b] for b in bits(8 * chunk, words)] + [[0, b, 0] for b in bits(8, keys)]
    lanes = [[0, 2, 0], [0, 4, 0], [0, 0, chunk], [0, 0, 2 * chunk], [0, 0, 4 * chunk]]
    return gl.DistributedLinearLayout(registers, lanes, [[b, 0, 0] for b in bits(1, warps)], [], [warps, keys, words])


@gluon.constexpr_function
def spread_layout(layout):
    """Of [warps, keys / PIECE, PIECE]: that of the keys of a layout of [warps, keys, words]."""

    def keys(bases):
        return [[warp, key // 16, key % 16] for warp, key, _ in bases]

    warps, count, _ = layout.shape
    registers = [basis for basis in keys(layout.reg_bases) if any(basis)]
    return gl.DistributedLinearLayout(
        registers, keys(layout.lane_bases), keys(layout.warp_bases), [], [warps, count // 16, 16]
    )


@gluon.constexpr_function
def pieces_layout(layout, pieces):
    """A layout of [warps, keys, words] as one of [warps, keys, pieces, words of a piece]."""
    warps, keys, words = layout.shape
    size = words // pieces

    def split(bases):
        return [[warp, key, word // size, word % size] for warp, key, word in bases]

    return gl.DistributedLinearLayout(
        split(layout.reg_bases), split(layout.lane_bases), split(layout.warp_bases), [], [warps, keys, pieces, size]
    )


@gluon.constexpr_function
def pairs_layout(layout, pieces):
    """`pieces_layout` without the words of a piece."""
    warps, keys, words = layout.shape
    size = words // pieces

    def drop(bases):
        return [[warp, key, word // size] for warp, key, word in bases]

    registers = [basis for basis in drop(layout.reg_bases) if any(basis)]
    return gl.DistributedLinearLayout(
        registers, drop(layout.lane_bases), drop(layout.warp_bases), [], [warps, keys, pieces]
    )


@gluon.constexpr_function
def k_pieces(groups):
    """Pieces of a row of K that have pairs of their own, each of one lane; or the row, if that is one group."""
    return 1 if groups == 1 else max(4, groups)


# Loads


@gluon.jit
def find_blocks(place: Place, start, KEYS: gl.constexpr):
    """[warps, KEYS / PIECE]: which blocks the keys from `start` on are in; 0 of a cache that has none."""
    if place.tables.ptr is None:
        return 0
    else:
        first = first_of_pieces(place, start, KEYS, k_layout(gl.num_warps(), KEYS, 16, 4))
        table = place.tables.ptr + place.batch * place.tables.stride_batch
        blocks = gl.load(table + first // place.tables.block_size)
        return gl.minimum(gl.maximum(blocks, 0), place.tables.blocks - 1)


@gluon.jit
def load_tile(
    cache: Cache, place: Place, start, blocks,
    HEAD_DIM: gl.constexpr, KEYS: gl.constexpr, GROUPS: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """The Tile of keys from `start` on; blocks: what `find_blocks` found for them. WHOLE: `at_whole_words`."""
    WORDS: gl.constexpr = HEAD_DIM // 8 if GROUPS else HEAD_DIM // 2
    K_CHUNK: gl.constexpr = WORDS // 4 if GROUPS else 4
    V_CHUNK: gl.constexpr = WORDS // 8 if GROUPS else 4
    K: gl.constexpr = k_layout(gl.num_warps(), KEYS, WORDS, K_CHUNK)
    V: gl.constexpr = v_layout(gl.num_warps(), KEYS, WORDS, V_CHUNK)
    k_words = load_words(cache.k, place, start, blocks, WORDS, KEYS, K_CHUNK, 4, K)
    v_words = load_words(cache.v, place, start, blocks, WORDS, KEYS, V_CHUNK, 8, V)
    if GROUPS:
        k_pairs = load_pairs(cache.k_pairs, place, start, blocks, KEYS, GROUPS, k_pieces(GROUPS), WHOLE, K)
        v_pairs = load_pairs(cache.v_pairs, place, start, blocks, KEYS, GROUPS, 8, WHOLE, V)
        return Tile(k_words, k_pairs, v_words, v_pairs)
    else:
        return Tile(k_words, 0, v_words, 0)


@gluon.jit
def load_words(
    x: Heads, place: Place, start, blocks, WORDS: gl.constexpr, KEYS: gl.constexpr, CHUNK: gl.constexpr,
    LANES: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """int32 [warps, KEYS, WORDS] of the rows of keys from `start` on: LANES lanes have CHUNK words each of a row, and
    again."""
    words = gl.arange(0, WORDS, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]
    own = words & (LANES - 1) * CHUNK  # of a lane; what is left are offsets that loads know
    pointers = rows_from(x, place, start, blocks, 4 * own, KEYS, LAYOUT) + (words - own)
    return gl.load(gl.max_contiguous(gl.multiple_of(pointers, [1, 1, 4 * CHUNK]), [1, 1, CHUNK]))


@gluon.jit
def load_pairs(
    x: HeadRows, place: Place, start, blocks, KEYS: gl.constexpr, GROUPS: gl.constexpr, PIECES: gl.constexpr,
    WHOLE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """(factor, shift) pairs of pieces of the rows of keys from `start` on, as int32 [warps, KEYS, PIECES]."""
    PAIRS: gl.constexpr = pairs_layout(LAYOUT, PIECES)
    group = gl.arange(0, PIECES, layout=gl.SliceLayout(0, gl.SliceLayout(1, PAIRS)))[None, None, :] * GROUPS // PIECES
    pointers = rows_from(x, place, start, blocks, 4 * group, KEYS, PAIRS)
    if WHOLE:
        return gl.load(pointers)
    else:
        halves = pointers.to(gl.pointer_type(gl.uint16), bitcast=True)
        return gl.load(halves).to(gl.int32) | (gl.load(halves + 1).to(gl.int32) << 16)


@gluon.jit
def at_whole_words(pairs: HeadRows):
    """Whether all (factor, shift) pairs are at multiples of 4 bytes."""
    strides = (pairs.stride_batch | pairs.stride_heads | pairs.stride_rows).to(gl.int64)
    return (pairs.ptr.to(gl.int64) | 2 * strides) % 4 == 0


@gluon.jit
def rows_from(x, place: Place, start, blocks, columns, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """Pointers to words [warps, KEYS, ..]: `columns` bytes on from the rows of keys from `start` on, in x, which is
    Heads or HeadRows."""
    SIZE: gl.constexpr = x.ptr.dtype.element_ty.primitive_bitwidth // 8
    stride = (x.stride_rows * SIZE).to(gl.int32)
    head = x.ptr + place.head_kv.to(gl.int64) * x.stride_heads
    if place.tables.ptr is None:
        head += place.batch.to(gl.int64) * x.stride_batch
        rows = gl.minimum(keys_of(start, KEYS, LAYOUT), place.last)
        begin = head.to(gl.int64) + columns
    else:
        first = first_of_pieces(place, start, KEYS, LAYOUT)
        blocks = gl.convert_layout(blocks, first.type.layout, assert_trivial=True).to(gl.int64)
        pieces = multiply_add(first % place.tables.block_size, stride, blocks * (x.stride_batch.to(gl.int64) * SIZE))
        rows = gl.minimum(keys_of(0, KEYS, LAYOUT) % PIECE, spread(place.last - first, KEYS, LAYOUT))
        begin = head.to(gl.int64) + columns + spread(pieces, KEYS, LAYOUT)[:, :, None]
    return multiply_add(rows[:, :, None], stride, begin).to(gl.pointer_type(gl.int32))


@gluon.jit
def multiply_add(a, b, c):
    """a * b + c, of 32 bits each but c, which has 64: one instruction."""
    return gl.inline_asm_elementwise(
        "mad.wide.s32 $0, $1, $2, $3;", "=l,r,r,l", [a, b, c], dtype=gl.int64, is_pure=True, pack=1
    )


@gluon.jit
def first_of_pieces(place: Place, start, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """[warps, KEYS / PIECE]: the first key of each piece; past the last piece that."""
    SPREAD: gl.constexpr = gl.SliceLayout(2, spread_layout(LAYOUT))
    warp = gl.arange(0, gl.num_warps(), layout=gl.SliceLayout(1, SPREAD))
    piece = gl.arange(0, KEYS // PIECE, layout=gl.SliceLayout(0, SPREAD))
    return gl.minimum(start + warp[:, None] * KEYS + piece[None, :] * PIECE, place.last // PIECE * PIECE)


@gluon.jit
def spread(x, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """[warps, KEYS], LAYOUT without its last dim: a number for each piece of keys as one for each key."""
    shape: gl.constexpr = [gl.num_warps(), KEYS // PIECE, PIECE]
    x = x[:, :, None].broadcast_to(shape).reshape([gl.num_warps(), KEYS])
    return gl.convert_layout(x, gl.SliceLayout(2, LAYOUT), assert_trivial=True)


@gluon.jit
def keys_of(start, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """[warps, KEYS]: the keys from `start` on, LAYOUT without its last dim."""
    ROWS: gl.constexpr = gl.SliceLayout(2, LAYOUT)
    warp = gl.arange(0, gl.num_warps(), layout=gl.SliceLayout(1, ROWS))
    return start + warp[:, None] * KEYS + gl.arange(0, KEYS, layout=gl.SliceLayout(0, ROWS))[None, :]


# Operands


@gluon.jit
def k_operand(tile: Tile, DTYPE: gl.constexpr, GROUPS: gl.constexpr, OPERAND: gl.constexpr):
    """K [warps, KEYS, HEAD_DIM] as a left operand of DTYPE; columns are as `in_order_of_k` has them."""
    W: gl.constexpr = tile.k.shape[0]
    N: gl.constexpr = tile.k.shape[1]
    if GROUPS:
        if GROUPS == 1:
            x0, x1, x2, x3 = unpack(tile.k, tile.k, 0, 0, "0x3210", False)
        else:
            SPLIT: gl.constexpr = pieces_layout(tile.k.type.layout, k_pieces(GROUPS))
            words = gl.convert_layout(tile.k.reshape(SPLIT.shape), SPLIT, assert_trivial=True)
            pairs = gl.convert_layout(tile.k_pairs, gl.SliceLayout(3, SPLIT), assert_trivial=True)[:, :, :, None]
            x0, x1, x2, x3 = unpack(words, words, pairs, pairs, "0x3210", True)
        x = gl.join(gl.join(x0, x1), gl.join(x2, x3)).reshape([W, N, 4, tile.k.shape[2] // 4, 2, 2])
        # lane, word, nibble of a half (2) -> word, nibble, lane, half
        x = gl.join(x, x).permute((0, 1, 3, 5, 4, 2, 6)).reshape([W, N, 8 * tile.k.shape[2]])
    else:
        # chunk, lane, word -> chunk, word, lane, half
        x = tile.k.reshape([W, N, tile.k.shape[2] // 16, 4, 4])
        x = gl.join(x, x).permute((0, 1, 2, 4, 3, 5)).reshape([W, N, 2 * tile.k.shape[2]])
    return as_numbers(gl.convert_layout(x, OPERAND, assert_trivial=True), DTYPE)


@gluon.jit
def v_operand(tile: Tile, DTYPE: gl.constexpr, GROUPS: gl.constexpr, OPERAND: gl.constexpr):
    """V [warps, HEAD_DIM, KEYS] as a left operand of DTYPE; rows are as `in_order` undoes."""
    W: gl.constexpr = tile.v.shape[0]
    N: gl.constexpr = tile.v.shape[1]
    J: gl.constexpr = tile.v.shape[2] // 8 if GROUPS else 4
    C: gl.constexpr = tile.v.shape[2] // 8 // J
    a, b = tile.v.reshape([W, N // 2, 2, C, 8, J]).permute((0, 1, 3, 4, 5, 2)).split()
    if GROUPS:
        pairs_a, pairs_b = tile.v_pairs.reshape([W, N // 2, 2, 8]).permute((0, 1, 3, 2)).split()
        a, b = a.reshape([W, N // 2, 8, J]), b.reshape([W, N // 2, 8, J])
        pairs_a = gl.convert_layout(pairs_a, gl.SliceLayout(3, a.type.layout), assert_trivial=True)[:, :, :, None]
        pairs_b = gl.convert_layout(pairs_b, gl.SliceLayout(3, a.type.layout), assert_trivial=True)[:, :, :, None]
        x0, x1, x2, x3 = unpack(a, b, pairs_a, pairs_b, "0x5410", True)
        x4, x5, x6, x7 = unpack(a, b, pairs_a, pairs_b, "0x7632", True)
        x = gl.join(gl.join(gl.join(x0, x1), gl.join(x2, x3)), gl.join(gl.join(x4, x5), gl.join(x6, x7)))
        # pair of keys, lane, word, number (3) -> word, number, lane, pair, key
        x = gl.join(x, x).permute((0, 3, 6, 5, 4, 2, 1, 7)).reshape([W, 64 * J, N])
    else:
        x = gl.join(halves(a, b, "0x5410"), halves(a, b, "0x7632"))
        # pair of keys, chunk, lane, word, half -> chunk, word, half, lane, pair, key
        x = gl.join(x, x).permute((0, 2, 4, 5, 3, 1, 6)).reshape([W, 64 * C, N])
    return as_numbers(gl.convert_layout(x, OPERAND, assert_trivial=True), DTYPE)


@gluon.jit
def halves(a, b, SELECTED: gl.constexpr):
    """Two halves of the words a and b, as the selector of PTX's prmt has it."""
    ASM: gl.constexpr = "prmt.b32 $0, $1, $2, " + SELECTED + ";"
    return gl.inline_asm_elementwise(ASM, "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1)


@gluon.constexpr_function
def unpacking(selected, scaled):
    """PTX that makes $0 to $3 of the words $4 and $5 and, if scaled, the pairs $6 and $7."""
    scaling = """
        prmt.b32 factor, $6, $7, 0x5410;
        prmt.b32 shift, $6, $7, 0x7632;
        fma.rn.f16x2 $0, $0, factor, shift;
        fma.rn.f16x2 $1, $1, factor, shift;
        fma.rn.f16x2 $2, $2, factor, shift;
        fma.rn.f16x2 $3, $3, factor, shift;
    """
    return f"""
        {{
        .reg .b32 x, one, sixteenth, minus, factor, shift;
        mov.b32 one, 0x64006400;
        mov.b32 sixteenth, 0x2c002c00;
        mov.b32 minus, 0xd400d400;
        prmt.b32 x, $4, $5, {selected};
        lop3.b32 $0, x, 0x000f000f, one, 0xea;
        lop3.b32 $1, x, 0x00f000f0, one, 0xea;
        shr.u32 x, x, 8;
        lop3.b32 $2, x, 0x000f000f, one, 0xea;
        lop3.b32 $3, x, 0x00f000f0, one, 0xea;
        sub.rn.f16x2 $0, $0, one;
        fma.rn.f16x2 $1, $1, sixteenth, minus;
        sub.rn.f16x2 $2, $2, one;
        fma.rn.f16x2 $3, $3, sixteenth, minus;
        {scaling if scaled else ""}
        }}
    """


@gluon.jit
def unpack(a, b, pairs_a, pairs_b, SELECTED: gl.constexpr, SCALED: gl.constexpr):
    """Pairs of float16 numbers, as int32, of the nibbles 0 to 3 of two halves of words, as `halves` selects them;
    SCALED: times the factor of their word, plus its shift.

    The bits of 1024 + n in float16 are those of 1024, and n: that needs no conversion. What stands 4 bits higher in the
    word may stay there: these are the bits of 1024 + 16 n.
    """
    ASM: gl.constexpr = unpacking(SELECTED, SCALED)
    return gl.inline_asm_elementwise(
        ASM, "=&r,=&r,=&r,=&r,r,r,r,r", [a, b, pairs_a, pairs_b],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def as_numbers(x, DTYPE: gl.constexpr):
    """Numbers of 16 bits, of which each two neighbours, that a lane has, hold both in the same word."""
    if gl.bfloat16 == DTYPE:
        return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2)
    else:
        return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [x], dtype=gl.float16, is_pure=True, pack=2)


@gluon.jit
def scaled_by_pairs(products, sums, pairs):
    """Products with keys, of products [warps, KEYS, rows] with the numbers that K has and its pairs [warps, KEYS, 1].
    sums: of the queries' columns, [1, 1, rows]."""
    LAYOUT: gl.constexpr = gl.SliceLayout(2, products.type.layout)
    pairs = gl.convert_layout(pairs.reshape([pairs.shape[0], pairs.shape[1]]), LAYOUT, assert_trivial=True)[:, :, None]
    factor = pairs.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    shift = (pairs >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return products * factor + sums * shift


# What is in the order of the operands


@gluon.jit
def in_order_of_k(q, GROUPS: gl.constexpr):
    """Queries [rows, HEAD_DIM] with columns as K's operand has them."""
    M: gl.constexpr = q.shape[0]
    D: gl.constexpr = q.shape[1]
    if GROUPS:  # lane, word, half, nibble of a half
        return q.reshape([M, 4, D // 32, 2, 4]).permute((0, 2, 4, 1, 3)).reshape([M, D])
    else:  # chunk, lane, word, half
        return q.reshape([M, D // 32, 4, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([M, D])


@gluon.jit
def in_order(acc, GROUPS: gl.constexpr):
    """A result [HEAD_DIM, rows], whose rows are as V's operand has them, as [rows, HEAD_DIM] in order."""
    D: gl.constexpr = acc.shape[0]
    M: gl.constexpr = acc.shape[1]
    if GROUPS:  # word, number of a word, lane
        return acc.reshape([D // 64, 8, 8, M]).permute((3, 2, 0, 1)).reshape([M, D])
    else:  # chunk, number of a chunk, lane
        return acc.reshape([D // 64, 8, 8, M]).permute((3, 0, 2, 1)).reshape([M, D])
