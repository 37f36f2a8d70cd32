"""Conversions and arithmetic of floats against exact fractions, ml_dtypes and numpy."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot_emulator.isa.floats import arithmetic, conversions, division, formats, functions, minmax
from aot_emulator.isa.floats.formats import FloatFormat
from aot_emulator.state import float_mode
from aot_emulator.state.float_mode import Rounding
from tests.support.emulation.exact import exactly, rounded
from tests.support.emulation.values import assert_same, edge_floats

ML_DTYPES = {
    formats.FP16: np.float16, formats.BF16: ml_dtypes.bfloat16, formats.FP8: ml_dtypes.float8_e4m3fn,
    formats.BF8: ml_dtypes.float8_e5m2, formats.FP8_FNUZ: ml_dtypes.float8_e4m3fnuz,
    formats.BF8_FNUZ: ml_dtypes.float8_e5m2fnuz, formats.FP6: ml_dtypes.float6_e2m3fn,
    formats.BF6: ml_dtypes.float6_e3m2fn, formats.FP4: ml_dtypes.float4_e2m1fn,
}  # fmt: skip
SMALL = [fmt for fmt in ML_DTYPES if fmt.bits <= 8]


def ident(value: Any) -> str | None:
    return f"{value.name}{value.special}" if isinstance(value, FloatFormat) else getattr(value, "name", None)


every_format = pytest.mark.parametrize("fmt", ML_DTYPES, ids=ident)
every_rounding = pytest.mark.parametrize("rounding", Rounding, ids=ident)
every_dtype = pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))


def codes(fmt: FloatFormat) -> np.ndarray:
    return np.arange(1 << fmt.bits, dtype=fmt.code_dtype)


# Arithmetic


@every_rounding
@every_dtype
def test_fma_add_multiply_against_fractions(dtype: Any, rounding: Rounding):
    rng, count = np.random.default_rng(5), 400
    a, b, c = (edge_floats(seed, dtype, count) for seed in range(3))
    # Half of them near cancellation, where a second rounding shows.
    a[::2], b[::2] = rng.standard_normal((2, count // 2)).astype(dtype)
    c[::4] = -(a[::4] * b[::4])
    c[2::4] = (a[2::4] * b[2::4] * dtype(2.0) ** rng.integers(-14, 14, count // 4)).astype(dtype)
    numbers = np.isfinite([a, b, c]).all(0)
    a, b, c = a[numbers], b[numbers], c[numbers]
    assert len(a) > count // 2
    for got, function in (
        (arithmetic.fma(a, b, c, rounding), lambda x, y, z: x * y + z),
        (arithmetic.add(a, b, rounding), lambda x, y, z: x + y),
        (arithmetic.multiply(a, b, rounding), lambda x, y, z: x * y),
    ):
        want = np.array([*map(exactly(function, dtype, rounding), a, b, c)])
        np.testing.assert_array_equal(got, want)  # signs of zero are in the next test
        assert got.dtype == dtype


@every_rounding
@every_dtype
def test_signs_of_zero(dtype: Any, rounding: Rounding):
    zero, one, mixed = dtype(0), dtype(1), rounding is Rounding.DOWN
    cases = [(one, zero, zero), (one, -zero, -zero), (one, one, -one), (-one, zero, zero), (one, -zero, zero)]
    a, b, c = (np.array(column, dtype) for column in zip(*cases, strict=True))
    assert list(np.signbit(arithmetic.fma(a, b, c, rounding))) == [False, True, mixed, mixed, mixed]
    assert list(np.signbit(arithmetic.add(b, c, rounding))) == [False, True, mixed, False, mixed]
    assert list(np.signbit(arithmetic.multiply(a, b, rounding))) == [False, True, False, True, True]


TINY, HUGE = 2.0**-1074, np.finfo(np.float64).max


@pytest.mark.parametrize("dtype,a,b,c", [
    # The product is a tie in fp32; the addend decides.
    (np.float32, 1 + 2.0**-23, 1.5, -(2.0**-90)), (np.float16, 1 + 2.0**-10, 1.5, -(2.0**-24)),
    # A tie between two denormals, but for the last bit of the product.
    (np.float32, 2.0**-75 * (1 - 2.0**-23), 2.0**-75 * (1 + 2.0**-23), 2.0**-127 + 2.0**-149),
    # The ends of the range.
    (np.float64, 1 + 2.0**-30, 2.0**-53 * (1 - 2.0**-30), 1 + 2.0**-52), (np.float64, TINY, 0.5, TINY),
    (np.float64, 2.0**-600, 2.0**-500, TINY), (np.float64, HUGE, 2.0, -HUGE), (np.float64, 2.0**1000, 2.0**23, HUGE),
    (np.float64, 1.5 * 2.0**-537, 1.5 * 2.0**-537, -TINY), (np.float64, HUGE, 1 + 2.0**-52, -HUGE),
])  # fmt: skip
def test_fma_where_two_roundings_go_wrong(dtype: Any, a: float, b: float, c: float):
    got = arithmetic.fma(*(np.array([x], dtype) for x in (a, b, c)))[0]
    assert float(got) == rounded(Fraction(a) * Fraction(b) + Fraction(c), formats.FORMAT_OF_DTYPE[np.dtype(dtype)])


def test_signalling_nan_wins_in_ieee_mode_only():
    signalling = np.uint32([0x7FA00001]).view(np.float32)[0]
    a, b = np.array([signalling, 1], np.float32), np.array([1, signalling], np.float32)
    for function in (minmax.min_num, minmax.max_num):
        assert (function(a, b).view(np.uint32) == 0x7FE00001).all()
        assert (function(a, b, ieee=False) == 1).all()
    assert (minmax.minimum(a, b).view(np.uint32) == 0x7FE00001).all()


def test_fma_to_half_is_one_rounding():
    rng = np.random.default_rng(0)
    a, b, c = (np.ldexp(rng.standard_normal(500), rng.integers(-9, 7, 500)).astype(np.float32) for _ in range(3))
    want = np.array([*map(exactly(lambda x, y, z: x * y + z, np.float16), a, b, c)])
    assert_same(arithmetic.fma_to_half(a, b, c), want)


# Functions


def test_sine_and_cosine_of_turns():
    quarters = np.arange(-8, 9, dtype=np.float32) / 4
    assert (functions.sine(quarters) == np.round(np.sin(2 * np.pi * quarters.astype(np.float64)))).all()
    assert (functions.cosine(quarters) == np.round(np.cos(2 * np.pi * quarters.astype(np.float64)))).all()
    assert_same(functions.sine(np.float32([-0.0, np.inf, np.nan])), np.float32([-0.0, np.nan, np.nan]))


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_division_sequence_is_correctly_rounded(dtype: Any):
    """The compiler's division: scale, one Newton step or more, fmas, fixup."""
    numerator, denominator = (edge_floats(seed, dtype, 4000) for seed in (10, 11))
    want = numerator / denominator
    scaled, _ = division.div_scale(denominator, denominator, numerator)
    top, vcc = division.div_scale(numerator, denominator, numerator)
    guess = functions.reciprocal(scaled)
    for _ in range(2):
        guess = arithmetic.fma(arithmetic.fma(-scaled, guess, np.ones_like(guess)), guess, guess)
    quotient = arithmetic.multiply(top, guess)
    if dtype is np.float32:
        quotient = arithmetic.fma(arithmetic.fma(-scaled, quotient, top), guess, quotient)
    rest = arithmetic.fma(-scaled, quotient, top)
    assert_same(division.div_fixup(division.div_fmas(rest, guess, quotient, vcc), denominator, numerator), want)


