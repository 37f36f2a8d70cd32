"""Instructions of the division sequence: scaling, refinement and special cases."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from aot_emulator.state.arrays import Array
from aot_emulator.state.float_mode import Rounding

from .arithmetic import fma, fma_fraction, round_fraction, sum_to_odd
from .formats import biased_exponent, is_denormal, quiet, quietly


@dataclass(frozen=True)
class _Division:
    """Constants of v_div_scale for a format, from the ISA documents."""

    step: int
    gap: int
    tiny: int
    underflow: int


_DIVISION = {np.dtype(np.float32): _Division(64, 96, 23, -150), np.dtype(np.float64): _Division(128, 768, 53, -1075)}


def div_scale(value: Array, denominator: Array, numerator: Array) -> tuple[Array, Array]:
    """Compute v_div_scale_f32 and _f64: scale `value` (denominator or numerator) to avoid overflow and denormals.

    Returns the scaled value, and the VCC bits that make v_div_fmas scale back. The ISA documents' pseudocode tests one
    denormal in the wrong format. It also scales a huge denominator up if the quotient is denormal; it must be scaled
    down for a correct division.
    """
    with np.errstate(all="ignore"):
        limits = _DIVISION[value.dtype]
        inverse, quotient = is_denormal(1 / denominator), is_denormal(numerator / denominator)
        of_denominator, of_numerator = value == denominator, value == numerator
        up, down = np.ldexp(value, limits.step), np.ldexp(value, -limits.step)
        far = biased_exponent(numerator) - biased_exponent(denominator) >= limits.gap
        cases = [
            ((numerator == 0) | (denominator == 0), np.full_like(value, np.nan), False),
            (far, np.where(of_denominator, up, value), True),
            (is_denormal(denominator), up, False),
            (inverse & quotient, np.where(of_denominator, down, value), True),
            (inverse, down, False),
            (quotient, np.where(of_numerator, up, value), True),
            (biased_exponent(numerator) <= limits.tiny, up, False),
        ]
        tests = [test for test, _, _ in cases]
        scaled = np.select(tests, [result for _, result, _ in cases], value)
        return scaled, np.select(tests, [np.full(value.shape, vcc) for _, _, vcc in cases], False)


@quietly
def div_fmas(a: Array, b: Array, c: Array, vcc: Array) -> Array:
    """Compute v_div_fmas_f32 and _f64: fma(a, b, c), scaled back where v_div_scale has set VCC.

    The scale is up for a quotient `c` of at least 2, as only the denominator was scaled up then, and down otherwise.
    The ISA documents' pseudocode uses a fixed factor, which contradicts v_div_scale.
    """
    step = _DIVISION[a.dtype].step
    exponent = np.where(vcc, np.where(np.abs(c) >= 2, step, -step), 0)
    if a.dtype == np.float32:
        total = sum_to_odd(a.astype(np.float64) * b, c.astype(np.float64), Rounding.NEAREST_EVEN)
        return np.ldexp(total, exponent).astype(np.float32)
    result = np.ldexp(fma(a, b, c), exponent)
    for index in zip(*np.nonzero(is_denormal(result) & vcc), strict=True):
        scale = Fraction(2) ** int(exponent[index])
        result[index] = round_fraction(fma_fraction(a[index], b[index], c[index]) * scale, Rounding.NEAREST_EVEN)
    return result


@quietly
def div_fixup(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """v_div_fixup_f32, _f64, _f16: the quotient with the special cases of a division put right. A quotient that is not
    finite though the operands are stands for overflow (the documents' pseudocode tests the denominator there, which
    could never hold).
    """
    dtype = quotient.dtype.type
    sign = np.where(np.signbit(denominator) ^ np.signbit(numerator), dtype(-1), dtype(1))
    result = np.copysign(np.where(np.isfinite(quotient), quotient, dtype(np.inf)), sign)
    if quotient.dtype in _DIVISION:
        distance = biased_exponent(numerator) - biased_exponent(denominator)
        result = np.where(distance < _DIVISION[quotient.dtype].underflow, np.copysign(dtype(0), sign), result)
    zero_n, zero_d, inf_n, inf_d = numerator == 0, denominator == 0, np.isinf(numerator), np.isinf(denominator)
    result = np.where(inf_d | zero_n, np.copysign(dtype(0), sign), result)
    result = np.where(zero_d | inf_n, np.copysign(dtype(np.inf), sign), result)
    result = np.where((zero_n & zero_d) | (inf_n & inf_d), np.copysign(dtype(np.nan), dtype(-1)), result)
    return np.where(np.isnan(numerator), quiet(numerator), np.where(np.isnan(denominator), quiet(denominator), result))
