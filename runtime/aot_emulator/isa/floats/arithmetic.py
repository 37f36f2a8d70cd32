"""Sums, products, fused multiply-adds and dot products with a single rounding."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from aot_emulator.state.arrays import Array
from aot_emulator.state.float_mode import Rounding

from .conversions import decode, encode
from .formats import FORMAT_OF_DTYPE, FP16, FloatFormat, quietly


def sum_to_odd(a: Array, b: Array, rounding: Rounding) -> Array:
    """Return a + b in float32 or float64, rounded to odd.

    Rounding the result again, to at least two bits less, is equivalent to a single rounding.
    """
    total = a + b
    if rounding is Rounding.DOWN:
        total = np.where((total == 0) & (np.signbit(a) != np.signbit(b)), -0.0, total)
    other = total - a
    error = (a - (total - other)) + (b - other)
    code = total.view(f"i{total.dtype.itemsize}")
    inexact = (error != 0) & np.isfinite(total) & (code & 1 == 0)
    away = np.where((error > 0) == (total > 0), code.dtype.type(1), code.dtype.type(-1))
    return np.where(inexact, code + away, code).view(total.dtype)


def round_to(value: Array, dtype: np.dtype[Any], rounding: Rounding) -> Array:
    if rounding is Rounding.NEAREST_EVEN:
        return value.astype(dtype)
    return encode(value, FORMAT_OF_DTYPE[dtype], rounding).view(dtype)


@quietly
def add(a: Array, b: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """Return a + b in the operands' dtype (float16, float32 or float64)."""
    if rounding is Rounding.NEAREST_EVEN:
        return a + b
    if a.dtype == np.float64:
        return _fma64(np.broadcast_to(1.0, a.shape), a, b, rounding)
    return round_to(sum_to_odd(a.astype(np.float64), b.astype(np.float64), rounding), a.dtype, rounding)


