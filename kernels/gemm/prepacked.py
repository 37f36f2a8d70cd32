"""Weights of 4 or 8 bits in the order of the operands of NVIDIA's matrix units, so that decoding moves nothing.

`aot_models.quantise.prepack` makes the layout. Codes are in tiles of 64 outputs by 64 of k. A tile is 4 slices
of 16 outputs.
- With 4 bits, a slice is 32 lanes with 4 words each. Word 2 h + r of a lane has 8 codes of output 8 r + lane / 4 of the
  slice: at bits 4 (4 l + 2 i + j) that of k = 32 h + 16 i + 8 j + 2 (lane % 4) + l.
- With 8 bits, a slice is two halves of k, each 32 lanes with 4 words. Word 2 r + i of a lane in half h has 4 codes: at
  bits 8 (2 j + l) the code that with 4 bits has the same h, r, i, j and l.

Scales and zeros of 64 outputs are sorted by output % 8, then by output / 8, so that the scales of a lane lie next to
each other.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

TILE = gl.constexpr(64)
"""Outputs, and codes of each along k, in a tile."""


@gluon.constexpr_function
def tile_words(bits):
    """Count the words of a tile of codes."""
    return 128 * bits


class Prepacked(NamedTuple):
    """w = (codes - zeros) * scales, or codebook[codes] * scales.

    w: words [outputs / 64, k * BITS / 16, 32]; scales: of the activations' dtype [groups, outputs / 64, 64]; zeros:
    uint8, the same shape; codebook: fp32 [16], of 4 bits. group_size: weights along k that share a scale, a multiple of
    64.

    BITS: 4 or 8. CODES: `offset`, neither zeros nor a codebook, 8 or, with 8 bits, 128 is subtracted; `zeros`;
    `codebook`.
    """

    w: gl.tensor
    scales: gl.tensor
    stride_scales_groups: gl.tensor
    zeros: gl.tensor
    stride_zeros_groups: gl.tensor
    codebook: gl.tensor
    group_size: gl.tensor
    CODES: gl.constexpr
    BITS: gl.constexpr


# A code becomes the end of the mantissa of a value whose exponent makes it an integer: 1024 + code, or, 4 bits higher,
# 16 * (64 + code); for bfloat16, 128 + code. $0 .. $3: pairs of results; $4: the word; $5: the code that stands for 0.
_FLOAT16 = gl.constexpr("""
{
.reg .b32 next, low, high, sixteenth;
mad.lo.u32 low, $5, 0x00010001, 0x64006400;
mad.lo.u32 high, $5, 0x00100010, 0xd400d400;
mov.b32 sixteenth, 0x2c002c00;
shr.u32 next, $4, 8;
lop3.b32 $0, $4, 0x000f000f, 0x64006400, 0xea;
lop3.b32 $1, $4, 0x00f000f0, 0x64006400, 0xea;
lop3.b32 $2, next, 0x000f000f, 0x64006400, 0xea;
lop3.b32 $3, next, 0x00f000f0, 0x64006400, 0xea;
sub.rn.f16x2 $0, $0, low;
fma.rn.f16x2 $1, $1, sixteenth, high;
sub.rn.f16x2 $2, $2, low;
fma.rn.f16x2 $3, $3, sixteenth, high;
}
""")
_BFLOAT16 = gl.constexpr("""
{
.reg .b32 one, two, three, low;
mad.lo.u32 low, $5, 0x00010001, 0x43004300;
shr.u32 one, $4, 4;
shr.u32 two, $4, 8;
shr.u32 three, $4, 12;
lop3.b32 $0, $4, 0x000f000f, 0x43004300, 0xea;
lop3.b32 $1, one, 0x000f000f, 0x43004300, 0xea;
lop3.b32 $2, two, 0x000f000f, 0x43004300, 0xea;
lop3.b32 $3, three, 0x000f000f, 0x43004300, 0xea;
sub.rn.bf16x2 $0, $0, low;
sub.rn.bf16x2 $1, $1, low;
sub.rn.bf16x2 $2, $2, low;
sub.rn.bf16x2 $3, $3, low;
}
""")
# With 8 bits, whose words are $4 and $5, and the zero $6, a code becomes a byte of 1024 + code, or, for bfloat16, of
# 2 ** 23 + code in fp32.
_FLOAT16_OF_8 = gl.constexpr("""
{
.reg .b32 low;
mad.lo.u32 low, $6, 0x00010001, 0x64006400;
prmt.b32 $0, $4, 0x64646464, 0x4140;
prmt.b32 $1, $4, 0x64646464, 0x4342;
prmt.b32 $2, $5, 0x64646464, 0x4140;
prmt.b32 $3, $5, 0x64646464, 0x4342;
sub.rn.f16x2 $0, $0, low;
sub.rn.f16x2 $1, $1, low;
sub.rn.f16x2 $2, $2, low;
sub.rn.f16x2 $3, $3, low;
}
""")


def _bfloat16_of_8() -> str:
    lines = ["{", ".reg .b32 a, b, low;", "add.u32 low, $6, 0x4b000000;"]
    for pair in range(4):
        word = f"${4 + pair // 2}"
        for name, byte in (("a", pair % 2 * 2), ("b", pair % 2 * 2 + 1)):
            lines += [f"prmt.b32 {name}, {word}, 0x4b000000, 0x744{byte};", f"sub.rn.f32 {name}, {name}, low;"]
        lines.append(f"cvt.rn.bf16x2.f32 ${pair}, b, a;")
    return "\n".join([*lines, "}"])


_BFLOAT16_OF_8 = gl.constexpr(_bfloat16_of_8())
# A byte permutation looks four codes up among eight bytes; that with the signs of the codes' nibbles chooses between
# the lower and the upper half of the codebook. $5 .. $8: low bytes of its 16 entries; $9 .. $12: high ones.
_CODEBOOK = gl.constexpr("""
{
.reg .b32 odd, select, upper, a, b, low0, low1, high0, high1, p01, p23, p45, p67;
shl.b32 odd, $4, 4;
and.b32 select, $4, 0x77777777;
prmt.b32 upper, odd, $4, 0xd9c8;
prmt.b32 a, $5, $6, select;
prmt.b32 b, $7, $8, select;
lop3.b32 low0, upper, b, a, 0xca;
prmt.b32 a, $9, $10, select;
prmt.b32 b, $11, $12, select;
lop3.b32 high0, upper, b, a, 0xca;
shr.u32 select, select, 16;
prmt.b32 upper, odd, $4, 0xfbea;
prmt.b32 a, $5, $6, select;
prmt.b32 b, $7, $8, select;
lop3.b32 low1, upper, b, a, 0xca;
prmt.b32 a, $9, $10, select;
prmt.b32 b, $11, $12, select;
lop3.b32 high1, upper, b, a, 0xca;
prmt.b32 p01, low0, high0, 0x5140;
prmt.b32 p23, low0, high0, 0x7362;
prmt.b32 p45, low1, high1, 0x5140;
prmt.b32 p67, low1, high1, 0x7362;
prmt.b32 $0, p01, p45, 0x5410;
prmt.b32 $1, p01, p45, 0x7632;
prmt.b32 $2, p23, p67, 0x5410;
prmt.b32 $3, p23, p67, 0x7632;
}
""")


@gluon.jit
def _bytes(codebook, dtype: gl.constexpr, FIRST: gl.constexpr, SHIFT: gl.constexpr):
    word = 0
    for i in gl.static_range(4):
        bits = gl.load(codebook + FIRST + i).to(dtype).to(gl.int16, bitcast=True).to(gl.int32)
        word |= (bits >> SHIFT & 255) << 8 * i
    return word


@gluon.jit
def table_of(codebook, dtype: gl.constexpr):
    """Round the codebook, fp32 [16], to `dtype`, for `decode`: four words of low bytes, four of high bytes."""
    return (
        _bytes(codebook, dtype, 0, 0), _bytes(codebook, dtype, 4, 0),
        _bytes(codebook, dtype, 8, 0), _bytes(codebook, dtype, 12, 0),
        _bytes(codebook, dtype, 0, 8), _bytes(codebook, dtype, 4, 8),
        _bytes(codebook, dtype, 8, 8), _bytes(codebook, dtype, 12, 8),
    )  # fmt: skip


@gluon.jit
def in_order(words, TILES: gl.constexpr, BITS: gl.constexpr):
    """Arrange words of tiles [warps, .., ..] for `decode`: [warps, tiles of k, slices, 8, 4, 2, 2] (output % 8, lane %
    4, h, r); with 8 bits there is one more dim (i)."""
    WARPS: gl.constexpr = words.shape[0]
    SLICES: gl.constexpr = words.numel // (WARPS * TILES * 32 * BITS)
    if BITS == 4:
        return words.reshape([WARPS, TILES, SLICES, 8, 4, 2, 2])
    else:
        return words.reshape([WARPS, TILES, SLICES, 2, 8, 4, 2, 2]).permute((0, 1, 2, 4, 5, 3, 6, 7))


@gluon.jit
def decode(words, zeros, table, dtype: gl.constexpr):
    """Decode the codes of each word, or of two words with 8 bits, to four pairs of unscaled 16-bit values.

    A pair has both l of one i and j. words: from `in_order`; table: from `table_of`, or None; zeros: without a table,
    the code that means 0, for each word.
    """
    if len(words.shape) == 8:
        first, second = words.split()
        OF_8: gl.constexpr = _BFLOAT16_OF_8 if dtype == gl.bfloat16 else _FLOAT16_OF_8
        return gl.inline_asm_elementwise(
            OF_8, "=&r,=&r,=&r,=&r,r,r,r", [first, second, zeros], dtype=[gl.int32] * 4, is_pure=True, pack=1
        )
    elif table is not None:
        return gl.inline_asm_elementwise(
            _CODEBOOK, "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r",
            [words, table[0], table[1], table[2], table[3], table[4], table[5], table[6], table[7]],
            dtype=[gl.int32] * 4, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        ASM: gl.constexpr = _BFLOAT16 if dtype == gl.bfloat16 else _FLOAT16
        return gl.inline_asm_elementwise(
            ASM, "=&r,=&r,=&r,=&r,r,r", [words, zeros], dtype=[gl.int32] * 4, is_pure=True, pack=1
        )


@gluon.jit
def for_words(by_output, words):
    """Convert values of outputs, [.., 8, 1, 1, 2], to the layout of `words`: each goes to the lanes with words of
    it."""
    if len(words.shape) == 8:
        words, _ = words.split()
    return gl.convert_layout(by_output, words.type.layout, assert_trivial=True)


@gluon.jit
def scaled(pairs, scales):
    """Multiply pairs from `decode` by a scale each, rounded to the dtype of the scales."""
    twice = gl.inline_asm_elementwise("mov.b32 $0, {$1, $1};", "=r,h", [scales], dtype=gl.int32, is_pure=True, pack=1)
    ASM: gl.constexpr = "mul.rn.bf16x2 $0, $1, $2;" if scales.dtype == gl.bfloat16 else "mul.rn.f16x2 $0, $1, $2;"
    return gl.inline_asm_elementwise(ASM, "=r,r,r", [pairs, twice], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _as_values(pairs, dtype: gl.constexpr):
    """Reinterpret pairs, each held by two neighbours, as their 16-bit values; needs no instruction."""
    ASM: gl.constexpr = "mov.b32 $0, $1;"
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(ASM, "=r,r,r", [pairs], dtype=gl.bfloat16, is_pure=True, pack=2)
    else:
        return gl.inline_asm_elementwise(ASM, "=r,r,r", [pairs], dtype=gl.float16, is_pure=True, pack=2)


@gluon.jit
def values_of(p0, p1, p2, p3, dtype: gl.constexpr):
    """Arrange pairs from `decode`, for words [warps, tiles of k, slices, 8, 4, 2, 2] (output % 8, lane % 4, h, r), as a
    matrix for each warp: [warps, 16 * slices, 64 * tiles of k]."""
    WARPS: gl.constexpr = p0.shape[0]
    pairs = gl.join(gl.join(p0, p1), gl.join(p2, p3))
    pairs = gl.join(pairs, pairs)
    # warp, tile, slice, row, lane, h, r, j, i, l -> warp; slice, r, row; tile, h, i, j, lane, l
    pairs = pairs.permute((0, 2, 6, 3, 1, 5, 8, 7, 4, 9)).reshape([WARPS, 16 * p0.shape[2], TILE * p0.shape[1]])
    return _as_values(pairs, dtype)
