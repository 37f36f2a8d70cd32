"""Make operands of the matrix units for `hopper` from the words that its lanes loaded.

The terms of a product may be summed in any order, as long as both operands use the same one. So each lane keeps the
values that it loaded, and nothing moves between lanes. Instead, columns of queries and rows of results are reordered
once.

CACHE_DTYPE is the dtype of a cache's elements: one of 16 bits, int8, a float8, or uint8, which holds two values of 4
bits. 4-bit values stay where they are in a word, and are masked to make operands: n in the lowest bits of a float16 is
n * 2 ** -24, and 4 bits higher it is n * 2 ** -20. Queries and results of these columns are scaled to compensate.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.decode.hopper_cache import CacheTile, bits_of, chunk_of

LOWEST = gl.constexpr(2.0**-24)
"""Unit of a 4-bit value in an operand."""


@gluon.jit
def k_operand(tile: CacheTile, DTYPE: gl.constexpr, CACHE_DTYPE: gl.constexpr, OPERAND: gl.constexpr):
    """Make a left operand of DTYPE of K [warps, KEYS, HEAD_DIM], with columns in the order of `in_order_of_k`."""
    BITS: gl.constexpr = bits_of(CACHE_DTYPE)
    W: gl.constexpr = tile.k.shape[0]
    N: gl.constexpr = tile.k.shape[1]
    J: gl.constexpr = chunk_of(tile.k.shape[2], 4)
    words = tile.k.reshape([W, N, tile.k.shape[2] // (4 * J), 4, J])
    # chunk, lane, word, pair of values -> chunk, word, pair, lane, value of the pair
    if BITS == 16:
        x = gl.join(words, words).permute((0, 1, 2, 4, 3, 5))
    elif BITS == 8:
        x0, x1 = widen(words, CACHE_DTYPE)
        x = gl.join(x0, x1)
        x = gl.join(x, x).permute((0, 1, 2, 4, 5, 3, 6))
    else:
        x0, x1, x2, x3 = nibbles(words)
        x = gl.join(gl.join(x0, x1), gl.join(x2, x3))
        x = gl.join(x, x).permute((0, 1, 2, 4, 6, 5, 3, 7))
    x = x.reshape([W, N, 32 // BITS * tile.k.shape[2]])
    return as_values(gl.convert_layout(x, OPERAND, assert_trivial=True), DTYPE)


@gluon.jit
def v_operand(tile: CacheTile, DTYPE: gl.constexpr, CACHE_DTYPE: gl.constexpr, OPERAND: gl.constexpr):
    """Make a left operand of DTYPE of V [warps, HEAD_DIM, KEYS], with rows in an order that `in_order` undoes."""
    BITS: gl.constexpr = bits_of(CACHE_DTYPE)
    W: gl.constexpr = tile.v.shape[0]
    N: gl.constexpr = tile.v.shape[1]
    J: gl.constexpr = chunk_of(tile.v.shape[2], 8)
    C: gl.constexpr = tile.v.shape[2] // 8 // J
    a, b = tile.v.reshape([W, N // 2, 2, C, 8, J]).permute((0, 1, 3, 4, 5, 2)).split()
    # pair of keys, chunk, lane, word, value -> chunk, word, value, lane, pair, key
    if BITS == 16:
        x = gl.join(selected(a, b, "0x5410"), selected(a, b, "0x7632"))
        x = gl.join(x, x).permute((0, 2, 4, 5, 3, 1, 6))
    elif BITS == 8:
        x0, x1 = widen(selected(a, b, "0x5140"), CACHE_DTYPE)
        x2, x3 = widen(selected(a, b, "0x7362"), CACHE_DTYPE)
        x = gl.join(gl.join(x0, x1), gl.join(x2, x3))
        x = gl.join(x, x).permute((0, 2, 4, 6, 5, 3, 1, 7))
    else:
        x0, x1, x2, x3 = nibbles(selected(a, b, "0x5410"))
        x4, x5, x6, x7 = nibbles(selected(a, b, "0x7632"))
        x = gl.join(gl.join(gl.join(x0, x1), gl.join(x2, x3)), gl.join(gl.join(x4, x5), gl.join(x6, x7)))
        x = gl.join(x, x).permute((0, 2, 4, 7, 6, 5, 3, 1, 8))
    x = x.reshape([W, 32 // BITS * tile.v.shape[2], N])
    return as_values(gl.convert_layout(x, OPERAND, assert_trivial=True), DTYPE)


@gluon.jit
def selected(a, b, SELECTED: gl.constexpr):
    """Select bytes of the words a and b by PTX's prmt."""
    ASM: gl.constexpr = "prmt.b32 $0, $1, $2, " + SELECTED + ";"
    return gl.inline_asm_elementwise(ASM, "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def nibbles(x):
    """Return nibbles 0 to 3 of both halves of words, in units of LOWEST; the odd ones are 16 times larger."""
    y = x >> 8
    return x & 0x000F000F, x & 0x00F000F0, y & 0x000F000F, y & 0x00F000F0


@gluon.constexpr_function
def widening(dtype):
    """PTX that makes two pairs of float16, $0 and $1, of the four 8-bit values in $2."""
    if dtype == gl.int8:
        # The bits of 1024 + n in float16 are those of 1024 plus n, so no conversion is needed.
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
    kind = "e4m3x2" if dtype == gl.float8e4nv else "e5m2x2"
    return f"""
        {{
        .reg .b16 low, high;
        mov.b32 {{low, high}}, $2;
        cvt.rn.f16x2.{kind} $0, low;
        cvt.rn.f16x2.{kind} $1, high;
        }}
    """


@gluon.jit
def widen(x, CACHE_DTYPE: gl.constexpr):
    """Return (values 0 and 1, values 2 and 3) of words of four 8-bit values, as pairs of float16."""
    ASM: gl.constexpr = widening(CACHE_DTYPE)
    return gl.inline_asm_elementwise(
        ASM, "=&r,=&r,r", [x], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )  # fmt: skip


@gluon.jit
def as_values(x, DTYPE: gl.constexpr):
    """Return the 16-bit values that words hold in pairs. Each word is given twice, side by side in one lane."""
    if gl.bfloat16 == DTYPE:
        return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2)
    else:
        return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [x], dtype=gl.float16, is_pure=True, pack=2)


