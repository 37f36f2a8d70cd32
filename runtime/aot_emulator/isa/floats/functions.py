"""Exponent manipulation, roots and transcendental functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from aot_emulator.state.arrays import Array
from aot_emulator.state.float_mode import Rounding

from .arithmetic import multiply, round_to
from .formats import biased_exponent, flush_denormals, quietly


@quietly
def ldexp(value: Array, exponent: Array, rounding: Rounding = Rounding.NEAREST_EVEN) -> Array:
    """Compute v_ldexp_f32, _f64, _f16: value * 2**exponent (integer array), rounded once."""
    if value.dtype == np.float64:
        exponent = np.clip(exponent, -2200, 2200)
        if rounding is Rounding.NEAREST_EVEN:
            return np.ldexp(value, exponent)
        # An exact scaling that stays in range, followed by a rounded product.
        own = np.frexp(value)[1]
        first = np.clip(exponent, -1000 - own, 1000 - own)
        rest = np.clip(exponent - first, -1022, 1023)
        return multiply(np.ldexp(value, first), np.ldexp(1.0, rest), rounding)
    wide = np.ldexp(value.astype(np.float64), np.clip(exponent, -600, 600))
    return round_to(wide, value.dtype, rounding)


def frexp_mantissa(value: Array) -> Array:
    """Compute v_frexp_mant: the signed significand in [0.5, 1); zeros, infinities and NaN are unchanged."""
    return np.where(np.isfinite(value), np.frexp(value)[0], value)


def frexp_exponent(value: Array) -> npt.NDArray[np.int32]:
    """Compute v_frexp_exp_i32: the exponent for `frexp_mantissa`; 0 for zero, infinity and NaN."""
    return np.where(np.isfinite(value), np.frexp(value)[1], 0).astype(np.int32)


@quietly
def fract(value: Array) -> Array:
    """Compute v_fract: value - floor(value), clamped below 1."""
    part = value - np.floor(value)
    return np.where(part >= 1, np.nextafter(value.dtype.type(1), value.dtype.type(0)), part)


def _by_float64(function: Callable[[Array], Array], value: Array, keep_denormals: bool) -> Array:
    """Evaluate a function in float64 and round to the value's dtype.

    fp32 denormal operands and results are flushed unless `keep_denormals` is set.
    """
    flush = value.dtype == np.float32 and not keep_denormals
    operand = flush_denormals(value) if flush else value
    result = function(operand.astype(np.float64)).astype(value.dtype)
    return flush_denormals(result) if flush else result


@quietly
def reciprocal(value: Array, *, keep_denormals: bool = False) -> Array:
    """Compute v_rcp_f32, _f16, _f64, correctly rounded.

    Like v_rsq, v_sqrt, v_exp and v_log, the fp32 form flushes denormals regardless of MODE, unless `keep_denormals` is
    set. Compilers scale operands to work around that.
    """
    return _by_float64(lambda x: 1.0 / x, value, keep_denormals)


@quietly
def reciprocal_sqrt(value: Array, *, keep_denormals: bool = False) -> Array:
    """Compute v_rsq: 1 / sqrt(value), to nearest except for double rounding."""
    return _by_float64(lambda x: 1.0 / np.sqrt(x), value, keep_denormals)


@quietly
def sqrt(value: Array, *, keep_denormals: bool = False) -> Array:
    """Compute v_sqrt, correctly rounded."""
    return _by_float64(np.sqrt, value, keep_denormals)


@quietly
def exp2(value: Array, *, keep_denormals: bool = False) -> Array:
    """Compute v_exp: 2**value."""
    return _by_float64(np.exp2, value, keep_denormals)


@quietly
def log2(value: Array, *, keep_denormals: bool = False) -> Array:
    """Compute v_log: the binary logarithm; -infinity for zero, NaN for negative values."""
    return _by_float64(np.log2, value, keep_denormals)


def _quadrant(turns: Array) -> tuple[Array, Array]:
    """Return the nearest quarter turn modulo 4, and the remainder in radians. Only the last product rounds."""
    part = turns - np.floor(turns)
    quarter = np.rint(part * 4)
    return quarter % 4, (part - quarter / 4) * (2 * np.pi)


def _sine_of_turns(turns: Array) -> Array:
    quarter, angle = _quadrant(turns)
    flat, steep = np.cos(angle), np.sin(angle)
    result = np.select([quarter == 0, quarter == 1, quarter == 2], [steep, flat, -steep], -flat)
    return np.where(turns == 0, turns, np.where(np.isfinite(turns), result, np.nan))


@quietly
def sine(value: Array) -> Array:
    """Compute v_sin: the sine of a number of turns (1.0 is a full circle).

    The ISA documents limit the domain to 256 turns; this function is periodic.
    """
    return _by_float64(_sine_of_turns, value, True)


@quietly
def cosine(value: Array) -> Array:
    """Compute v_cos: the cosine of a number of turns; see `sine`."""
    return _by_float64(lambda turns: _sine_of_turns(np.abs(turns - np.floor(turns)) + 0.25), value, True)


_TWO_OVER_PI_BITS = 1201


@lru_cache(maxsize=1)
def _two_over_pi() -> int:
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
    """Compute v_trig_preop_f64, for argument reduction of large angles.

    Returns 53 bits of 2 / pi at the position given by `segment` (uint32) and the exponent of `value`.
    """
    exponent = biased_exponent(value).astype(np.int64)
    shifts = (segment & np.uint32(31)).astype(np.int64) * 53 + np.maximum(exponent - 1077, 0)
    shifts, exponent = np.broadcast_arrays(shifts, exponent)
    scales = np.where(exponent >= 1968, 128, 0) - 53 - shifts
    kept, chosen = np.unique(shifts, return_inverse=True)
    mask = (1 << 53) - 1
    below = _TWO_OVER_PI_BITS - 53
    bits = [float((_two_over_pi() << int(shift) >> below) & mask) for shift in kept]
    return np.ldexp(np.array(bits)[chosen].reshape(shifts.shape), scales.astype(np.int32))