def test_mode_register():
    mode = float_mode.FloatMode.from_register(0b11_0000_0000 | 0xF0 | 0b0111 | 1 << 23)
    assert mode == float_mode.FloatMode(Rounding.ZERO, Rounding.UP, fp16_ovfl=True)
    assert float_mode.FloatMode.from_register(0b0010_0000) == float_mode.FloatMode(
        keep_in32=False, keep_out32=True, keep_in16_64=False, keep_out16_64=False, dx10_clamp=False, ieee=False
    )


# Conversions


@every_format
def test_every_code(fmt: FloatFormat):
    """Every code is decoded as ml_dtypes does, and encoded to itself."""
    value = conversions.decode(codes(fmt), fmt)
    assert_same(value, codes(fmt).view(ML_DTYPES[fmt]).astype(np.float32))
    got, numbers = conversions.encode(value, fmt), ~np.isnan(value)
    assert (got[numbers] == codes(fmt)[numbers]).all()
    assert (got[~numbers] & ~np.array(fmt.sign_code, got.dtype) == fmt.nan_code & ~fmt.sign_code).all()


@every_format
def test_encode_nearest_agrees_with_ml_dtypes(fmt: FloatFormat):
    rng, largest = np.random.default_rng(1), np.float32(rounded(Fraction(10) ** 6, fmt, Rounding.DOWN))
    value = np.concatenate(
        [edge_floats(1, np.float32, 5000), rng.standard_normal(5000).astype(np.float32) * (largest / 3)]
    )
    value = value[np.isfinite(value)] if fmt.special == "finite" else value
    want = value.astype(ML_DTYPES[fmt]).astype(np.float32)
    assert_same(conversions.encode(value, fmt).view(ML_DTYPES[fmt]).astype(np.float32), want)


