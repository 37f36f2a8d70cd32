"""8 bits in attention for Hopper: a softmax with few shuffles, packed probabilities, and transposed values.

Probabilities may exceed 1, as far as e4m3 can hold them. So a row's maximum stays as it is until one is found that is
larger by a factor: warps that find none skip the shuffles, which wait for shared memory, and the rescaling of sums.

wgmma takes 8-bit values only by column, with neighbouring keys in neighbouring bytes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.hopper import ROWS, exp2

HEADROOM = gl.constexpr(6.0)
"""Power of 2 of a row's largest probability when its maximum is found."""
SLACK = gl.constexpr(2.0)
"""Power of 2 by which it may grow until the maximum is raised."""
TRANSPOSED = gl.constexpr(8192)
"""Values that are transposed at a time; more would take too many registers."""


# Softmax


@gluon.jit
def no_maxima(s):
    """Return the maxima of rows of scores like s that have seen nothing: [ROWS, 4], one for each of the four lanes that
    share a row, in units of log2, less the headroom."""
    return gl.full([ROWS, 4], float("-inf"), gl.float32, largest_by_lane(s).type.layout)


@gluon.jit
def largest_by_lane(x):
    """Return [rows, 4]: the largest value that each lane has of each row."""
    return gl.max(gl.max(by_lane(x), 3), 1)


