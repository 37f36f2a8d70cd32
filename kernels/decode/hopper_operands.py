"""Operands of the matrix units for `hopper`, made of what its lanes loaded.

What a product sums over may come in any order that both operands have. So each lane has the numbers that it loaded, in
an order that suits the products, and nothing moves between lanes; columns of queries and rows of results are put in
order instead, once.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.decode.hopper_cache import Tile


@gluon.jit
def k_operand(tile: Tile, DTYPE: gl.constexpr, GROUPS: gl.constexpr, OPERAND: gl.constexpr):
    """K [warps, KEYS, HEAD_DIM] as a left operand of DTYPE; columns are as `in_order_of_k` has them."""
    W: gl.constexpr = tile.k.shape[0]
    N: gl.constexpr = tile.k.shape[1]
    if GROUPS:
        if GROUPS == 1:
            x0, x1, x2, x3 = unpack(tile.k, tile.k, 0, 0, "0x3210", False)
        else:
            pairs = for_words(tile.k_pairs, tile.k.shape[2], tile.k.type.layout)
            x0, x1, x2, x3 = unpack(tile.k, tile.k, pairs, pairs, "0x3210", True)
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
        pairs = for_words(tile.v_pairs, tile.v.shape[2], tile.v.type.layout)
        pairs_a, pairs_b = pairs.reshape([W, N // 2, 2, C, 8, J]).permute((0, 1, 3, 4, 5, 2)).split()
        x0, x1, x2, x3 = unpack(a, b, pairs_a, pairs_b, "0x5410", True)
        x4, x5, x6, x7 = unpack(a, b, pairs_a, pairs_b, "0x7632", True)
        x = gl.join(gl.join(gl.join(x0, x1), gl.join(x2, x3)), gl.join(gl.join(x4, x5), gl.join(x6, x7)))
        # pair of keys, 1, lane, word, number (3) -> 1, word, number, lane, pair, key
        x = gl.join(x, x).permute((0, 2, 4, 7, 6, 5, 3, 1, 8)).reshape([W, 64 * J, N])
    else:
        x = gl.join(halves(a, b, "0x5410"), halves(a, b, "0x7632"))
        # pair of keys, chunk, lane, word, half -> chunk, word, half, lane, pair, key
        x = gl.join(x, x).permute((0, 2, 4, 5, 3, 1, 6)).reshape([W, 64 * C, N])
    return as_numbers(gl.convert_layout(x, OPERAND, assert_trivial=True), DTYPE)


@gluon.constexpr_function
def groups_layout(layout, groups):
    """A layout of [warps, keys, words] as one of [warps, keys, groups, words of a group]."""
    warps, keys, words = layout.shape
    size = words // groups

    def split(bases):
        return [[warp, key, word // size, word % size] for warp, key, word in bases]

    return gl.DistributedLinearLayout(
        split(layout.reg_bases), split(layout.lane_bases), split(layout.warp_bases), [], [warps, keys, groups, size]
    )


@gluon.jit
def for_words(pairs, WORDS: gl.constexpr, LAYOUT: gl.constexpr):
    """The pair of each word, in LAYOUT, of pairs [warps, KEYS, groups]."""
    GROUPS: gl.constexpr = pairs.shape[2]
    SPLIT: gl.constexpr = groups_layout(LAYOUT, GROUPS)
    pairs = gl.convert_layout(pairs, gl.SliceLayout(3, SPLIT), assert_trivial=True)[:, :, :, None]
    pairs = pairs.broadcast_to(SPLIT.shape).reshape([pairs.shape[0], pairs.shape[1], WORDS])
    return gl.convert_layout(pairs, LAYOUT, assert_trivial=True)


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
