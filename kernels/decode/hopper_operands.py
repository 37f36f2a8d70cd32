"""Operands of the matrix units for `hopper`, made of what its lanes loaded.

What a product sums over may come in any order that both operands have. So each lane has the numbers that it loaded, in
an order that suits the products, and nothing moves between lanes; columns of queries and rows of results are put in
order instead, once.

NUMBERS is the type of a cache's elements: one of 16 bits, int8, a float8, or uint8, which holds two numbers of 4 bits.
Those of 4 bits stay where they are in a word, and masks make them operands: n in the lowest bits of a float16 is
n * 2 ** -24, and 4 bits higher it is n * 2 ** -20, which queries and results of these columns make up for.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.decode.hopper_cache import Tile, bits_of, chunk_of

LOWEST = gl.constexpr(2.0**-24)
"""What a number of 4 bits is in units of, in an operand."""


@gluon.jit
def k_operand(tile: Tile, DTYPE: gl.constexpr, NUMBERS: gl.constexpr, OPERAND: gl.constexpr):
    """K [warps, KEYS, HEAD_DIM] as a left operand of DTYPE; columns are as `in_order_of_k` has them."""
    BITS: gl.constexpr = bits_of(NUMBERS)
    W: gl.constexpr = tile.k.shape[0]
    N: gl.constexpr = tile.k.shape[1]
    J: gl.constexpr = chunk_of(tile.k.shape[2], 4)
    words = tile.k.reshape([W, N, tile.k.shape[2] // (4 * J), 4, J])
    # chunk, lane, word, pair of numbers -> chunk, word, pair, lane, number of the pair
    if BITS == 16:
        x = gl.join(words, words).permute((0, 1, 2, 4, 3, 5))
    elif BITS == 8:
        x0, x1 = widen(words, NUMBERS)
        x = gl.join(x0, x1)
        x = gl.join(x, x).permute((0, 1, 2, 4, 5, 3, 6))
    else:
        x0, x1, x2, x3 = nibbles(words)
        x = gl.join(gl.join(x0, x1), gl.join(x2, x3))
        x = gl.join(x, x).permute((0, 1, 2, 4, 6, 5, 3, 7))
    x = x.reshape([W, N, 32 // BITS * tile.k.shape[2]])
    return as_numbers(gl.convert_layout(x, OPERAND, assert_trivial=True), DTYPE)


@gluon.jit
def v_operand(tile: Tile, DTYPE: gl.constexpr, NUMBERS: gl.constexpr, OPERAND: gl.constexpr):
    """V [warps, HEAD_DIM, KEYS] as a left operand of DTYPE; rows are as `in_order` undoes."""
    BITS: gl.constexpr = bits_of(NUMBERS)
    W: gl.constexpr = tile.v.shape[0]
    N: gl.constexpr = tile.v.shape[1]
    J: gl.constexpr = chunk_of(tile.v.shape[2], 8)
    C: gl.constexpr = tile.v.shape[2] // 8 // J
    a, b = tile.v.reshape([W, N // 2, 2, C, 8, J]).permute((0, 1, 3, 4, 5, 2)).split()
    # pair of keys, chunk, lane, word, number -> chunk, word, number, lane, pair, key
    if BITS == 16:
        x = gl.join(selected(a, b, "0x5410"), selected(a, b, "0x7632"))
        x = gl.join(x, x).permute((0, 2, 4, 5, 3, 1, 6))
    elif BITS == 8:
        x0, x1 = widen(selected(a, b, "0x5140"), NUMBERS)
        x2, x3 = widen(selected(a, b, "0x7362"), NUMBERS)
        x = gl.join(gl.join(x0, x1), gl.join(x2, x3))
        x = gl.join(x, x).permute((0, 2, 4, 6, 5, 3, 1, 7))
    else:
        x0, x1, x2, x3 = nibbles(selected(a, b, "0x5410"))
        x4, x5, x6, x7 = nibbles(selected(a, b, "0x7632"))
        x = gl.join(gl.join(gl.join(x0, x1), gl.join(x2, x3)), gl.join(gl.join(x4, x5), gl.join(x6, x7)))
        x = gl.join(x, x).permute((0, 2, 4, 7, 6, 5, 3, 1, 8))
    x = x.reshape([W, 32 // BITS * tile.v.shape[2], N])
    return as_numbers(gl.convert_layout(x, OPERAND, assert_trivial=True), DTYPE)


@gluon.jit
def selected(a, b, SELECTED: gl.constexpr):
    """Bytes of the words a and b, as the selector of PTX's prmt has it."""
    ASM: gl.constexpr = "prmt.b32 $0, $1, $2, " + SELECTED + ";"
    return gl.inline_asm_elementwise(ASM, "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def nibbles(x):
    """The nibbles 0 to 3 of both halves of words, in units of LOWEST, the odd ones of 16 times that."""
    y = x >> 8
    return x & 0x000F000F, x & 0x00F000F0, y & 0x000F000F, y & 0x00F000F0


@gluon.constexpr_function
def widening(numbers):
    """PTX that makes two pairs of float16, $0 and $1, of the four numbers of 8 bits in $2."""
    if numbers == gl.int8:
        # The bits of 1024 + n in float16 are those of 1024, and n: that needs no conversion.
        return """
            {
            .reg .b32 x, high, least;
            mov.b32 high, 0x64646464;
            mov.b32 least, 0x64806480;
            xor.b32 x, $2, 0x80808080;
            prmt.b32 $0, x, high, 0x4140;
            prmt.b32 $1, x, high, 0x4342;
            sub.rn.f16x2 $0, $0, least;
            sub.rn.f16x2 $1, $1, least;
            }
        """
    kind = "e4m3x2" if numbers == gl.float8e4nv else "e5m2x2"
    return f"""
        {{
        .reg .b16 low, high;
        mov.b32 {{low, high}}, $2;
        cvt.rn.f16x2.{kind} $0, low;
        cvt.rn.f16x2.{kind} $1, high;
        }}
    """


@gluon.jit
def widen(x, NUMBERS: gl.constexpr):
    """(numbers 0 and 1, numbers 2 and 3) of words of four numbers of 8 bits, as pairs of float16."""
    ASM: gl.constexpr = widening(NUMBERS)
    return gl.inline_asm_elementwise(
        ASM, "=&r,=&r,r", [x], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )  # fmt: skip


@gluon.jit
def as_numbers(x, DTYPE: gl.constexpr):
    """Numbers of 16 bits, of which each two neighbours, that a lane has, hold both in the same word."""
    if gl.bfloat16 == DTYPE:
        return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2)
    else:
        return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [x], dtype=gl.float16, is_pure=True, pack=2)


