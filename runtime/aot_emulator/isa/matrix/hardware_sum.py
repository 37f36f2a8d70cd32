"""Published model of the summation in the matrix units of gfx90a and gfx942.

Xie et al. derived it by experiment and found it bit-exact with MI250X and MI300X (MMA-Sim, arXiv 2511.10909).
"""

from __future__ import annotations

import numpy as np

from aot_emulator.isa.floats import arithmetic, formats
from aot_emulator.isa.floats.formats import FloatFormat
from aot_emulator.state.arrays import Array

from .matrix_layout import accumulator_dtype
from .matrix_op import MatrixOp


def hardware_sum(op: MatrixOp, left: Array, right: Array, start: Array) -> Array:
    """Compute D, [wavefronts, blocks, m, n], summing `group` products at a time as in the hardware model."""
    total: Array = np.broadcast_to(start, (left.shape[0], op.blocks, op.m, op.n)).astype(accumulator_dtype(op))
    if op.flushes:
        total = np.where(formats.is_denormal(total), np.float32(0), total)
    for first in range(0, op.k, op.group):
        span = slice(first, first + op.group)
        a, b = left[:, :, span, :, None], right[:, :, span, None, :]
        if op.model == "fma":
            total = arithmetic.fma(a[:, :, 0].astype(total.dtype), b[:, :, 0].astype(total.dtype), total)
        elif op.model == "pairwise":
            total = _flushed(
                total + _pairwise([_flushed((a[:, :, i] * b[:, :, i]).astype(np.float32)) for i in range(op.group)])
            )
        else:
            total = _fused(op, a, b, total)
    return total


def _flushed(values: Array) -> Array:
    return formats.flush_denormals(values)


def _pairwise(terms: list[Array]) -> Array:
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return _flushed(_pairwise(terms[:half]) + _pairwise(terms[half:]))


def _exponent(values: Array, fmt: FloatFormat) -> Array:
    return np.where(values == 0, -126, np.maximum(np.frexp(values)[1] - 1, 1 - fmt.bias))


def _aligned(products: Array, exponents: Array) -> tuple[Array, Array]:
    """Sum products over axis 2, truncated below 2**-24 of the largest exponent. Returns (scaled sum, exponent)."""
    largest = exponents.max(axis=2)
    cut = np.trunc(np.ldexp(products, 24 - largest[:, :, None]))
    return np.ldexp(cut.sum(axis=2), -24), largest


def _floor(values: Array, bits: Array | int) -> Array:
    return np.ldexp(np.floor(np.ldexp(values, bits)), np.negative(bits))


def _fused(op: MatrixOp, a: Array, b: Array, c: Array) -> Array:
    """Sum a group of products, aligned and truncated; add c, both rounded down; round to nearest even."""
    if op.a.fmt is None or op.b.fmt is None:
        raise ValueError(f"{op.mnemonic} has no floating-point operands")
    products = a * b
    plain = products.sum(axis=2) + c
    too_large = np.abs(products) >= 2.0**128
    overflow = np.where(too_large, np.copysign(np.inf, products), 0).sum(axis=2)
    exponents = _exponent(a, op.a.fmt) + _exponent(b, op.b.fmt)
    finite = np.where(np.isfinite(products) & ~too_large, products, 0)
    c_exponent = _exponent(c, formats.FP32)
    if op.a.bits == 8:
        (even, even_exponent), (odd, odd_exponent) = (
            _aligned(finite[:, :, i::2], exponents[:, :, i::2]) for i in (0, 1)
        )
        exponent = np.maximum(even_exponent, odd_exponent)
        significand = sum(
            _floor(np.ldexp(part, own - exponent), 24) for part, own in ((even, even_exponent), (odd, odd_exponent))
        )
        largest = np.maximum(exponent, c_exponent)
        kept = np.where(c_exponent >= largest - 25, c, 0).astype(np.float64)
    else:
        significand, exponent = _aligned(finite, exponents)
        largest = np.maximum(exponent, c_exponent)
        kept = c.astype(np.float64)
    total = _floor(np.ldexp(significand, exponent - largest), 31) + _floor(np.ldexp(kept, -largest), 24)
    result = np.where(overflow == 0, np.ldexp(total, largest), overflow)
    return np.where(np.isfinite(plain), result, plain).astype(np.float32)
