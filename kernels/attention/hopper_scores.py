"""What becomes of products of queries and keys in attention for Hopper, before the softmax."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper_softmax import LOG2_E, exp2
from kernels.attention.hopper_tiles import BLOCK_M, ROWS, KeyBlocks, Tile, key_blocks
from kernels.common.tensors import Heads, HeadScalars

WORDS = gl.constexpr(32)
"""Columns of a bias that are loaded together: more would take registers that there are not."""


class Factors(NamedTuple):
    """What the numbers of a head of q, k and v are to be multiplied by, > 0; or, with addresses of None, by 1."""

    q: HeadScalars
    k: HeadScalars
    v: HeadScalars


class Features(NamedTuple):
    """As `forward.attention_forward` has them: what there is of them is looked at when the code runs. softcap is None:
    there are none."""

    softcap: gl.tensor
    alibi_slopes: HeadScalars
    bias: Heads


class Scoring(NamedTuple):
    """What there is besides the scale."""

    factors: Factors
    features: Features


class Part(NamedTuple):
    """A group's part of a tile: ROWS queries from number `first` on.

    blocks: those that are walked. whole: KeyBlocks of these queries. scale: of products, which makes units of log2.
    slope: in units of log2, as `Features` have it. factor: of results.
    """

    tile: Tile
    first: gl.tensor
    blocks: KeyBlocks
    whole: KeyBlocks
    scale: gl.tensor
    slope: gl.tensor
    factor: gl.tensor


@gluon.jit
def part_of(
    tile, tiling, scoring, scale, buffers, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr, ME: gl.constexpr
):  # fmt: skip
    """Group number ME's Part of a tile."""
    BLOCK_N: gl.constexpr = buffers.k.slots.shape[-2]
    first = tile.first + ME * ROWS
    of_scores, of_values = factors_of(scoring.factors, tile, tiling.group)
    return Part(
        tile, first, key_blocks(tile.first, BLOCK_M, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT),
        key_blocks(first, ROWS, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT), scale * of_scores,
        slope_of(scoring.features, tile), of_values,
    )  # fmt: skip


@gluon.jit
def factors_of(factors, tile, group):
    """What a tile's scores and its results are multiplied by."""
    if factors.q.ptr is None:
        return 1.0, 1.0
    else:
        of_scores = gl.load(head_scalar(factors.q, tile, tile.head)) * gl.load(
            head_scalar(factors.k, tile, tile.head // group)
        )
        return of_scores, gl.load(head_scalar(factors.v, tile, tile.head // group))


@gluon.jit
def slope_of(features, tile):
    """A tile's slope; 0 if there is none."""
    if features.softcap is None:
        return 0.0
    else:
        slopes = features.alibi_slopes
        return LOG2_E * gl.load(
            head_scalar(slopes, tile, tile.head), mask=slopes.ptr.to(gl.int64, bitcast=True) != 0, other=0.0
        )


@gluon.jit
def head_scalar(x, tile, head):
    """The address of the number of a tile's sequence and a head."""
    return x.ptr + tile.sequence.to(gl.int64) * x.stride_batch + head.to(gl.int64) * x.stride_heads


@gluon.jit
def finished_scores(
    products, block, part, scoring, window, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr, HIDING: gl.constexpr
):  # fmt: skip
    """(scores of a block, what makes units of log2 of them). HIDING: a row may not see all keys."""
    if scoring.features.softcap is None:
        scores, scale = products, part.scale
    else:
        scores, scale = add_features(products, block, part, scoring.features), 1.0
    if HIDING:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if block >= part.whole.whole_end or block < part.whole.whole:
            scores = hide(scores, block, part, window, BOUND_LEFT, BOUND_RIGHT)
    return scores, scale


@gluon.jit
def hide(s, block, part, window, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr):
    """Scores of a block with those of keys that a row does not see at -inf."""
    tile = part.tile
    rows = part.first + gl.arange(0, s.shape[0], layout=gl.SliceLayout(1, s.type.layout))
    keys = block * s.shape[1] + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, s.type.layout))
    if BOUND_RIGHT:
        end = gl.minimum(rows + tile.shift + window.right + 1, tile.seqlen_k)
        seen = keys[None, :] < end[:, None]
    else:
        seen = (keys < tile.seqlen_k)[None, :]
    if BOUND_LEFT:
        seen = seen & (keys[None, :] >= (rows + tile.shift - window.left)[:, None])
    return gl.where(seen, s, float("-inf"))


@gluon.jit
def add_features(products, block, part, features):
    """Scores in units of log2: what there is of a soft-cap, a bias and slopes, in this order."""
    if features.softcap > 0:
        twice = 2.0 / features.softcap * part.scale
        s = capped(products, twice, features.softcap * LOG2_E)
    else:
        s = products * part.scale
    if features.bias.ptr is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if features.bias.ptr.to(gl.int64, bitcast=True) != 0:
            s = add_bias(s, block * s.shape[1], part, features.bias)
    if part.slope != 0:
        s = subtract_slope(s, block, part)
    return s


@gluon.jit
def capped(products, twice, cap):
    """cap * tanh(products * twice / 2 / LOG2_E)."""
    inverse = gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [exp2(products * twice) + 1.0], dtype=gl.float32, is_pure=True, pack=1
    )
    return cap - 2 * cap * inverse


