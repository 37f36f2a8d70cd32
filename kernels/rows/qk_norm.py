"""RMS norm of each head of queries and keys, and their rotary embedding."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrices, Matrix


@triton.jit
def norm_and_rotate_heads(
    q: Matrices, k: Matrices, q_weight, k_weight, cos: Matrix, sin: Matrix, positions, q_out: Matrices, k_out: Matrices,
    heads, heads_kv, head_dim, pairs, max_position, eps, zero_centred, interleaved,
    PAIRS: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Normalise and rotate BLOCK_H heads of one token. Grid: (tokens, cdiv(heads, BLOCK_H) + cdiv(heads_kv, BLOCK_H)).

    q, q_out: [tokens, heads, head_dim]; k, k_out: [tokens, heads_kv, head_dim]; of one dtype, arithmetic is fp32.
    q_weight, k_weight: [head_dim], to which 1 is added where `zero_centred`.

    Of each head the first 2 * pairs elements are rotated, element i with i + pairs, or 2 i with 2 i + 1 where
    `interleaved`; the others are normalised only. cos, sin: fp32 [max_position, pairs]. positions: int32 [tokens],
    clamped to the table.

    PAIRS: power of two >= pairs.
    """
    token, part = tl.program_id(0), tl.program_id(1)
    position = tl.minimum(tl.maximum(tl.load(positions + token), 0), max_position - 1)
    pair = tl.arange(0, PAIRS)
    c = tl.load(cos.ptr + position * cos.stride_rows + pair, mask=pair < pairs, other=0.0)[None, :]
    s = tl.load(sin.ptr + position * sin.stride_rows + pair, mask=pair < pairs, other=0.0)[None, :]
    parts = tl.cdiv(heads, BLOCK_H)
    if part < parts:
        _heads(q, q_weight, q_out, token, part, heads, head_dim, pairs, eps, zero_centred, interleaved, c, s, BLOCK_H)
    else:
        _heads(k, k_weight, k_out, token, part - parts, heads_kv, head_dim, pairs, eps, zero_centred, interleaved, c, s,
               BLOCK_H)  # fmt: skip


@triton.jit
def _heads(
    x, weight, out, token, part, heads, head_dim, pairs, eps, zero_centred, interleaved, c, s, BLOCK_H: tl.constexpr
):
    """Normalise and rotate the heads from part * BLOCK_H on of a token of x; c, s: fp32 [1, PAIRS]."""
    PAIRS: tl.constexpr = c.shape[1]
    head = part * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    known = head < heads
    source = x.ptr + token * x.stride_batch + head * x.stride_rows
    target = out.ptr + token * out.stride_batch + head * out.stride_rows
    dtype: tl.constexpr = out.ptr.dtype.element_ty
    pair = tl.arange(0, PAIRS)[None, :]

    # What is not rotated is not kept, but loaded once more in the end: few models have it.
    squares = tl.zeros([BLOCK_H, PAIRS], tl.float32)
    for start in range(2 * pairs, head_dim, PAIRS):
        rest = tl.load(source + start + pair, mask=known & (start + pair < head_dim), other=0.0).to(tl.float32)
        squares += rest * rest

    unrotated = tl.sum(squares, 1)
    if interleaved:
        rstd = _neighbours(source, target, weight, known, unrotated, head_dim, pairs, eps, zero_centred, c, s)
    else:
        rstd = _halves(source, target, weight, known, unrotated, head_dim, pairs, eps, zero_centred, c, s)

    for start in range(2 * pairs, head_dim, PAIRS):
        inside = known & (start + pair < head_dim)
        rest = tl.load(source + start + pair, mask=inside, other=0.0).to(tl.float32)
        rest *= _gain(weight, start + pair, start + pair < head_dim, zero_centred) * rstd
        tl.store(target + start + pair, rest.to(dtype), mask=inside)


@triton.jit
def _neighbours(source, target, weight, known, squares, head_dim, pairs, eps, zero_centred, c, s):
    """Normalise and rotate elements 2 i with 2 i + 1. squares: fp32 [BLOCK_H], those of the elements beside.

    Returns the factor of the norm, [BLOCK_H, 1].
    """
    BLOCK_H: tl.constexpr = source.shape[0]
    PAIRS: tl.constexpr = c.shape[1]
    dtype: tl.constexpr = target.dtype.element_ty
    column = tl.arange(0, 2 * PAIRS)[None, :]
    inside = known & (column < 2 * pairs)
    values = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.rsqrt((tl.sum(values * values, 1) + squares) / head_dim + eps)[:, None]
    values *= _gain(weight, column, column < 2 * pairs, zero_centred) * rstd
    first, second = tl.split(tl.reshape(values, [BLOCK_H, PAIRS, 2]))
    rotated = tl.join(first * c - second * s, second * c + first * s)
    tl.store(target + column, tl.reshape(rotated, [BLOCK_H, 2 * PAIRS]).to(dtype), mask=inside)
    return rstd


@triton.jit
def _halves(source, target, weight, known, squares, head_dim, pairs, eps, zero_centred, c, s):
    """`_neighbours` for elements i with i + pairs."""
    dtype: tl.constexpr = target.dtype.element_ty
    pair = tl.arange(0, c.shape[1])[None, :]
    inside = known & (pair < pairs)
    first = tl.load(source + pair, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + pairs + pair, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.rsqrt((tl.sum(first * first + second * second, 1) + squares) / head_dim + eps)[:, None]
    first *= _gain(weight, pair, pair < pairs, zero_centred) * rstd
    second *= _gain(weight, pairs + pair, pair < pairs, zero_centred) * rstd
    tl.store(target + pair, (first * c - second * s).to(dtype), mask=inside)
    tl.store(target + pairs + pair, (second * c + first * s).to(dtype), mask=inside)
    return rstd


@triton.jit
def _gain(weight, columns, inside, zero_centred):
    """Load the factors of the columns, fp32."""
    return tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32) + zero_centred.to(tl.float32)
