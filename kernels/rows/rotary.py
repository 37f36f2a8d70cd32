"""Rotary embedding of queries or keys."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.tensors import Matrices, Matrix, Vector


@triton.jit
def rotate_rows(
    x: Matrices, cos: Matrix, sin: Matrix, positions: Vector, out: Matrices, heads, head_dim, pairs, max_position,
    PAIRS: tl.constexpr, BLOCK_H: tl.constexpr, INTERLEAVED: tl.constexpr, BY_ELEMENT: tl.constexpr = False,
):  # fmt: skip
    """Rotate BLOCK_H heads of one token by the angles of its position. Grid: (tokens, cdiv(heads, BLOCK_H)).

    x, out: [tokens, heads, head_dim], of which the first 2 * pairs elements are rotated, element i with i + pairs, or
    2 i with 2 i + 1 where INTERLEAVED; the others are copied. cos, sin: fp32 [max_position, pairs], or where BY_ELEMENT
    [max_position, 2 * pairs], of each rotated element. positions: int32 [tokens], clamped to the table.

    PAIRS: power of two >= pairs.
    """
    await_earlier_launches()
    token = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    known = head < heads
    source = x.ptr + token * x.stride_batch + head * x.stride_rows
    target = out.ptr + token * out.stride_batch + head * out.stride_rows

    position = tl.minimum(tl.maximum(tl.load(positions.ptr + token * positions.stride_rows), 0), max_position - 1)
    pair = tl.arange(0, PAIRS)
    cosines, sines = cos.ptr + position * cos.stride_rows, sin.ptr + position * sin.stride_rows
    c, c2 = load_angles(cosines, pair, pairs, INTERLEAVED, BY_ELEMENT)
    s, s2 = load_angles(sines, pair, pairs, INTERLEAVED, BY_ELEMENT)
    dtype: tl.constexpr = out.ptr.dtype.element_ty
    if INTERLEAVED:
        both = tl.arange(0, 2 * PAIRS)[None, :]
        inside = known & (both < 2 * pairs)
        values = tl.load(source + both, mask=inside, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(values, [BLOCK_H, PAIRS, 2]))
        rotated = tl.join(first * c - second * s, second * c2 + first * s2)
        tl.store(target + both, tl.reshape(rotated, [BLOCK_H, 2 * PAIRS]).to(dtype), mask=inside)
    else:
        inside = known & (pair < pairs)[None, :]
        first = tl.load(source + pair[None, :], mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + pairs + pair[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store(target + pair[None, :], (first * c - second * s).to(dtype), mask=inside)
        tl.store(target + pairs + pair[None, :], (second * c2 + first * s2).to(dtype), mask=inside)
    for start in range(2 * pairs, head_dim, PAIRS):
        columns = start + pair[None, :]
        rest = known & (columns < head_dim)
        tl.store(target + columns, tl.load(source + columns, mask=rest), mask=rest)


@triton.jit
def load_angles(row, pair, pairs, INTERLEAVED: tl.constexpr, BY_ELEMENT: tl.constexpr):
    """Load cosines or sines for the first and the second element of each pair, [1, PAIRS] each."""
    known = pair < pairs
    if not BY_ELEMENT:
        of_pair = tl.load(row + pair, mask=known, other=0.0)[None, :]
        return of_pair, of_pair
    elif INTERLEAVED:
        of_first = tl.load(row + 2 * pair, mask=known, other=0.0)[None, :]
        return of_first, tl.load(row + 2 * pair + 1, mask=known, other=0.0)[None, :]
    else:
        of_first = tl.load(row + pair, mask=known, other=0.0)[None, :]
        return of_first, tl.load(row + pairs + pair, mask=known, other=0.0)[None, :]