# Columns are apart which eight of them it is, a number that the compiler knows, and what a lane has of each eight: all
# columns of a lane, kept from block to block, would take more registers than there are.


@gluon.jit
def subtract_slope(s, block, part):
    """Scores less the slope times the distance of each key from a query's diagonal."""
    eights = s.reshape([s.shape[0], s.shape[1] // 8, 8])
    rows, numbers, columns = places(eights)
    diagonal = (part.first + rows + (part.tile.shift - block * s.shape[1])).to(gl.float32)
    distance = (diagonal - columns.to(gl.float32)) - 8.0 * numbers.to(gl.float32)
    less = eights - gl.abs(distance) * part.slope
    return gl.convert_layout(less.reshape(s.shape), s.type.layout, assert_trivial=True)


@gluon.jit
def add_bias(s, first, part, bias):
    """Scores of keys from number `first` on and the bias, which has an even number of columns: two are a word."""
    if s.shape[1] > WORDS:
        left, right = s.reshape([s.shape[0], 2, s.shape[1] // 2]).permute((0, 2, 1)).split()
        left = add_bias(left, first, part, bias)
        right = add_bias(right, first + s.shape[1] // 2, part, bias)
        sums = gl.join(left, right).permute((0, 2, 1))
    else:
        tile = part.tile
        even, odd = s.reshape([s.shape[0], s.shape[1] // 8, 4, 2]).split()
        rows, numbers, columns = places(even)
        rows = tile.row_q + gl.minimum(part.first + rows, tile.seqlen_q - 1)
        keys = 2 * columns + 8 * numbers
        head = bias.ptr + tile.batch.to(gl.int64) * bias.stride_batch + tile.head.to(gl.int64) * bias.stride_heads
        addresses = head + first + rows.to(gl.int64) * bias.stride_rows + keys
        words = gl.load(
            addresses.to(gl.pointer_type(gl.int32), bitcast=True), mask=keys < tile.seqlen_k - first, other=0
        )
        DTYPE: gl.constexpr = bias.ptr.dtype.element_ty
        even += words.to(gl.int16).to(DTYPE, bitcast=True).to(gl.float32) * LOG2_E
        odd += (words >> 16).to(gl.int16).to(DTYPE, bitcast=True).to(gl.float32) * LOG2_E
        sums = gl.join(even, odd)
    return gl.convert_layout(sums.reshape(s.shape), s.type.layout, assert_trivial=True)


@gluon.jit
def places(x):
    """Numbers along each of three dims of x, which broadcast to it."""
    LAYOUT: gl.constexpr = x.type.layout
    first = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    second = gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    third = gl.arange(0, x.shape[2], layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    return first[:, None, None], second[None, :, None], third[None, None, :]
