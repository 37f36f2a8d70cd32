"""Floating point as AMD's vector unit does it: formats, conversions, rounding, fused multiply-add, min and max.

Every function takes and returns numpy arrays of one shape (operands broadcast) and keeps no state. A *code* is the bit
pattern of a value, an unsigned integer; a *value* is a numpy float. Values of formats that numpy lacks travel as
float32, which holds each of them exactly.

Accuracy, stated once: add, multiply, fused multiply-add, conversions, ldexp, square root, reciprocal and division are
correctly rounded. exp2, log2, sine, cosine and reciprocal square root are computed in float64 and rounded once to the
result's format: at most one ulp off, in practice the nearest value. The ISA documents promise less (1 ulp for most
fp32 ones), so hardware may differ in the last bit. Which NaN pattern an operation returns is numpy's choice wherever
the ISA documents name none; only NaN-ness is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import lru_cache, wraps
from typing import Any, Literal, ParamSpec

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
P = ParamSpec("P")

# --- Formats and the MODE register ------------------------------------------------------------------------------------


class Rounding(IntEnum):
    """MODE.FP_ROUND's two bits."""

    NEAREST_EVEN = 0
    UP = 1
    DOWN = 2
    ZERO = 3


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format of at most 32 bits, or fp64.

    Attributes:
        name: as the instruction names spell it.
        exponent_bits, mantissa_bits: field widths; one more bit is the sign.
        bias: of the exponent.
        special: what the top of the range means. `ieee`: infinities and NaN; `fn`: one NaN a sign (all ones), no
            infinity; `fnuz`: one NaN (the code of -0), no infinity, no -0; `finite`: neither.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: Literal["ieee", "fn", "fnuz", "finite"]

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def sign_code(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def max_code(self) -> int:
        """The code of the largest finite value."""
        top = self.sign_code - 1
        if self.special == "ieee":
            return top - (1 << self.mantissa_bits)
        return top - (self.special == "fn")

    @property
    def nan_code(self) -> int:
        """The code that a conversion gives for NaN; the largest value where there is none."""
        quiet = self.max_code + 1 + (1 << self.mantissa_bits >> 1)
        return {"ieee": quiet, "fn": self.sign_code - 1, "fnuz": self.sign_code, "finite": self.max_code}[self.special]

    @property
    def infinity_code(self) -> int | None:
        return self.max_code + 1 if self.special == "ieee" else None

    @property
    def code_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self.bits <= 8 else f"u{self.bits // 8}")


FP64 = FloatFormat("f64", 11, 52, 1023, "ieee")
FP32 = FloatFormat("f32", 8, 23, 127, "ieee")
FP16 = FloatFormat("f16", 5, 10, 15, "ieee")
BF16 = FloatFormat("bf16", 8, 7, 127, "ieee")
FP8 = FloatFormat("fp8", 4, 3, 7, "fn")
"""E4M3 as the Open Compute Project defines it: gfx950 and gfx12."""
BF8 = FloatFormat("bf8", 5, 2, 15, "ieee")
"""E5M2, OCP: gfx950 and gfx12."""
FP8_FNUZ = FloatFormat("fp8", 4, 3, 8, "fnuz")
"""E4M3 of gfx942."""
BF8_FNUZ = FloatFormat("bf8", 5, 2, 16, "fnuz")
"""E5M2 of gfx942."""
FP6 = FloatFormat("fp6", 2, 3, 1, "finite")
BF6 = FloatFormat("bf6", 3, 2, 3, "finite")
FP4 = FloatFormat("fp4", 2, 1, 1, "finite")

_OF_DTYPE = {np.dtype(np.float16): FP16, np.dtype(np.float32): FP32, np.dtype(np.float64): FP64}


@dataclass(frozen=True)
class FloatMode:
    """The floating-point part of a wavefront's MODE register.

    Attributes:
        round32, round16_64: of fp32, and of fp16 and fp64, arithmetic.
        keep_in32, keep_out32, keep_in16_64, keep_out16_64: denormal operands and results are kept, not flushed to
            a zero of their sign.
        dx10_clamp: clamp turns NaN into 0.
        ieee: min and max quiet signalling NaNs, and output modifiers are ignored.
        fp16_ovfl: a finite value too large for fp16 or fp8 becomes the largest finite one, not an infinity or NaN.
    """

    round32: Rounding = Rounding.NEAREST_EVEN
    round16_64: Rounding = Rounding.NEAREST_EVEN
    keep_in32: bool = True
    keep_out32: bool = True
    keep_in16_64: bool = True
    keep_out16_64: bool = True
    dx10_clamp: bool = True
    ieee: bool = True
    fp16_ovfl: bool = False

    @classmethod
    def from_register(cls, mode: int) -> FloatMode:
        """The mode of a MODE register (gfx9 to gfx11 bits; FP16_OVFL is bit 23)."""
        return cls(
            Rounding(mode & 3),
            Rounding(mode >> 2 & 3),
            *(bool(mode >> bit & 1) for bit in (4, 5, 6, 7, 8, 9, 23)),
        )