@every_rounding
@pytest.mark.parametrize("fmt", SMALL, ids=ident)
def test_encode_every_gap_of_a_small_format(fmt: FloatFormat, rounding: Rounding):
    """Encode each finite value, each middle, and a little to either side, in each rounding mode."""
    table = sorted({Fraction(float(v)) for v in conversions.decode(codes(fmt), fmt) if np.isfinite(v)})
    past = table[-1] + (table[-1] - table[-2])
    points = [*table, *((a + b) / 2 for a, b in itertools.pairwise(table)), past, -past, past * 2]
    points += [(table[-1] + past) / 2, -(table[-1] + past) / 2]
    points = [p + d for p in points for d in (0, Fraction(1, 1 << 30), -Fraction(1, 1 << 30)) if p + d]
    value, top = np.array([float(p) for p in points]), np.float32(table[-1])
    assert all(Fraction(float(v)) == p for v, p in zip(value, points, strict=True))
    want = np.array([rounded(p, fmt, rounding) for p in points], np.float32)
    clipped = np.clip(want, -top, top)
    if fmt.special == "finite":
        want = clipped
    elif fmt.special != "ieee":
        want = np.where(np.isinf(want), np.float32(np.nan), want)
    if fmt.special == "fnuz":  # which has one zero
        want, clipped = want + np.float32(0), clipped + np.float32(0)
    assert_same(conversions.decode(conversions.encode(value, fmt, rounding), fmt), want)
    assert_same(conversions.decode(conversions.encode(value, fmt, rounding, saturate=True), fmt), clipped)


@every_rounding
def test_narrowing_in_each_rounding_mode(rounding: Rounding):
    rng = np.random.default_rng(2)
    value = (rng.standard_normal(500) * np.exp2(rng.integers(-28, 18, 500))).astype(np.float32)
    got = conversions.f32_to_f16(value, rounding).view(np.float16)
    assert_same(got, np.array([*map(exactly(lambda x: x, np.float16, rounding), value)]))
    value = np.r_[rng.standard_normal(500) * np.exp2(rng.integers(-155, 130, 500)), np.nan, np.inf, -np.inf, -0.0]
    assert_same(
        conversions.narrow(value, rounding), np.array([*map(exactly(lambda x: x, np.float32, rounding), value)])
    )


def test_infinities_and_zeros():
    infinite, tiny = np.array([np.inf, -np.inf], np.float32), np.array([-0.0, -1e-30, 0.0], np.float32)
    for fmt, saturate in itertools.product(ML_DTYPES, (False, True)):
        got = conversions.encode(infinite, fmt, saturate=saturate)
        if fmt.special == "finite" or (saturate and fmt.bits == 8):
            assert got.tolist() == [fmt.max_code, fmt.max_code | fmt.sign_code]
        elif fmt.special == "ieee":
            assert_same(conversions.decode(got, fmt), infinite)
        else:
            assert np.isnan(conversions.decode(got, fmt)).all()
    assert (conversions.encode(tiny, formats.FP8_FNUZ) == 0).all()
    assert (conversions.encode(tiny, formats.FP8) == [0x80, 0x80, 0]).all()


@pytest.mark.parametrize("fmt", (formats.FP8, formats.BF8_FNUZ, formats.FP16, formats.BF16), ids=ident)
def test_stochastic_rounding_thresholds(fmt: FloatFormat):
    """A value one quarter of the way up to the next one goes up for exactly a quarter of the random numbers."""
    ulp = 2.0**-fmt.mantissa_bits
    value, random = np.full(1 << 12, 1 + ulp / 4, np.float32), np.linspace(0, 2**32 - 1, 1 << 12).astype(np.uint32)
    for sign in (1, -1):
        got = sign * conversions.decode(conversions.cvt_sr(sign * value, random, fmt), fmt)
        assert set(got) == {1.0, np.float32(1 + ulp)} and ((got > 1) == (random >= 3 << 30)).all()
    exact = conversions.decode(codes(fmt), fmt)
    exact = exact[np.isfinite(exact)]
    assert_same(
        conversions.decode(conversions.cvt_sr(exact, np.full(exact.shape, 0xFFFFFFFF, np.uint32), fmt), fmt), exact
    )
