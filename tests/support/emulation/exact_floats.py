"""Arithmetic on floats by fractions, rounded once, and the minimum and maximum of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np


def rounded(value: Fraction, dtype: Any) -> Any:
    """The nearest float, ties to even; by integers, so that no other rounding comes first."""
    info = np.finfo(dtype)
    digits, lowest = info.nmant + 1, int(info.minexp) - info.nmant
    size = abs(value)
    if size == 0:
        return dtype(0)
    exponent = size.numerator.bit_length() - size.denominator.bit_length() - digits
    while size >= Fraction(2) ** (exponent + digits):
        exponent += 1
    exponent = max(exponent, lowest)
    unit = Fraction(2) ** exponent
    result = round(size / unit) * unit  # Python rounds halves to even
    if result >= Fraction(2) ** int(info.maxexp):
        return dtype(math.inf if value > 0 else -math.inf)
    return dtype(float(result) if value > 0 else -float(result))


def exactly(function: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    """The function of fractions, rounded; where something is not finite, or the result 0, what IEEE 754 says."""

    def compute(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            ieee = function(*(np.longdouble(v) for v in values))  # no product overflows
        if all(np.isfinite(v) for v in values):
            result = function(*(Fraction(float(v)) for v in values))
            if result:
                return rounded(result, dtype)
            # An exact zero: its sign does not depend on precision unless products underflow.
            return dtype(math.copysign(0.0, ieee)) if ieee == 0 else dtype(0)
        return dtype(ieee)

    return compute


def low_minimum(a: Any, b: Any) -> Any:
    if np.isnan(a) or np.isnan(b):
        return b if np.isnan(a) else a
    return min(a, b, key=lambda v: (v, not np.signbit(v)))


def high_maximum(a: Any, b: Any) -> Any:
    return -low_minimum(-a, -b)