# --- Helpers ----------------------------------------------------------------------------------------------------------


def _quietly(function: Callable[P, Array]) -> Callable[P, Array]:
    """The function with numpy's floating-point warnings off: here infinities and NaNs are results."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Array:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return call


def _code(value: Array) -> Array:
    """The codes of float values, as unsigned integers of their width."""
    return value.view(np.dtype(f"u{value.dtype.itemsize}"))


def is_signalling(value: Array) -> Array:
    """Where a float array holds a signalling NaN."""
    quiet = 1 << (_OF_DTYPE[value.dtype].mantissa_bits - 1)
    return np.isnan(value) & (_code(value) & _code(value).dtype.type(quiet) == 0)


def quiet(value: Array) -> Array:
    """The values, each signalling NaN made quiet with its payload and sign kept."""
    code = _code(value)
    bit = code.dtype.type(1 << (_OF_DTYPE[value.dtype].mantissa_bits - 1))
    return np.where(np.isnan(value), code | bit, code).view(value.dtype)


def is_denormal(value: Array) -> Array:
    return (value != 0) & (np.abs(value) < np.finfo(value.dtype).smallest_normal)


def flush_denormals(value: Array) -> Array:
    """The values, each denormal made a zero of its sign."""
    return np.where(is_denormal(value), np.copysign(value.dtype.type(0), value), value)


def classify(value: Array) -> Array:
    """The class of each value as v_cmp_class's mask bit number, int64: 0 signalling NaN, 1 quiet NaN, then -infinity,
    -normal, -denormal, -0, +0, +denormal, +normal, +infinity.
    """
    size = np.where(value == 0, 0, np.where(is_denormal(value), 1, np.where(np.isinf(value), 3, 2)))
    signed = np.where(np.signbit(value), 5 - size, 6 + size)
    return np.where(np.isnan(value), 1 - is_signalling(value).astype(np.int64), signed)


# --- Conversions between formats --------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def decode_table(fmt: FloatFormat) -> npt.NDArray[np.float32]:
    """The value of every code of a format of at most 8 bits, float32[2**bits]; read only."""
    codes = np.arange(1 << fmt.bits)
    exponent = codes >> fmt.mantissa_bits & ((1 << fmt.exponent_bits) - 1)
    mantissa = codes & ((1 << fmt.mantissa_bits) - 1)
    significand = mantissa + ((exponent > 0) << fmt.mantissa_bits)
    value = np.ldexp(significand.astype(np.float32), np.maximum(exponent, 1) - fmt.bias - fmt.mantissa_bits)
    value[codes & (fmt.sign_code - 1) > fmt.max_code] = np.nan
    if fmt.infinity_code is not None:
        value[codes & (fmt.sign_code - 1) == fmt.infinity_code] = np.inf
    value = np.where(codes & fmt.sign_code, -value, value)
    if fmt.special == "fnuz":
        value[fmt.nan_code] = np.nan
    value.flags.writeable = False
    return value


@lru_cache(maxsize=32)
def decode_max(fmt: FloatFormat) -> float:
    """The largest finite value of a format."""
    exponent = fmt.max_code >> fmt.mantissa_bits
    significand = (fmt.max_code & ((1 << fmt.mantissa_bits) - 1)) + (1 << fmt.mantissa_bits)
    return float(significand * 2.0 ** (exponent - fmt.bias - fmt.mantissa_bits))


def decode(code: Array, fmt: FloatFormat) -> Array:
    """The values of codes, exactly: float32, or float64 for FP64. Bits above the format's width must be zero."""
    if fmt in (FP64, FP32):
        return code.astype(fmt.code_dtype, copy=False).view(np.float64 if fmt is FP64 else np.float32)
    if fmt is FP16:
        return code.astype(np.uint16, copy=False).view(np.float16).astype(np.float32)
    if fmt is BF16:
        return (code.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return decode_table(fmt)[code]


@_quietly
def encode(
    value: Array,
    fmt: FloatFormat,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    *,
    saturate: bool = False,
    random: Array | None = None,
) -> Array:
    """The codes of values in a format, rounded once.

    Args:
        value: float16, float32 or float64.
        fmt: the result's format.
        rounding: how to round, and whether overflow gives infinity (or NaN, or the largest value) or stays finite.
        saturate: a finite value too large becomes the largest of its sign; infinities keep their meaning.
        random: uint32; rounds stochastically in place of `rounding`: away from zero with the probability of the
            discarded fraction, its leading 23 - mantissa_bits bits added to as many leading bits of `random`.
    Returns:
        Unsigned integers of the smallest width that holds the format. An infinity becomes NaN in a format that has
        NaN only, and the largest value in one that has neither.
    """
    bits = np.atleast_1d(value).astype(np.float64).view(np.int64)
    negative = bits < 0
    biased = bits >> 52 & 0x7FF
    significand = (bits & ((1 << 52) - 1)) | ((biased > 0).astype(np.int64) << 52)
    exponent = np.maximum(biased, 1) - 1023
    emin = 1 - fmt.bias
    # Past 55 places nothing is left but a remainder below half, whatever the distance.
    shift = np.minimum(52 - fmt.mantissa_bits + np.maximum(0, emin - exponent), 55)
    kept = significand >> shift
    rest = significand - (kept << shift)
    if random is None:
        up = _rounds_away(kept, rest, shift, negative, rounding)
    else:
        up = _rounds_away_randomly(rest, shift, random, 23 - fmt.mantissa_bits)
    magnitude = ((np.maximum(exponent, emin) - emin) << fmt.mantissa_bits) + kept + up
    too_large = magnitude > fmt.max_code
    magnitude = np.where(too_large, _overflow(fmt, negative, rounding, saturate), magnitude)
    magnitude = np.where(biased == 0x7FF, fmt.infinity_code or (fmt.nan_code & ~fmt.sign_code), magnitude)
    is_nan = np.isnan(value)
    magnitude = np.where(is_nan, fmt.nan_code & (fmt.sign_code - 1), magnitude)
    code = magnitude | np.where(negative, fmt.sign_code, 0)
    if fmt.special == "fnuz":
        code = np.where(magnitude == 0, 0, code)
        lost = is_nan | (biased == 0x7FF) | (too_large & (magnitude == 0))
        code = np.where(lost, fmt.nan_code, code)
    return code.astype(np.uint64).astype(fmt.code_dtype).reshape(np.shape(value))


def _rounds_away(kept: Array, rest: Array, shift: Array, negative: Array, rounding: Rounding) -> Array:
    if rounding is Rounding.NEAREST_EVEN:
        half = np.int64(1) << np.maximum(shift - 1, 0)
        return (shift > 0) & ((rest > half) | ((rest == half) & (kept & 1 == 1)))
    if rounding is Rounding.ZERO:
        return np.zeros_like(negative)
    return (rest > 0) & (negative == (rounding is Rounding.DOWN))


def _rounds_away_randomly(rest: Array, shift: Array, random: Array, width: int) -> Array:
    leading = np.where(shift > width, rest >> np.maximum(shift - width, 0), rest << np.maximum(width - shift, 0))
    return leading + (random.astype(np.int64) >> (32 - width)) >= 1 << width


def _overflow(fmt: FloatFormat, negative: Array, rounding: Rounding, saturate: bool) -> Array:
    """The magnitude of a finite value that is too large."""
    if saturate or fmt.special == "finite" or rounding is Rounding.ZERO:
        return np.full(negative.shape, fmt.max_code, np.int64)
    beyond = fmt.infinity_code or (fmt.nan_code & (fmt.sign_code - 1))
    if rounding is Rounding.NEAREST_EVEN:
        return np.full(negative.shape, beyond, np.int64)
    return np.where(negative == (rounding is Rounding.DOWN), beyond, fmt.max_code)


def f32_to_f16(
    value: Array, rounding: Rounding = Rounding.NEAREST_EVEN, *, saturate: bool = False
) -> npt.NDArray[np.uint16]:
    """v_cvt_f16_f32: uint16 codes of float32 values."""
    if rounding in (Rounding.NEAREST_EVEN, Rounding.ZERO) and not saturate:
        with np.errstate(all="ignore"):
            nearest = value.astype(np.float16)
        code = nearest.view(np.uint16)
        if rounding is Rounding.ZERO:
            code -= np.abs(nearest.astype(np.float32)) > np.abs(value)
        return code
    return encode(value, FP16, rounding, saturate=saturate)


def f32_to_bf16(value: Array) -> npt.NDArray[np.uint16]:
    """The nearest bf16 (ties to even): uint16 codes of float32 values. A NaN keeps its sign and upper payload."""
    code = value.view(np.uint32)
    rounded = (code + np.uint32(0x7FFF) + (code >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), code >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)


@_quietly
def narrow(value: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """v_cvt_f32_f64: float64 values as float32."""
    if rounding is Rounding.NEAREST_EVEN:
        return value.astype(np.float32)
    return encode(value, FP32, rounding).view(np.float32)


@_quietly
def to_integer(value: Array, bits: int, signed: bool) -> Array:
    """v_cvt_i32_f32 and kin: values truncated and clamped to an integer's range, NaN as 0. Returns int64."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    whole = np.trunc(np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    return np.clip(whole, low, high).astype(np.int64)


# --- Packed conversions -----------------------------------------------------------------------------------------------


def pack16(low: Array, high: Array) -> npt.NDArray[np.uint32]:
    """Two 16-bit codes as one dword."""
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def cvt_pkrtz_f16_f32(low: Array, high: Array) -> npt.NDArray[np.uint32]:
    """v_cvt_pkrtz_f16_f32: toward zero whatever MODE says; overflow stays at the largest finite value."""
    return pack16(f32_to_f16(low, Rounding.ZERO), f32_to_f16(high, Rounding.ZERO))


def cvt_pk_bf16_f32(low: Array, high: Array) -> npt.NDArray[np.uint32]:
    """v_cvt_pk_bf16_f32 (gfx950): to nearest even whatever MODE says."""
    return pack16(f32_to_bf16(low), f32_to_bf16(high))


def cvt_pk_f8_f32(low: Array, high: Array, fmt: FloatFormat, *, saturate: bool) -> npt.NDArray[np.uint16]:
    """v_cvt_pk_fp8_f32 and v_cvt_pk_bf8_f32: two bytes as the word that op_sel[3] places.

    Args:
        low, high: float32.
        fmt: FP8 or BF8, of the arch's flavour.
        saturate: MODE.FP16_OVFL.
    """
    low_code, high_code = (encode(value, fmt, saturate=saturate).astype(np.uint16) for value in (low, high))
    return low_code | high_code << np.uint16(8)


def cvt_sr(value: Array, random: Array, fmt: FloatFormat, *, saturate: bool = False) -> Array:
    """v_cvt_sr_fp8_f32, _bf8_, _f16_, _bf16_: stochastic rounding with the given uint32 random bits. The pseudocode of
    the ISA documents adds the bits and then rounds to nearest once more; this follows its prose (and AMD's own software
    version): add, then truncate.
    """
    return encode(value, fmt, saturate=saturate, random=random)


def insert_bits(old: Array, code: Array, position: int, width: int) -> npt.NDArray[np.uint32]:
    """`old` (uint32) with `code` in bits [position, position + width); the rest preserved."""
    mask = np.uint32(((1 << width) - 1) << position)
    return (old & ~mask) | (code.astype(np.uint32) << np.uint32(position))


# --- Arithmetic with one rounding -------------------------------------------------------------------------------------


def _sum_to_odd(a: Array, b: Array, rounding: Rounding) -> Array:
    """a + b in float32 or float64, rounded to odd: rounding it again, to two bits fewer or less, is as if done once."""
    total = a + b
    if rounding is Rounding.DOWN:
        total = np.where((total == 0) & (np.signbit(a) != np.signbit(b)), -0.0, total)
    other = total - a
    error = (a - (total - other)) + (b - other)
    code = total.view(f"i{total.dtype.itemsize}")
    inexact = (error != 0) & np.isfinite(total) & (code & 1 == 0)
    away = np.where((error > 0) == (total > 0), code.dtype.type(1), code.dtype.type(-1))
    return np.where(inexact, code + away, code).view(total.dtype)


def _round_to(value: Array, dtype: np.dtype[Any], rounding: Rounding) -> Array:
    if rounding is Rounding.NEAREST_EVEN:
        return value.astype(dtype)
    return encode(value, _OF_DTYPE[dtype], rounding).view(dtype)


@_quietly
def add(a: Array, b: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """a + b in the operands' own dtype (float16, float32 or float64)."""
    if rounding is Rounding.NEAREST_EVEN:
        return a + b
    if a.dtype == np.float64:
        return _fma64(np.broadcast_to(1.0, a.shape), a, b, rounding)
    return _round_to(_sum_to_odd(a.astype(np.float64), b.astype(np.float64), rounding), a.dtype, rounding)


@_quietly
def multiply(a: Array, b: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """a * b in the operands' own dtype (float16, float32 or float64)."""
    if rounding is Rounding.NEAREST_EVEN:
        return a * b
    if a.dtype == np.float64:
        zero = np.copysign(0.0, a * b)
        return _fma64(a, b, zero, rounding)
    return _round_to(a.astype(np.float64) * b.astype(np.float64), a.dtype, rounding)


@_quietly
def fma(a: Array, b: Array, c: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """a * b + c rounded once, in the operands' own dtype (float16, float32 or float64)."""
    if a.dtype == np.float64:
        return _fma64(a, b, c, rounding)
    # The wider format holds the product exactly.
    wide = np.float32 if a.dtype == np.float16 else np.float64
    product, addend = a.astype(wide) * b.astype(wide), c.astype(wide)
    if rounding is not Rounding.NEAREST_EVEN or a.dtype != np.float32:
        return _round_to(_sum_to_odd(product, addend, rounding), a.dtype, rounding)
    total = product + addend
    result = total.astype(np.float32)
    # Rounding twice goes wrong only where the first rounding lands on a tie of the second one.
    doubtful = total.view(np.int64) & 0x1FFFFFFF == 0x10000000
    small = np.abs(result) < np.finfo(np.float32).smallest_normal
    if small.any():
        doubtful |= small & (total != 0)
    if doubtful.any():
        terms = np.broadcast_arrays(product, addend)
        result[doubtful] = _sum_to_odd(terms[0][doubtful], terms[1][doubtful], rounding).astype(np.float32)
    return result


_SPLITTER = float((1 << 27) + 1)


def _split(value: Array) -> tuple[Array, Array]:
    """Two float64 of 26 bits each whose sum is the value."""
    scaled = value * _SPLITTER
    high = scaled - (scaled - value)
    return high, value - high


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded product and its error, exactly."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and its error, exactly."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _fma64(a: Array, b: Array, c: Array, rounding: Rounding) -> Array:
    """By error-free sums with the low part rounded to odd (Boldo and Melquiond, 2008); the few operands so large or
    small that an error term could leave float64's range, and all other rounding modes, by exact fractions.
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    native = np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c * 1.0, a * b + c)
    simple = ~np.isfinite(native) & ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    if rounding is Rounding.NEAREST_EVEN:
        high, low = _two_product(a, b)
        sum_low, rest = _two_sum(c, low)
        sum_high, carry = _two_sum(high, sum_low)
        near = sum_high + _sum_to_odd(rest, carry, rounding)
        safe = _within(a, 450) & _within(b, 450) & _within(c, 900)
    else:
        near, safe = native, np.zeros(native.shape, bool)
    result = np.where(simple, native, near)
    for index in zip(*np.nonzero(~safe & ~simple), strict=True):
        result[index] = _round_fraction(_fma_fraction(a[index], b[index], c[index]), rounding)
    zero = (result == 0) & (native == 0)
    if rounding is Rounding.DOWN:
        native = np.where(np.signbit(a) ^ np.signbit(b) ^ np.signbit(c), -0.0, native)
    return np.where(zero, native, result)


def _within(value: Array, limit: int) -> Array:
    """Where a magnitude is 0 or between 2**-limit and 2**limit."""
    size = np.abs(value)
    return (size == 0) | ((size >= 2.0**-limit) & (size <= 2.0**limit))


def _fma_fraction(a: float, b: float, c: float) -> Fraction:
    return Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))


def _round_fraction(exact: Fraction, rounding: Rounding) -> float:
    """The float64 of a number."""
    try:
        nearest = exact.numerator / exact.denominator
    except OverflowError:
        nearest = np.inf if exact > 0 else -np.inf
    upward = rounding is Rounding.UP or (rounding is Rounding.ZERO and exact < 0)
    if rounding is not Rounding.NEAREST_EVEN and nearest != exact and upward != (nearest > exact):
        nearest = float(np.nextafter(nearest, np.inf if upward else -np.inf))
    return nearest or (-0.0 if exact < 0 else 0.0)


def fma_mix(
    operands: tuple[Array, Array, Array], half: tuple[bool, bool, bool], high: tuple[bool, bool, bool]
) -> tuple[Array, Array, Array]:
    """The float32 operands of v_fma_mix and v_mad_mix, from uint32 registers.

    Args:
        operands: three registers.
        half: op_sel_hi: whether each operand is fp16 (else fp32).
        high: op_sel: whether an fp16 operand is the upper half.
    """
    return tuple(  # type: ignore[return-value]
        _half(register, upper).astype(np.float32) if is_half else register.view(np.float32)
        for register, is_half, upper in zip(operands, half, high, strict=True)
    )


def _half(register: Array, upper: bool) -> Array:
    return (register >> np.uint32(16 * upper)).astype(np.uint16).view(np.float16)


def dot(a: Array, b: Array, c: Array, fmt_a: FloatFormat, fmt_b: FloatFormat) -> Array:
    """v_dot2_f32_f16, v_dot2_f32_bf16, v_dot4_f32_fp8_bf8 and kin: c plus the products of the elements packed in a and
    b (uint32), lowest first, each step one fused multiply-add in float32. The ISA documents do not say how often
    hardware rounds.
    """
    total = c
    mask = np.uint32((1 << fmt_a.bits) - 1)
    for position in range(0, 32, fmt_a.bits):
        a_value, b_value = (
            decode((register >> np.uint32(position)) & mask, fmt) for register, fmt in ((a, fmt_a), (b, fmt_b))
        )
        total = fma(a_value, b_value, total)
    return total


def dot_integer(
    a: Array, b: Array, c: Array, bits: int, signed: tuple[bool, bool], *, clamp: bool = False
) -> npt.NDArray[np.uint32]:
    """v_dot2_i32_i16, v_dot4_i32_iu8, v_dot8_u32_u4 and kin: c plus the products of the packed integers.

    Args:
        a, b, c: uint32.
        bits: of an element: 16, 8 or 4.
        signed: whether the elements of a and of b are; the sum is signed if either is.
        clamp: saturate to 32 bits; else wrap.
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


# --- Min, max, median -------------------------------------------------------------------------------------------------


def _select(a: Array, b: Array, take_a: Array, ieee: bool) -> Array:
    """a or b; a NaN loses to a number, and a signalling one wins, made quiet, in IEEE mode."""
    result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where(take_a, a, b)))
    if ieee:
        result = np.where(is_signalling(a), quiet(a), np.where(is_signalling(b), quiet(b), result))
    return result


def _below(a: Array, b: Array) -> Array:
    """a < b, with -0 below +0."""
    return (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))


def _with_care(result: Array, careful: Callable[..., Array], *operands: Array) -> Array:
    """The result, computed again by `careful` where it is NaN or zero: numpy's minimum and maximum do the rest right,
    and quickly.
    """
    doubtful = np.isnan(result) | (result == 0)
    if doubtful.any():
        result[doubtful] = careful(*(operand[doubtful] for operand in np.broadcast_arrays(*operands)))
    return result


@_quietly
def min_num(a: Array, b: Array, *, ieee: bool = True) -> Array:
    """v_min_f32, v_min_f64, v_min_f16: -0 is below +0; of a NaN and a number the number. `ieee` is MODE.IEEE: then a
    signalling NaN operand is the result, made quiet (gfx12's v_min_num has no such mode: pass False).
    """
    return _with_care(np.minimum(a, b), lambda x, y: _select(x, y, _below(x, y), ieee), a, b)


@_quietly
def max_num(a: Array, b: Array, *, ieee: bool = True) -> Array:
    """v_max_f32, v_max_f64, v_max_f16; see `min_num`."""
    return _with_care(np.maximum(a, b), lambda x, y: _select(x, y, ~_below(x, y), ieee), a, b)


@_quietly
def minimum(a: Array, b: Array) -> Array:
    """v_minimum_f32 and kin (gfx12, gfx950): a NaN operand is the result, made quiet; -0 is below +0."""
    return _propagate(a, b, min_num(a, b, ieee=False))


@_quietly
def maximum(a: Array, b: Array) -> Array:
    """v_maximum_f32 and kin (gfx12, gfx950); see `minimum`."""
    return _propagate(a, b, max_num(a, b, ieee=False))


def _propagate(a: Array, b: Array, number: Array) -> Array:
    """Signalling NaNs first, then quiet ones, then the number."""
    chosen = np.where(np.isnan(a), a, np.where(np.isnan(b), b, number))
    return quiet(np.where(~is_signalling(a) & is_signalling(b), b, chosen))


@_quietly
def med3(a: Array, b: Array, c: Array, *, ieee: bool = True) -> Array:
    """v_med3_f32 and kin: the middle of three; with a NaN among them, their minimum."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    return _with_care(np.maximum(low, np.minimum(high, c)), lambda *three: _careful_med3(*three, ieee=ieee), a, b, c)


def _careful_med3(a: Array, b: Array, c: Array, *, ieee: bool) -> Array:
    """By the ISA documents' comparisons with the largest, in which zeros are equal."""
    largest = max_num(max_num(a, b, ieee=ieee), c, ieee=ieee)
    others = [max_num(x, y, ieee=ieee) for x, y in ((b, c), (a, c), (a, b))]
    middle = np.where(largest == a, others[0], np.where(largest == b, others[1], others[2]))
    smallest = min_num(min_num(a, b, ieee=ieee), c, ieee=ieee)
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), smallest, middle)


