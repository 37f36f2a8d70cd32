"""Formats of floats and how numbers are rounded to them, from the definitions."""

from fractions import Fraction

import numpy as np
from aot_emulator.isa.floats.formats import FloatFormat
from aot_emulator.state.float_mode import Rounding

ROUNDINGS = list(Rounding)


def ident(value):
    if isinstance(value, FloatFormat):
        return f"e{value.exponent_bits}m{value.mantissa_bits}{value.special}"
    return getattr(value, "name", None)


def awkward(dtype, rng, count=20000):
    """Random bit patterns of a dtype, and every special value."""
    width = np.dtype(dtype).itemsize * 8
    values = rng.integers(0, 1 << (width - 1), count, dtype=np.uint64) * 2 + rng.integers(0, 2, count, dtype=np.uint64)
    info = np.finfo(dtype)
    special = [
        0.0,
        np.inf,
        np.nan,
        1.0,
        1.5,
        info.max,
        info.tiny,
        info.smallest_subnormal,
        1 + info.eps,
        1 - info.eps / 2,
    ]
    special = np.array(special + [-x for x in special], dtype)
    return np.concatenate([values.astype(f"u{width // 8}").view(dtype), special])


def check_rounding(exact, got, rounding):
    """That a numpy float is the number, rounded: from its two neighbours, by exact comparison."""
    dtype = np.asarray(got).dtype.type
    limit = Fraction(float(np.finfo(dtype).max))
    if np.isinf(got):
        half_ulp = Fraction(float(np.finfo(dtype).max)) - Fraction(float(np.nextafter(np.finfo(dtype).max, dtype(0))))
        away = (rounding is Rounding.UP and exact > 0) or (rounding is Rounding.DOWN and exact < 0)
        assert (got > 0) == (exact > 0)
        assert abs(exact) > limit if away else rounding is Rounding.NEAREST_EVEN and abs(exact) >= limit + half_ulp / 2
        return
    value = Fraction(float(got))
    if value == exact:
        return
    with np.errstate(over="ignore"):
        toward = np.nextafter(got, dtype(np.inf) if exact > value else dtype(-np.inf))
    if rounding is Rounding.NEAREST_EVEN:
        ulp = (
            abs(Fraction(float(toward)) - value)
            if np.isfinite(toward)
            else limit - Fraction(float(np.nextafter(abs(got), dtype(0))))
        )
        assert abs(exact - value) <= ulp / 2
        if abs(exact - value) == ulp / 2:
            assert int(np.asarray(got).view(f"u{np.asarray(got).itemsize}")) % 2 == 0
        return
    up = rounding is Rounding.UP or (rounding is Rounding.ZERO and exact < 0)
    assert (value > exact) == up
    assert np.isinf(toward) or (Fraction(float(toward)) < exact if up else Fraction(float(toward)) > exact)
