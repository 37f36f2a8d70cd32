"""Rotary embedding of queries or keys."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.tensors import Matrices, Matrix


@triton.jit
def rotate_rows(
    x: Matrices, cos: Matrix, sin: Matrix, positions, out: Matrices, heads, head_dim, pairs, max_position,
    PAIRS: tl.constexpr, BLOCK_H: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Rotate BLOCK_H heads of one token by the angles of its position. Grid: (tokens, cdiv(heads, BLOCK_H)).

    x, out: [tokens, heads, head_dim], of which the first 2 * pairs elements are rotated, element i with i + pairs, or
    2 i with 2 i + 1 where INTERLEAVED; the others are copied. cos, sin: fp32 [max_position, pairs]. positions: int32
    [tokens], clamped to the table.

    PAIRS: power of two >= pairs.
    """
    await_earlier_launches()
    token = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    known = head < heads
    source = x.ptr + token * x.stride_batch + head * x.stride_rows
    target = out.ptr + token * out.stride_batch + head * out.stride_rows

    position = tl.minimum(tl.maximum(tl.load(positions + token), 0), max_position - 1)
    pair = tl.arange(0, PAIRS)
    c = tl.load(cos.ptr + position * cos.stride_rows + pair, mask=pair < pairs, other=0.0)[None, :]
    s = tl.load(sin.ptr + position * sin.stride_rows + pair, mask=pair < pairs, other=0.0)[None, :]
    dtype: tl.constexpr = out.ptr.dtype.element_ty
    if INTERLEAVED:
        both = tl.arange(0, 2 * PAIRS)[None, :]
        inside = known & (both < 2 * pairs)
        values = tl.load(source + both, mask=inside, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(values, [BLOCK_H, PAIRS, 2]))
        rotated = tl.join(first * c - second * s, second * c + first * s)
        tl.store(target + both, tl.reshape(rotated, [BLOCK_H, 2 * PAIRS]).to(dtype), mask=inside)
    else:
        inside = known & (pair < pairs)[None, :]
        first = tl.load(source + pair[None, :], mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + pairs + pair[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store(target + pair[None, :], (first * c - second * s).to(dtype), mask=inside)
        tl.store(target + pairs + pair[None, :], (second * c + first * s).to(dtype), mask=inside)
    for start in range(2 * pairs, head_dim, PAIRS):
        columns = start + pair[None, :]
        rest = known & (columns < head_dim)
        tl.store(target + columns, tl.load(source + columns, mask=rest), mask=rest)