# --- Exponents, roots, transcendental functions -----------------------------------------------------------------------


@_quietly
def ldexp(value: Array, exponent: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """v_ldexp_f32, _f64, _f16: value * 2**exponent (integer array), rounded once."""
    if value.dtype == np.float64:
        exponent = np.clip(exponent, -2200, 2200)
        if rounding is Rounding.NEAREST_EVEN:
            return np.ldexp(value, exponent)
        # Two steps: an exact one that stays in range, then one rounded product.
        own = np.frexp(value)[1]
        first = np.clip(exponent, -1000 - own, 1000 - own)
        rest = np.clip(exponent - first, -1022, 1023)
        return multiply(np.ldexp(value, first), np.ldexp(1.0, rest), rounding)
    wide = np.ldexp(value.astype(np.float64), np.clip(exponent, -600, 600))
    return _round_to(wide, value.dtype, rounding)


def frexp_mantissa(value: Array) -> Array:
    """v_frexp_mant: the significand in [0.5, 1) with the value's sign; zeros, infinities and NaN as they are."""
    return np.where(np.isfinite(value), np.frexp(value)[0], value)


def frexp_exponent(value: Array) -> npt.NDArray[np.int32]:
    """v_frexp_exp_i32: the exponent that goes with `frexp_mantissa`; 0 for zero, infinity and NaN."""
    return np.where(np.isfinite(value), np.frexp(value)[1], 0).astype(np.int32)


@_quietly
def fract(value: Array) -> Array:
    """v_fract: value - floor(value), kept below 1."""
    part = value - np.floor(value)
    return np.where(part >= 1, np.nextafter(value.dtype.type(1), value.dtype.type(0)), part)


def _by_float64(function: Callable[[Array], Array], value: Array, keep_denormals: bool) -> Array:
    """The function in float64, rounded to the value's dtype; fp32 denormals flushed in and out unless kept."""
    flush = value.dtype == np.float32 and not keep_denormals
    operand = flush_denormals(value) if flush else value
    result = function(operand.astype(np.float64)).astype(value.dtype)
    return flush_denormals(result) if flush else result


@_quietly
def reciprocal(value: Array, *, keep_denormals: bool = False) -> Array:
    """v_rcp_f32, _f16, _f64: correctly rounded. Like v_rsq, v_sqrt, v_exp and v_log, the fp32 form flushes denormal
    operands and results whatever MODE says, unless told otherwise; compilers scale around that.
    """
    return _by_float64(lambda x: 1.0 / x, value, keep_denormals)


@_quietly
def reciprocal_sqrt(value: Array, *, keep_denormals: bool = False) -> Array:
    """v_rsq: 1 / sqrt(value), nearest but for a double rounding."""
    return _by_float64(lambda x: 1.0 / np.sqrt(x), value, keep_denormals)


@_quietly
def sqrt(value: Array, *, keep_denormals: bool = False) -> Array:
    """v_sqrt: correctly rounded."""
    return _by_float64(np.sqrt, value, keep_denormals)


@_quietly
def exp2(value: Array, *, keep_denormals: bool = False) -> Array:
    """v_exp: 2**value."""
    return _by_float64(np.exp2, value, keep_denormals)


@_quietly
def log2(value: Array, *, keep_denormals: bool = False) -> Array:
    """v_log: the binary logarithm; -infinity of zero, NaN of negative values."""
    return _by_float64(np.log2, value, keep_denormals)


def _quadrant(turns: Array) -> tuple[Array, Array]:
    """The nearest quarter turn modulo 4, and the rest in radians: exact before the last product."""
    part = turns - np.floor(turns)
    quarter = np.rint(part * 4)
    return quarter % 4, (part - quarter / 4) * (2 * np.pi)


def _sine_of_turns(turns: Array) -> Array:
    quarter, angle = _quadrant(turns)
    flat, steep = np.cos(angle), np.sin(angle)
    result = np.select([quarter == 0, quarter == 1, quarter == 2], [steep, flat, -steep], -flat)
    return np.where(turns == 0, turns, np.where(np.isfinite(turns), result, np.nan))


@_quietly
def sine(value: Array) -> Array:
    """v_sin: the sine of a number of turns (1.0 is a full circle). The ISA documents bound the domain at 256 turns;
    here it goes on periodically.
    """
    return _by_float64(_sine_of_turns, value, True)


@_quietly
def cosine(value: Array) -> Array:
    """v_cos: the cosine of a number of turns; see `sine`."""
    return _by_float64(lambda turns: _sine_of_turns(np.abs(turns - np.floor(turns)) + 0.25), value, True)


_TWO_OVER_PI_BITS = 1201


@lru_cache(maxsize=1)
def _two_over_pi() -> int:
    """The first bits of 2 / pi, by Machin's formula for pi."""
    one = 1 << _TWO_OVER_PI_BITS + 64

    def arctangent_of_inverse(n: int) -> int:
        term, total, k = one // n, 0, 1
        while term:
            total += (term if k % 4 == 1 else -term) // k
            term, k = term // (n * n), k + 2
        return total

    pi = 16 * arctangent_of_inverse(5) - 4 * arctangent_of_inverse(239)
    return (2 * one << _TWO_OVER_PI_BITS) // pi


def trig_preop(value: Array, segment: Array) -> npt.NDArray[np.float64]:
    """v_trig_preop_f64: 53 bits of 2 / pi at the place that segment (uint32) and the value's exponent name, to reduce
    large angles with.
    """
    exponent = _biased_exponent(value).astype(np.int64)
    shifts = (segment & np.uint32(31)).astype(np.int64) * 53 + np.maximum(exponent - 1077, 0)
    shifts, exponent = np.broadcast_arrays(shifts, exponent)
    scales = np.where(exponent >= 1968, 128, 0) - 53 - shifts
    kept, chosen = np.unique(shifts, return_inverse=True)
    mask = (1 << 53) - 1
    below = _TWO_OVER_PI_BITS - 53
    bits = [float((_two_over_pi() << int(shift) >> below) & mask) for shift in kept]
    return np.ldexp(np.array(bits)[chosen].reshape(shifts.shape), scales.astype(np.int32))


# --- Division ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Division:
    """How far v_div_scale moves exponents, per format (the ISA documents' constants)."""

    step: int
    gap: int
    tiny: int
    underflow: int


_DIVISION = {np.dtype(np.float32): _Division(64, 96, 23, -150), np.dtype(np.float64): _Division(128, 768, 53, -1075)}


def _biased_exponent(value: Array) -> Array:
    fmt = _OF_DTYPE[value.dtype]
    return _code(value).astype(np.int64) >> fmt.mantissa_bits & ((1 << fmt.exponent_bits) - 1)


def div_scale(value: Array, denominator: Array, numerator: Array) -> tuple[Array, Array]:
    """v_div_scale_f32 and _f64: `value` (the denominator or the numerator) scaled so that a quotient can be refined
    without overflow or denormals, and the VCC bits that tell v_div_fmas to scale back.

    The documents' pseudocode tests one denormal in the wrong format, and scales a huge denominator further up where
    the quotient is denormal; here it goes down, which is what makes the sequence divide correctly.
    """
    with np.errstate(all="ignore"):
        limits = _DIVISION[value.dtype]
        inverse, quotient = is_denormal(1 / denominator), is_denormal(numerator / denominator)
        of_denominator, of_numerator = value == denominator, value == numerator
        up, down = np.ldexp(value, limits.step), np.ldexp(value, -limits.step)
        far = _biased_exponent(numerator) - _biased_exponent(denominator) >= limits.gap
        cases = [
            ((numerator == 0) | (denominator == 0), np.full_like(value, np.nan), False),
            (far, np.where(of_denominator, up, value), True),
            (is_denormal(denominator), up, False),
            (inverse & quotient, np.where(of_denominator, down, value), True),
            (inverse, down, False),
            (quotient, np.where(of_numerator, up, value), True),
            (_biased_exponent(numerator) <= limits.tiny, up, False),
        ]
        tests = [test for test, _, _ in cases]
        scaled = np.select(tests, [result for _, result, _ in cases], value)
        return scaled, np.select(tests, [np.full(value.shape, vcc) for _, _, vcc in cases], False)


@_quietly
def div_fmas(a: Array, b: Array, c: Array, vcc: Array) -> Array:
    """v_div_fmas_f32 and _f64: fma(a, b, c), scaled back where v_div_scale set VCC: up if the quotient `c` is at least
    1 (only the denominator had been scaled up), else down. (The documents' pseudocode has a fixed factor here, which
    would contradict v_div_scale.)
    """
    step = _DIVISION[a.dtype].step
    exponent = np.where(vcc, np.where(np.abs(c) >= 2, step, -step), 0)
    if a.dtype == np.float32:
        total = _sum_to_odd(a.astype(np.float64) * b, c.astype(np.float64), Rounding.NEAREST_EVEN)
        return np.ldexp(total, exponent).astype(np.float32)
    result = np.ldexp(fma(a, b, c), exponent)
    for index in zip(*np.nonzero(is_denormal(result) & vcc), strict=True):
        scale = Fraction(2) ** int(exponent[index])
        result[index] = _round_fraction(_fma_fraction(a[index], b[index], c[index]) * scale, Rounding.NEAREST_EVEN)
    return result


@_quietly
def div_fixup(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """v_div_fixup_f32, _f64, _f16: the quotient with the special cases of a division put right. A quotient that is not
    finite though the operands are stands for overflow (the documents' pseudocode tests the denominator there, which
    could never hold).
    """
    dtype = quotient.dtype.type
    sign = np.where(np.signbit(denominator) ^ np.signbit(numerator), dtype(-1), dtype(1))
    result = np.copysign(np.where(np.isfinite(quotient), quotient, dtype(np.inf)), sign)
    if quotient.dtype in _DIVISION:
        distance = _biased_exponent(numerator) - _biased_exponent(denominator)
        result = np.where(distance < _DIVISION[quotient.dtype].underflow, np.copysign(dtype(0), sign), result)
    zero_n, zero_d, inf_n, inf_d = numerator == 0, denominator == 0, np.isinf(numerator), np.isinf(denominator)
    result = np.where(inf_d | zero_n, np.copysign(dtype(0), sign), result)
    result = np.where(zero_d | inf_n, np.copysign(dtype(np.inf), sign), result)
    result = np.where((zero_n & zero_d) | (inf_n & inf_d), np.copysign(dtype(np.nan), dtype(-1)), result)
    return np.where(np.isnan(numerator), quiet(numerator), np.where(np.isnan(denominator), quiet(denominator), result))