@gluon.jit
def factors_of(words, CACHE_DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """Return (factor, shift) of each key, fp32 [warps, KEYS, 1], from a CacheTile's words; of 8 bits the shift is 0."""
    words = gl.convert_layout(words.reshape([words.shape[0], words.shape[1]]), LAYOUT, assert_trivial=True)[:, :, None]
    if bits_of(CACHE_DTYPE) == 8:
        return words.to(gl.float32, bitcast=True), 0.0
    else:
        factor = words.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
        return factor, (words >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)


# The order of the operands


@gluon.jit
def in_order_of_k(q, CACHE_DTYPE: gl.constexpr):
    """Reorder the columns of queries [rows, HEAD_DIM] as K's operand has them."""
    M: gl.constexpr = q.shape[0]
    D: gl.constexpr = q.shape[1]
    PAIRS: gl.constexpr = 16 // bits_of(CACHE_DTYPE)
    J: gl.constexpr = chunk_of(D // (2 * PAIRS), 4)
    C: gl.constexpr = D // (8 * PAIRS * J)
    if PAIRS == 4:  # chunk, lane, word, half, nibble of a half
        q = q.reshape([M, C, 4, J, 2, PAIRS]).permute((0, 1, 3, 5, 2, 4))
    else:  # chunk, lane, word, pair, value of the pair
        q = q.reshape([M, C, 4, J, PAIRS, 2]).permute((0, 1, 3, 4, 2, 5))
    return q.reshape([M, D])


@gluon.jit
def in_order(acc, CACHE_DTYPE: gl.constexpr):
    """Turn a result [HEAD_DIM, rows], with rows as V's operand has them, into [rows, HEAD_DIM] in order."""
    D: gl.constexpr = acc.shape[0]
    M: gl.constexpr = acc.shape[1]
    PER_WORD: gl.constexpr = 32 // bits_of(CACHE_DTYPE)
    OWN: gl.constexpr = chunk_of(D // PER_WORD, 8) * PER_WORD
    # chunk, value of a chunk, lane
    return acc.reshape([D // (8 * OWN), OWN, 8, M]).permute((3, 0, 2, 1)).reshape([M, D])