@gluon.jit
def factors_of(words, NUMBERS: gl.constexpr, LAYOUT: gl.constexpr):
    """(factor, shift) of each key, fp32 [warps, KEYS, 1], of what a Tile has; of 8 bits the shift is 0."""
    words = gl.convert_layout(words.reshape([words.shape[0], words.shape[1]]), LAYOUT, assert_trivial=True)[:, :, None]
    if bits_of(NUMBERS) == 8:
        return words.to(gl.float32, bitcast=True), 0.0
    else:
        factor = words.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
        return factor, (words >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)


# What is in the order of the operands


@gluon.jit
def in_order_of_k(q, NUMBERS: gl.constexpr):
    """Queries [rows, HEAD_DIM] with columns as K's operand has them."""
    M: gl.constexpr = q.shape[0]
    D: gl.constexpr = q.shape[1]
    PAIRS: gl.constexpr = 16 // bits_of(NUMBERS)
    J: gl.constexpr = chunk_of(D // (2 * PAIRS), 4)
    C: gl.constexpr = D // (8 * PAIRS * J)
    if PAIRS == 4:  # chunk, lane, word, half, nibble of a half
        q = q.reshape([M, C, 4, J, 2, PAIRS]).permute((0, 1, 3, 5, 2, 4))
    else:  # chunk, lane, word, pair, number of the pair
        q = q.reshape([M, C, 4, J, PAIRS, 2]).permute((0, 1, 3, 4, 2, 5))
    return q.reshape([M, D])


@gluon.jit
def in_order(acc, NUMBERS: gl.constexpr):
    """A result [HEAD_DIM, rows], whose rows are as V's operand has them, as [rows, HEAD_DIM] in order."""
    D: gl.constexpr = acc.shape[0]
    M: gl.constexpr = acc.shape[1]
    PER_WORD: gl.constexpr = 32 // bits_of(NUMBERS)
    OWN: gl.constexpr = chunk_of(D // PER_WORD, 8) * PER_WORD
    # chunk, number of a chunk, lane
    return acc.reshape([D // (8 * OWN), OWN, 8, M]).permute((3, 0, 2, 1)).reshape([M, D])
