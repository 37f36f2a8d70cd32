"""Conversions between floating-point formats, and to integers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from aot_emulator.state.arrays import Array
from aot_emulator.state.float_mode import Rounding

from .formats import BF16, FP16, FP32, FP64, FloatFormat, quietly


@lru_cache(maxsize=32)
def decode_table(fmt: FloatFormat) -> npt.NDArray[np.float32]:
    """Return the values of all codes of a format of at most 8 bits, as a read-only float32[2**bits]."""
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
    """Return the largest finite value of a format."""
    exponent = fmt.max_code >> fmt.mantissa_bits
    significand = (fmt.max_code & ((1 << fmt.mantissa_bits) - 1)) + (1 << fmt.mantissa_bits)
    return float(significand * 2.0 ** (exponent - fmt.bias - fmt.mantissa_bits))


def decode(code: Array, fmt: FloatFormat) -> Array:
    """Convert codes to their exact values in float32, or in float64 for FP64.

    Bits above the format's width must be zero.
    """
    if fmt in (FP64, FP32):
        return code.astype(fmt.code_dtype, copy=False).view(np.float64 if fmt is FP64 else np.float32)
    if fmt is FP16:
        return code.astype(np.uint16, copy=False).view(np.float16).astype(np.float32)
    if fmt is BF16:
        return (code.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return decode_table(fmt)[code]


@quietly
def encode(
    value: Array,
    fmt: FloatFormat,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    *,
    saturate: bool = False,
    random: Array | None = None,
) -> Array:
    """Convert values to the codes of a format, rounded once.

    Args:
        value: float16, float32 or float64.
        fmt: format of the result.
        rounding: rounding mode, which also determines the result of overflow.
        saturate: MODE.FP16_OVFL: clamp finite overflow to the largest value of its sign. In 8-bit formats this
            includes infinities; fp16 keeps them (CDNA3, "MODE register", and AMD's own emulator).
        random: uint32; selects stochastic rounding instead of `rounding`. The leading 23 - mantissa_bits bits of the
            discarded fraction and of `random` are added, and a carry rounds away from zero.

    Returns:
        Unsigned integers of the smallest width that holds the format. Infinity becomes NaN in formats without
        infinity, and the largest value in formats without either.
    """
    bits = np.atleast_1d(value).astype(np.float64).view(np.int64)
    negative = bits < 0
    biased = bits >> 52 & 0x7FF
    significand = (bits & ((1 << 52) - 1)) | ((biased > 0).astype(np.int64) << 52)
    exponent = np.maximum(biased, 1) - 1023
    emin = 1 - fmt.bias
    # Beyond 55 places only a remainder below half is left, so the shift can be limited.
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
    infinite = biased == 0x7FF
    if saturate and fmt.bits == 8:
        magnitude = np.where(infinite, fmt.max_code, magnitude)
        infinite = np.zeros_like(infinite)
    magnitude = np.where(infinite, fmt.infinity_code or (fmt.nan_code & ~fmt.sign_code), magnitude)
    is_nan = np.isnan(value)
    magnitude = np.where(is_nan, fmt.nan_code & (fmt.sign_code - 1), magnitude)
    code = magnitude | np.where(negative, fmt.sign_code, 0)
    if fmt.special == "fnuz":
        code = np.where(magnitude == 0, 0, code)
        lost = is_nan | infinite | (too_large & (magnitude == 0))
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
    if saturate or fmt.special == "finite" or rounding is Rounding.ZERO:
        return np.full(negative.shape, fmt.max_code, np.int64)
    beyond = fmt.infinity_code or (fmt.nan_code & (fmt.sign_code - 1))
    if rounding is Rounding.NEAREST_EVEN:
        return np.full(negative.shape, beyond, np.int64)
    return np.where(negative == (rounding is Rounding.DOWN), beyond, fmt.max_code)


def f32_to_f16(value: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> npt.NDArray[np.uint16]:
    """Compute v_cvt_f16_f32: float32 values to uint16 codes."""
    if rounding in (Rounding.NEAREST_EVEN, Rounding.ZERO):
        with np.errstate(all="ignore"):
            nearest = value.astype(np.float16)
        code = nearest.view(np.uint16)
        if rounding is Rounding.ZERO:
            code -= np.abs(nearest.astype(np.float32)) > np.abs(value)
        return code
    return encode(value, FP16, rounding)


def f32_to_bf16(value: Array) -> npt.NDArray[np.uint16]:
    """Round float32 values to the nearest bf16 (ties to even), as uint16 codes. NaNs keep sign and upper payload."""
    code = value.view(np.uint32)
    rounded = (code + np.uint32(0x7FFF) + (code >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), code >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)


@quietly
def narrow(value: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """Compute v_cvt_f32_f64: float64 to float32."""
    if rounding is Rounding.NEAREST_EVEN:
        return value.astype(np.float32)
    return encode(value, FP32, rounding).view(np.float32)


@quietly
def to_integer(value: Array, bits: int, signed: bool) -> Array:
    """Compute v_cvt_i32_f32 and similar: truncate, and clamp to the integer range; NaN becomes 0. Returns int64."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    whole = np.trunc(np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    return np.clip(whole, low, high).astype(np.int64)


def pack16(low: Array, high: Array) -> npt.NDArray[np.uint32]:
    """Pack two 16-bit codes into a dword."""
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def cvt_pkrtz_f16_f32(low: Array, high: Array) -> npt.NDArray[np.uint32]:
    """Compute v_cvt_pkrtz_f16_f32: round toward zero regardless of MODE; overflow gives the largest finite value."""
    return pack16(f32_to_f16(low, Rounding.ZERO), f32_to_f16(high, Rounding.ZERO))


def cvt_pk_bf16_f32(low: Array, high: Array) -> npt.NDArray[np.uint32]:
    """Compute v_cvt_pk_bf16_f32 (gfx950): round to nearest even regardless of MODE."""
    return pack16(f32_to_bf16(low), f32_to_bf16(high))


def cvt_sr(value: Array, random: Array, fmt: FloatFormat, *, saturate: bool = False) -> Array:
    """Compute v_cvt_sr_fp8_f32, _bf8_, _f16_, _bf16_: stochastic rounding with uint32 random bits.

    The bits are added and the sum is truncated, as in the prose of the ISA documents and AMD's software implementation.
    Their pseudocode rounds to nearest once more.
    """
    return encode(value, fmt, saturate=saturate, random=random)


def insert_bits(old: Array, code: Array, position: int, width: int) -> npt.NDArray[np.uint32]:
    """Insert `code` into bits [position, position + width) of `old` (uint32)."""
    mask = np.uint32(((1 << width) - 1) << position)
    return (old & ~mask) | (code.astype(np.uint32) << np.uint32(position))
