"""Arithmetic on floats by fractions, rounded once; and minimum and maximum as the hardware has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from aot_emulator.isa.floats.formats import FORMAT_OF_DTYPE, FloatFormat
from aot_emulator.state.float_mode import Rounding

NEAREST = Rounding.NEAREST_EVEN
_WAYS = {NEAREST: round, Rounding.UP: math.ceil, Rounding.DOWN: math.floor, Rounding.ZERO: math.trunc}


def rounded(value: Fraction | int, fmt: FloatFormat, rounding: Rounding = NEAREST) -> float:
    """Round to a number of the format, or to infinity where it is too large; by integers, so that no other rounding
    comes first."""
    digits, lowest = fmt.mantissa_bits + 1, 1 - fmt.bias - fmt.mantissa_bits
    largest = Fraction(2) ** (((fmt.max_code >> fmt.mantissa_bits) or 1) - fmt.bias - fmt.mantissa_bits)
    largest *= (1 << fmt.mantissa_bits) | fmt.max_code & (1 << fmt.mantissa_bits) - 1
    size = abs(Fraction(value))
    exponent = size.numerator.bit_length() - size.denominator.bit_length() - digits
    exponent = max(exponent + (size >= Fraction(2) ** (exponent + digits)), lowest)
    result = _WAYS[rounding](value / Fraction(2) ** exponent) * Fraction(2) ** exponent  # Python rounds halves to even
    if abs(result) > largest:
        beyond = rounding is NEAREST or ((rounding is Rounding.UP) == (value > 0) and rounding is not Rounding.ZERO)
        result = math.inf if beyond else largest
    return math.copysign(result, 1 if value > 0 else -1)


def exactly(function: Callable[..., Any], dtype: Any, rounding: Rounding = NEAREST) -> Callable[..., Any]:
    """Make a function of fractions round; where something is not finite, or the result 0, it gives what IEEE 754
    says."""
    dtype, fmt = np.dtype(dtype).type, FORMAT_OF_DTYPE[np.dtype(dtype)]

    def compute(*values: Any) -> Any:
        if all(np.isfinite(v) for v in values):
            result = function(*(Fraction(float(v)) for v in values))
            if result:
                return dtype(rounded(result, fmt, rounding))
        with np.errstate(all="ignore"):
            # A zero's sign does not depend on precision: no product of these overflows or underflows.
            return dtype(function(*(np.longdouble(v) for v in values)))

    return compute


def low(a: Any, b: Any) -> Any:
    """Return the minimum: -0 is below 0, and a number wins over NaN."""
    if np.isnan(a) or np.isnan(b):
        return b if np.isnan(a) else a
    return min(a, b, key=lambda v: (v, not np.signbit(v)))


def high(a: Any, b: Any) -> Any:
    return -low(-a, -b)


def nan_or(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: np.nan if any(np.isnan(value) for value in values) else function(*values)


def flushed(values: np.ndarray) -> np.ndarray:
    """Return floats without denormals."""
    if values.dtype.kind != "f":
        return values
    return np.where(np.abs(values) < np.finfo(values.dtype).tiny, np.copysign(0, values), values).astype(values.dtype)
