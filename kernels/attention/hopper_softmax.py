"""The softmax of attention for Hopper, from the layout of one product to that of the next."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper_buffers import output_layout

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def packed(p, buffers):
    """Probabilities rounded to the dtype of the values, as they are kept for the product: of 8 bits, four in a word.

    wgmma wants four neighbours in a register, of which a lane has two and two that are 8 further on. The keys of values
    that `hopper_load.transpose_block` puts into columns are in that order, too.
    """
    if buffers.v.slots.dtype.primitive_bitwidth == 16:
        return gl.convert_layout(p.to(buffers.v.slots.dtype), gl.DotOperandLayout(0, output_layout(buffers.v), 2))
    else:
        near_and_far = p.reshape([p.shape[0], p.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 4, 2))
        near, far = near_and_far.split()
        a, b = near.split()
        c, d = far.split()
        words = gl.inline_asm_elementwise(
            "{ .reg .b16 near, far; cvt.rn.satfinite.e4m3x2.f32 near, $2, $1;"
            "cvt.rn.satfinite.e4m3x2.f32 far, $4, $3; mov.b32 $0, {near, far}; }",
            "=r,f,f,f,f", [a, b, c, d], dtype=gl.int32, is_pure=True, pack=1,
        )  # fmt: skip
        return words if buffers.columns.slots is not None else neighbours(words)


@gluon.jit
def neighbours(words):
    """Words [rows, keys / 16, 4] of neighbours, from those of two and two that are 8 further on: each lane takes two
    halves from the other lanes of the same row."""
    lane = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, words.type.layout)))[None, None, :]
    return gl.inline_asm_elementwise(
        "{ .reg .b32 left, right; shfl.sync.idx.b32 left, $1, $2, 0x1c1f, 0xffffffff;"
        "shfl.sync.idx.b32 right, $1, $3, 0x1c1f, 0xffffffff; prmt.b32 $0, left, right, $4; }",
        "=r,r,r,r,r", [words, 2 * lane & 3, (2 * lane & 3) + 1, gl.where(lane < 2, 0x5410, 0x7632)],
        dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def left_side(p, DTYPE: gl.constexpr, O_LAYOUT: gl.constexpr):
    """What `packed` made as the left side of a product."""
    if DTYPE.primitive_bitwidth == 16:
        return p
    else:
        twice = gl.join(p, p)
        words = gl.join(twice, twice).reshape([p.shape[0], 4 * p.shape[1] * p.shape[2]])
        # Each word is there four times, once for each of its bytes, which a lane has one behind the other.
        words = gl.convert_layout(words, gl.DotOperandLayout(0, O_LAYOUT, 4), assert_trivial=True)
        return gl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r,r,r,r", [words], dtype=gl.float8e4nv, is_pure=True, pack=4
        )


@gluon.jit
def fold(s, row_max, scale, EMPTY: gl.constexpr):
    """(probabilities, new maximum, what earlier sums are rescaled by) of one more block of scores. EMPTY: as `risen`
    has it."""
    new_max, origin = risen(s, row_max, scale, EMPTY)
    return exp2(s * scale - origin[:, None]), new_max, exp2(row_max - origin)


@gluon.jit
def risen(s, row_max, scale, EMPTY: gl.constexpr):
    """(new maximum, what is taken off scores) with one more block of scores.

    EMPTY: a row may have seen nothing so far, and -inf - -inf is not a number.
    """
    new_max = gl.maximum(row_max, gl.max(s, 1) * scale)
    return new_max, gl.where(new_max == float("-inf"), 0.0, new_max) if EMPTY else new_max


@gluon.jit
def exp2(x):
    """2 ** x, denormal results as 0: one instruction."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def sums_of_lanes(p):
    """[rows, 4]: what each of the four lanes that share a row has of its sum. Shuffles are left to a tile's end."""
    return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def scaled_rows(x, factors, LAYOUT: gl.constexpr):
    """x, each row times its factor."""
    return x * gl.convert_layout(factors, gl.SliceLayout(1, LAYOUT))[:, None]
