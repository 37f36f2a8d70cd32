"""The softmax of float8 attention for Hopper, in which lanes that share a row seldom have to agree on its maximum.

Probabilities may be larger than 1, as long as e4m3 has them. So a maximum stays as it is until one is found that is
larger by a factor: shuffles, which wait for shared memory, and rescaled sums are left out where a warp finds none.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper_buffers import scores_layout
from kernels.attention.hopper_softmax import exp2
from kernels.attention.hopper_tiles import ROWS

HEADROOM = gl.constexpr(6.0)
"""A row's largest probability is 2 to this power when its maximum is found."""
SLACK = gl.constexpr(2.0)
"""It grows up to 2 to this power until the next one is."""


@gluon.jit
def no_maxima(keys):
    """Those of rows of which nothing has been seen: [ROWS, 4], one for each of the four lanes that share a row, in
    units of log2, less the headroom. keys: the ring."""
    scores = gl.zeros([ROWS, keys.slots.shape[-2]], gl.float32, scores_layout(keys))
    return gl.full([ROWS, 4], float("-inf"), gl.float32, of_lanes(scores).type.layout)


@gluon.jit
def of_lanes(x):
    """[rows, 4]: the largest that each lane has of each row."""
    return gl.max(gl.max(in_lanes(x), 3), 1)


@gluon.jit
def in_lanes(x):
    """[rows, numbers, 4, 2]: pairs of neighbours, of which each of four lanes has its own."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def risen_seldom(s, row_max, scale):
    """(new maxima, what earlier sums are rescaled by) with one more block of scores; both as `no_maxima` has them."""
    largest = of_lanes(s) * scale - HEADROOM
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
    """Of a block of scores, with maxima as `no_maxima` has them. EMPTY: a row may have seen nothing so far, and -inf -
    -inf is not a number."""
    origin = gl.where(row_max == float("-inf"), 0.0, row_max) if EMPTY else row_max
    return exp2(in_lanes(s) * scale - origin.expand_dims(1).expand_dims(3)).reshape(s.shape)


@gluon.jit
def rescaled(acc, factors):
    """acc, each row times its factor of [rows, 4]; nothing is done in warps whose factors are all 1."""
    NUMBERS: gl.constexpr = acc.shape[1] // 2
    factors = gl.convert_layout(factors, of_lanes(acc).type.layout, assert_trivial=True)
    products = gl.inline_asm_elementwise(
        rescaling(NUMBERS), rescaling_operands(NUMBERS), [in_lanes(acc), factors.expand_dims(1).expand_dims(3)],
        dtype=gl.float32, is_pure=True, pack=NUMBERS,
    )  # fmt: skip
    return gl.convert_layout(products.reshape(acc.shape), acc.type.layout, assert_trivial=True)


@gluon.constexpr_function
def rescaling(numbers):
    """The instructions of `rescaled` for the numbers of a lane: two of one row, two of the other, and so on."""
    first, second = 2 * numbers, 2 * numbers + 2
    products = " ".join(f"mul.f32 ${i}, ${i}, ${second if i & 2 else first};" for i in range(numbers))
    return f"""{{ .reg .pred some;
    setp.neu.f32 some, ${first}, 0f3F800000;
    setp.neu.or.f32 some, ${second}, 0f3F800000, some;
    vote.sync.any.pred some, some, 0xffffffff;
    @!some bra done;
    {products}
    done: }}"""


@gluon.constexpr_function
def rescaling_operands(numbers):
    """Products take the place of numbers."""
    return ",".join(["=f"] * numbers + [str(i) for i in range(numbers)] + ["f"] * numbers)