@gluon.jit
def by_lane(x):
    """View x as [rows, pairs, 4, 2]: pairs of neighbours, of which each of four lanes has its own."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def raise_max_seldom(s, row_max, scale):
    """Return (new maxima, factors of earlier sums) after one more block of scores, both as `no_maxima` has them."""
    largest = largest_by_lane(s) * scale - HEADROOM
    return gl.inline_asm_elementwise(
        """{ .reg .pred risen; .reg .b32 a, b, other;
        setp.gt.f32 risen, $4, $8;
        setp.gt.or.f32 risen, $5, $9, risen;
        mov.b32 $0, $6; mov.b32 $1, $7; mov.b32 $2, 0f3F800000; mov.b32 $3, 0f3F800000;
        vote.sync.any.pred risen, risen, 0xffffffff;
        @!risen bra done;
        shfl.sync.bfly.b32 other, $4, 1, 0x1f, 0xffffffff; max.f32 a, $4, other;
        shfl.sync.bfly.b32 other, $5, 1, 0x1f, 0xffffffff; max.f32 b, $5, other;
        shfl.sync.bfly.b32 other, a, 2, 0x1f, 0xffffffff; max.f32 a, a, other;
        shfl.sync.bfly.b32 other, b, 2, 0x1f, 0xffffffff; max.f32 b, b, other;
        max.f32 $0, $6, a; max.f32 a, $0, 0fFF7FFFFF; sub.f32 a, $6, a; ex2.approx.ftz.f32 $2, a;
        max.f32 $1, $7, b; max.f32 b, $1, 0fFF7FFFFF; sub.f32 b, $7, b; ex2.approx.ftz.f32 $3, b;
        done: }""",
        "=&f,=&f,=&f,=&f,f,f,f,f,f,f", [largest, row_max, row_max + SLACK], dtype=(gl.float32, gl.float32),
        is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def probabilities(s, row_max, scale, EMPTY: gl.constexpr):
    """Return the probabilities of a block of scores, with maxima as `no_maxima` has them.

    EMPTY: a row may have seen nothing so far, and -inf - -inf is NaN.
    """
    origin = gl.where(row_max == float("-inf"), 0.0, row_max) if EMPTY else row_max
    return exp2(by_lane(s) * scale - origin.expand_dims(1).expand_dims(3)).reshape(s.shape)


@gluon.jit
def scaled_if_needed(acc, factors):
    """Multiply each row of acc by its factors [rows, 4]; warps whose factors are all 1 skip it."""
    VALUES: gl.constexpr = acc.shape[1] // 2
    factors = gl.convert_layout(factors, largest_by_lane(acc).type.layout, assert_trivial=True)
    scaled = gl.inline_asm_elementwise(
        scaling(VALUES), scaling_operands(VALUES), [by_lane(acc), factors.expand_dims(1).expand_dims(3)],
        dtype=gl.float32, is_pure=True, pack=VALUES,
    )  # fmt: skip
    return gl.convert_layout(scaled.reshape(acc.shape), acc.type.layout, assert_trivial=True)


@gluon.constexpr_function
def scaling(values):
    """PTX of `scaled_if_needed` for the values of a lane: two of one row, two of the other, and so on."""
    first, second = 2 * values, 2 * values + 2
    products = " ".join(f"mul.f32 ${i}, ${i}, ${second if i & 2 else first};" for i in range(values))
    return f"""{{ .reg .pred some;
    setp.neu.f32 some, ${first}, 0f3F800000;
    setp.neu.or.f32 some, ${second}, 0f3F800000, some;
    vote.sync.any.pred some, some, 0xffffffff;
    @!some bra done;
    {products}
    done: }}"""


@gluon.constexpr_function
def scaling_operands(values):
    """Operand constraints of `scaling`: results take the place of values."""
    return ",".join(["=f"] * values + [str(i) for i in range(values)] + ["f"] * values)


# Probabilities as the left operand


@gluon.jit
def pack_e4m3(p, PERMUTED: gl.constexpr):
    """Round probabilities to e4m3, four in a word.

    wgmma wants four neighbours in a register, of which a lane has two and two that are 8 further on. PERMUTED: the keys
    of the values are in that order, too, as `transpose_block` leaves them; else lanes exchange halves.
    """
    near_and_far = p.reshape([p.shape[0], p.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 4, 2))
    near, far = near_and_far.split()
    a, b = near.split()
    c, d = far.split()
    words = gl.inline_asm_elementwise(
        "{ .reg .b16 near, far; cvt.rn.satfinite.e4m3x2.f32 near, $2, $1;"
        "cvt.rn.satfinite.e4m3x2.f32 far, $4, $3; mov.b32 $0, {near, far}; }",
        "=r,f,f,f,f", [a, b, c, d], dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    return words if PERMUTED else neighbours(words)


@gluon.jit
def neighbours(words):
    """Make words [rows, keys / 16, 4] of four neighbours from words of two and two that are 8 further on: each lane
    takes two halves from the other lanes of its row."""
    lane = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, words.type.layout)))[None, None, :]
    return gl.inline_asm_elementwise(
        "{ .reg .b32 left, right; shfl.sync.idx.b32 left, $1, $2, 0x1c1f, 0xffffffff;"
        "shfl.sync.idx.b32 right, $1, $3, 0x1c1f, 0xffffffff; prmt.b32 $0, left, right, $4; }",
        "=r,r,r,r,r", [words, 2 * lane & 3, (2 * lane & 3) + 1, gl.where(lane < 2, 0x5410, 0x7632)],
        dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def as_left_operand(p, DTYPE: gl.constexpr, O_LAYOUT: gl.constexpr):
    """Turn packed probabilities into the left operand of a product; those of 16 bits are one already."""
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


# Values by column


@gluon.jit
def transpose_block(rows, columns, left, RAGGED: gl.constexpr):
    """columns [HEAD_DIM, BLOCK_N] = rows [BLOCK_N, HEAD_DIM] transposed.

    The keys of each 16 are in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, which is that of `pack_e4m3`. left: the
    keys of the sequence; what follows may be another sequence's, and counts as zeros where RAGGED.

    Matrix loads and stores move pairs of bytes: pairs of columns come, and pairs of keys go. Even columns alone would
    lie in half of the banks of shared memory: of each eight pairs, four have the even one first, and four the odd one.
    """
    BLOCK_N: gl.constexpr = rows.shape[0]
    HEAD_DIM: gl.constexpr = rows.shape[1]
    PAIRS: gl.constexpr = HEAD_DIM // 2
    PAIRS_IN: gl.constexpr = gl.NVMMASharedLayout(rows.layout.swizzle_byte_width, 16, 2)
    PAIRS_OUT: gl.constexpr = crossed_layout(HEAD_DIM, BLOCK_N // 2)
    KEYS: gl.constexpr = TRANSPOSED // HEAD_DIM
    LOADED: gl.constexpr = loaded_layout(PAIRS, KEYS)
    pairs_in = rows.reinterpret(gl.int16, [BLOCK_N, PAIRS], PAIRS_IN)
    pairs_out = columns.reinterpret(gl.int16, [HEAD_DIM, BLOCK_N // 2], PAIRS_OUT)
    for i in gl.static_range(BLOCK_N // KEYS):
        x = pairs_in.slice(i * KEYS, KEYS).permute((1, 0)).load(LOADED)
        if RAGGED:
            keys = i * KEYS + gl.arange(0, KEYS, layout=gl.SliceLayout(0, LOADED))
            x = gl.where((keys < left)[None, :], x, gl.zeros_like(x))
        near, far = x.reshape([PAIRS, KEYS // 16, 2, 8]).permute((0, 1, 3, 2)).split()
        first, second = gl.inline_asm_elementwise(
            "{ .reg .b32 others; xor.b32 others, $4, 0x1111; prmt.b32 $0, $2, $3, $4; prmt.b32 $1, $2, $3, others; }",
            "=r,=r,r,r,r,r", [near, far, crossed_bytes(near)], dtype=(gl.int16, gl.int16), is_pure=True, pack=2,
        )  # fmt: skip
        both = gl.join(first.reshape([PAIRS, KEYS // 2]), second.reshape([PAIRS, KEYS // 2]))
        pairs_out.slice(i * KEYS // 2, KEYS // 2, 1).store(both.permute((0, 2, 1)).reshape([HEAD_DIM, KEYS // 2]))


@gluon.constexpr_function
def loaded_layout(pairs, keys):
    """Layout of [pairs, keys] as transposing loads of 8 x 8 matrices give them to the lanes of four warps."""
    registers = [[0, 1], [0, 8]] + [[0, key] for key in (16, 32, 64) if key < keys]
    registers += [[pair, 0] for pair in (32, 64) if pair < pairs]
    return gl.DistributedLinearLayout(
        reg_bases=registers, lane_bases=[[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[8, 0], [16, 0]], block_bases=[], shape=[pairs, keys],
    )  # fmt: skip


@gluon.jit
def crossed_bytes(x):
    """Return prmt selectors for x, whose first dim is pairs of columns: the bytes of the column that goes first."""
    LAYOUT: gl.constexpr = x.type.layout
    pairs = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    return gl.where(pairs & 4 == 0, 0x6420, 0x7531)[:, None, None] + gl.zeros(x.shape, gl.int32, LAYOUT)


@gluon.constexpr_function
def crossed_layout(columns, pairs):
    """Layout of [columns, pairs of keys]: a swizzled block of columns, in which the columns of a pair are swapped where
    `crossed_bytes` takes the odd one first."""
    swizzled = {64: [8, 16, 32], 32: [0, 8, 16]}[pairs]
    rows = [[1 << i | (i == 3), swizzled[i] if i < 3 else 0] for i in range(columns.bit_length() - 1)]
    return gl.SharedLinearLayout([[0, 1 << i] for i in range(pairs.bit_length() - 1)] + rows, [], 1024)