@quietly
def multiply(a: Array, b: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """Return a * b in the operands' dtype (float16, float32 or float64)."""
    if rounding is Rounding.NEAREST_EVEN:
        return a * b
    if a.dtype == np.float64:
        zero = np.copysign(0.0, a * b)
        return _fma64(a, b, zero, rounding)
    return round_to(a.astype(np.float64) * b.astype(np.float64), a.dtype, rounding)


@quietly
def fma_to_half(a: Array, b: Array, c: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """Return a * b + c of float32 values, rounded once to float16."""
    product = a.astype(np.float64) * b.astype(np.float64)
    return encode(sum_to_odd(product, c.astype(np.float64), rounding), FP16, rounding).view(np.float16)


@quietly
def fma(a: Array, b: Array, c: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """Return a * b + c, rounded once, in the operands' dtype (float16, float32 or float64)."""
    if a.dtype == np.float64:
        return _fma64(a, b, c, rounding)
    # The wider format holds the product exactly.
    wide = np.float32 if a.dtype == np.float16 else np.float64
    product, addend = a.astype(wide) * b.astype(wide), c.astype(wide)
    if rounding is not Rounding.NEAREST_EVEN or a.dtype != np.float32:
        return round_to(sum_to_odd(product, addend, rounding), a.dtype, rounding)
    total = product + addend
    result = total.astype(np.float32)
    # Double rounding is only incorrect if the first rounding yields a tie of the second one.
    doubtful = total.view(np.int64) & 0x1FFFFFFF == 0x10000000
    small = np.abs(result) < np.finfo(np.float32).smallest_normal
    if small.any():
        doubtful |= small & (total != 0)
    if doubtful.any():
        terms = np.broadcast_arrays(product, addend)
        result[doubtful] = sum_to_odd(terms[0][doubtful], terms[1][doubtful], rounding).astype(np.float32)
    return result


_SPLITTER = float((1 << 27) + 1)


def _split(value: Array) -> tuple[Array, Array]:
    scaled = value * _SPLITTER
    high = scaled - (scaled - value)
    return high, value - high


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _fma64(a: Array, b: Array, c: Array, rounding: Rounding) -> Array:
    """Compute a float64 FMA by error-free sums with the low part rounded to odd (Boldo and Melquiond, 2008).

    Other rounding modes, and operands whose error terms could leave float64's range, use exact fractions.
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    native = np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c * 1.0, a * b + c)
    simple = ~np.isfinite(native) & ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    if rounding is Rounding.NEAREST_EVEN:
        high, low = _two_product(a, b)
        sum_low, rest = _two_sum(c, low)
        sum_high, carry = _two_sum(high, sum_low)
        near = sum_high + sum_to_odd(rest, carry, rounding)
        safe = _within(a, 450) & _within(b, 450) & _within(c, 900)
    else:
        near, safe = native, np.zeros(native.shape, bool)
    result = np.where(simple, native, near)
    for index in zip(*np.nonzero(~safe & ~simple), strict=True):
        result[index] = round_fraction(fma_fraction(a[index], b[index], c[index]), rounding)
    zero = (result == 0) & (native == 0)
    if rounding is Rounding.DOWN:
        native = np.where(np.signbit(a) ^ np.signbit(b) ^ np.signbit(c), -0.0, native)
    return np.where(zero, native, result)


def _within(value: Array, limit: int) -> Array:
    size = np.abs(value)
    return (size == 0) | ((size >= 2.0**-limit) & (size <= 2.0**limit))


def fma_fraction(a: float, b: float, c: float) -> Fraction:
    return Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))


def round_fraction(exact: Fraction, rounding: Rounding) -> float:
    """Round an exact number to float64."""
    try:
        nearest = exact.numerator / exact.denominator
    except OverflowError:
        nearest = np.inf if exact > 0 else -np.inf
    upward = rounding is Rounding.UP or (rounding is Rounding.ZERO and exact < 0)
    if rounding is not Rounding.NEAREST_EVEN and nearest != exact and upward != (nearest > exact):
        nearest = float(np.nextafter(nearest, np.inf if upward else -np.inf))
    return nearest or (-0.0 if exact < 0 else 0.0)


def dot(a: Array, b: Array, c: Array, fmt: FloatFormat, keeps_denormals: bool) -> Array:
    """Compute v_dot2_f32_f16, v_dot2_f32_bf16 and similar: c plus the products of packed elements.

    Each step, from the lowest element, is a float32 FMA. The ISA documents do not specify intermediate rounding.

    Args:
        a, b: uint32, packed elements.
        c: the float32 addend.
        fmt: format of the elements.
        keeps_denormals: preserve denormal operands and results; otherwise they are flushed to zero.
    """

    def flushed(values: Array, smallest: float) -> Array:
        return values if keeps_denormals else np.where(np.abs(values) < smallest, np.copysign(0, values), values)

    smallest = 2.0 ** (1 - fmt.bias)
    total = flushed(c, _SMALLEST_NORMAL)
    mask = np.uint32((1 << fmt.bits) - 1)
    for position in range(0, 32, fmt.bits):
        left, right = (flushed(decode(x >> np.uint32(position) & mask, fmt), smallest) for x in (a, b))
        total = fma(left, right, total)
    return flushed(total, _SMALLEST_NORMAL).astype(np.float32)


_SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)


def dot_integer(
    a: Array, b: Array, c: Array, bits: int, signed: tuple[bool, bool], *, clamp: bool = False
) -> npt.NDArray[np.uint32]:
    """Compute v_dot2_i32_i16, v_dot4_i32_iu8, v_dot8_u32_u4 and similar: c plus the products of packed integers.

    Args:
        a, b, c: uint32.
        bits: width of an element: 16, 8 or 4.
        signed: signedness of the elements of a and of b; the sum is signed if either is.
        clamp: saturate to 32 bits instead of wrapping.
    """
    is_signed = any(signed)
    total = c.view(np.int32).astype(np.int64) if is_signed else c.astype(np.int64)
    for position in range(0, 32, bits):
        total = total + _integer_field(a, position, bits, signed[0]) * _integer_field(b, position, bits, signed[1])
    if clamp:
        low, high = (-(1 << 31), (1 << 31) - 1) if is_signed else (0, (1 << 32) - 1)
        total = np.clip(total, low, high)
    return total.astype(np.uint32)


def _integer_field(register: Array, position: int, bits: int, signed: bool) -> Array:
    field = register.astype(np.int64) >> position & ((1 << bits) - 1)
    return field - ((field >> (bits - 1)) << bits) if signed else field
