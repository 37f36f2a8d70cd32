"""Conversions and arithmetic against exact fractions, ml_dtypes and numpy."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from aot_emulator.isa.floats import arithmetic, conversions, division, formats, functions, minmax
from aot_emulator.state import float_mode
from aot_emulator.state.float_mode import Rounding

from tests.support.emulation.float_rounding import ROUNDINGS, awkward, check_rounding, ident
from tests.support.emulation.registers import assert_same

# --- Arithmetic


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=ident)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_fma_add_multiply_against_fractions(dtype, rounding):
    rng = np.random.default_rng(5)
    count = 3000
    a, b, c = (awkward(dtype, rng, count)[:count] for _ in range(3))
    # Half of them near cancellation, where a second rounding shows.
    a[::2] = rng.standard_normal(count // 2).astype(dtype)
    b[::2] = rng.standard_normal(count // 2).astype(dtype)
    with np.errstate(all="ignore"):
        c[::4] = -(a[::4] * b[::4])
        c[2::4] = (a[2::4] * b[2::4] * dtype(2.0) ** rng.integers(-14, 14, count // 4)).astype(dtype)
    for got, exact in (
        (arithmetic.fma(a, b, c, rounding), lambda x, y, z: x * y + z),
        (arithmetic.add(a, b, rounding), lambda x, y, z: x + y),
        (arithmetic.multiply(a, b, rounding), lambda x, y, z: x * y),
    ):
        assert got.dtype == dtype
        checked = 0
        for x, y, z, g in zip(a, b, c, got, strict=True):
            if np.isfinite([x, y, z]).all():
                check_rounding(exact(*(Fraction(float(v)) for v in (x, y, z))), g, rounding)
                checked += 1
        assert checked > count // 2


@pytest.mark.parametrize(
    ("dtype", "a", "b", "c"),
    [
        # The product is a tie in fp32; the addend decides.
        (np.float32, 1 + 2.0**-23, 1.5, -(2.0**-90)),
        # A tie between two denormals, but for the last bit of the product.
        (np.float32, 2.0**-75 * (1 - 2.0**-23), 2.0**-75 * (1 + 2.0**-23), 2.0**-127 + 2.0**-149),
        # The same in fp64.
        (np.float64, 1 + 2.0**-30, 2.0**-53 * (1 - 2.0**-30), 1 + 2.0**-52),
        (np.float16, 1 + 2.0**-10, 1.5, -(2.0**-24)),
    ],
)
def test_fma_where_two_roundings_go_wrong(dtype, a, b, c):
    operands = [np.array([x], dtype) for x in (a, b, c)]
    assert [float(x[0]) for x in operands] == [a, b, c]
    got = arithmetic.fma(*operands)[0]
    check_rounding(Fraction(a) * Fraction(b) + Fraction(c), got, Rounding.NEAREST_EVEN)
    wider = {np.float16: np.float16, np.float32: np.float64, np.float64: np.float64}[dtype]
    x, y, z = (operand.astype(wider) for operand in operands)
    assert got != (x * y + z).astype(dtype)[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=ident)
def test_signs_of_zero(dtype, rounding):
    zero, one = dtype(0), dtype(1)
    cases = [(one, zero, zero), (one, -zero, -zero), (one, one, -one), (-one, zero, zero), (one, -zero, zero)]
    a, b, c = (np.array(column, dtype) for column in zip(*cases, strict=True))
    mixed = rounding is Rounding.DOWN
    assert list(np.signbit(arithmetic.fma(a, b, c, rounding))) == [False, True, mixed, mixed, mixed]
    assert list(np.signbit(arithmetic.add(b, c, rounding))) == [False, True, mixed, False, mixed]
    assert list(np.signbit(arithmetic.multiply(a, b, rounding))) == [False, True, False, True, True]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_fma_specials(dtype):
    a = np.array([np.inf, np.inf, np.inf, np.nan, 1, 1, np.finfo(dtype).max, 0], dtype)
    b = np.array([0, 1, 1, 1, np.nan, 1, 2, np.inf], dtype)
    c = np.array([1, 1, -np.inf, 1, 1, np.nan, -np.inf, 1], dtype)
    assert_same(
        arithmetic.fma(a, b, c), np.array([np.nan, np.inf, np.nan, np.nan, np.nan, np.nan, -np.inf, np.nan], dtype)
    )


def test_fma_double_at_the_ends_of_the_range():
    tiny, huge = 2.0**-1074, np.finfo(np.float64).max
    triples = [(tiny, 0.5, tiny), (2.0**-600, 2.0**-500, tiny), (huge, 2.0, -huge), (2.0**1000, 2.0**23, huge)]
    triples += [(1.5 * 2.0**-537, 1.5 * 2.0**-537, -tiny), (huge, 1 + 2.0**-52, -huge), (2.0**600, 2.0**500, -np.inf)]
    a, b, c = (np.array(column) for column in zip(*triples, strict=True))
    got = arithmetic.fma(a, b, c)
    for x, y, z, g in zip(a[:-1], b, c, got, strict=False):
        check_rounding(Fraction(x) * Fraction(y) + Fraction(z), g, Rounding.NEAREST_EVEN)
    assert got[-1] == -np.inf


def test_dot():
    pair = lambda low, high: conversions.pack16(np.float16([low]).view(np.uint16), np.float16([high]).view(np.uint16))  # noqa: E731
    got = arithmetic.dot(pair(2, 3), pair(5, 7), np.float32([0.5]), formats.FP16, formats.FP16)
    assert got.dtype == np.float32 and got[0] == 31.5
    ones = np.uint32([0x40404040])  # fp8 FNUZ 1.0
    assert arithmetic.dot(ones, ones, np.float32([1]), formats.FP8_FNUZ, formats.FP8_FNUZ)[0] == 5
    a, b = np.uint32([0xFF7F8001]), np.uint32([0x02FF7F80])
    signed = -128 + -128 * 127 + 127 * -1 + -1 * 2
    assert arithmetic.dot_integer(a, b, np.uint32([0]), 8, (True, True)).view(np.int32)[0] == signed
    mixed = 128 + 128 * 127 + 127 * 255 + 255 * 2
    assert arithmetic.dot_integer(a, b, np.uint32([0]), 8, (False, False))[0] == mixed
    assert (
        arithmetic.dot_integer(a, b, np.uint32([7]), 8, (True, False)).view(np.int32)[0]
        == 7 + 128 - 128 * 127 + 127 * 255 - 2
    )
    top = np.uint32([0x7FFFFFFF])
    assert (
        arithmetic.dot_integer(np.uint32([0x11111111]), np.uint32([0x11111111]), top, 4, (True, True))[0] == 0x80000007
    )
    assert (
        arithmetic.dot_integer(np.uint32([0x11111111]), np.uint32([0x11111111]), top, 4, (True, True), clamp=True)
        == top
    )
    assert (
        arithmetic.dot_integer(np.uint32([0xFFFF0001]), np.uint32([0x00020003]), np.uint32([0]), 16, (True, True))[0]
        == 1
    )


# --- Min, max, median


SIGNALLING = np.uint32([0x7FA00001]).view(np.float32)[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_min_max_order_zeros_and_drop_nan(dtype):
    zero, nan = dtype(0), dtype(np.nan)
    a = np.array([zero, -zero, nan, 3, nan, -np.inf, 2], dtype)
    b = np.array([-zero, zero, 3, nan, nan, 5, 2], dtype)
    assert_same(minmax.min_num(a, b), np.array([-zero, -zero, 3, 3, nan, -np.inf, 2], dtype))
    assert_same(minmax.max_num(a, b), np.array([zero, zero, 3, 3, nan, 5, 2], dtype))
    assert_same(minmax.minimum(a, b), np.array([-zero, -zero, nan, nan, nan, -np.inf, 2], dtype))
    assert_same(minmax.maximum(a, b), np.array([zero, zero, nan, nan, nan, 5, 2], dtype))


def test_signalling_nan_wins_in_ieee_mode_only():
    a, b = np.array([SIGNALLING, 1], np.float32), np.array([1, SIGNALLING], np.float32)
    for function in (minmax.min_num, minmax.max_num):
        assert (function(a, b).view(np.uint32) == 0x7FE00001).all()
        assert (function(a, b, ieee=False) == 1).all()
    assert (minmax.minimum(a, b).view(np.uint32) == 0x7FE00001).all()
    assert list(formats.is_signalling(np.array([SIGNALLING, np.nan, 1], np.float32))) == [True, False, False]


def test_med3():
    rng = np.random.default_rng(6)
    a, b, c = rng.integers(-3, 4, (3, 5000)).astype(np.float32)
    assert (minmax.med3(a, b, c) == np.median([a, b, c], axis=0)).all()
    nan, two, one = (np.float32([x]) for x in (np.nan, 2, 1))
    for triple in itertools.permutations((nan, two, one)):
        assert minmax.med3(*triple)[0] == 1


# --- Exponents and functions


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=ident)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ldexp(dtype, rounding):
    rng = np.random.default_rng(7)
    value = awkward(dtype, rng, 1000)
    exponent = rng.integers(-2200, 2200, value.size)
    exponent[::2] = rng.integers(-30, 30, exponent[::2].size)
    got = functions.ldexp(value, exponent, rounding)
    for v, e, g in zip(value, exponent, got, strict=True):
        if np.isfinite(v):
            check_rounding(Fraction(float(v)) * Fraction(2) ** int(e), g, rounding)
    assert np.isnan(got[np.isnan(value)]).all()


def test_frexp_fract():
    value = np.float32([8, -0.75, 1e-45, 0, np.inf, np.nan])
    assert_same(functions.frexp_mantissa(value), np.float32([0.5, -0.75, 0.5, 0, np.inf, np.nan]))
    assert list(functions.frexp_exponent(value)) == [4, 0, -148, 0, 0, 0]
    assert_same(
        functions.fract(np.float32([1.25, -0.25, -1e-20, np.inf])), np.float32([0.25, 0.75, 1 - 2.0**-24, np.nan])
    )


def test_classify_and_flush():
    values = np.float32([np.nan, -np.inf, -1, -1e-40, -0.0, 0, 1e-40, 1, np.inf])
    assert list(formats.classify(values)) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert formats.classify(np.array([SIGNALLING]))[0] == 0
    assert_same(formats.flush_denormals(values), np.float32([np.nan, -np.inf, -1, -0.0, -0.0, 0, 0, 1, np.inf]))


def test_roots_and_reciprocals_are_correctly_rounded():
    rng = np.random.default_rng(8)
    value = np.abs(rng.standard_normal(2000) * np.exp2(rng.integers(-120, 120, 2000))).astype(np.float32)
    for x, r, s in zip(value, functions.reciprocal(value), functions.sqrt(value), strict=True):
        check_rounding(1 / Fraction(float(x)), r, Rounding.NEAREST_EVEN)
        exact, ulp = Fraction(float(x)), Fraction(float(np.spacing(s)))
        assert (Fraction(float(s)) - ulp / 2) ** 2 <= exact <= (Fraction(float(s)) + ulp / 2) ** 2
    square = functions.reciprocal_sqrt(value).astype(np.float64)
    assert np.abs(square * np.sqrt(value.astype(np.float64)) - 1).max() <= 2.0**-24


def test_functions_at_special_points():
    zero, inf, tiny = np.float32([0, -0.0]), np.float32([np.inf, -np.inf]), np.float32([1e-40, -1e-40])
    assert_same(functions.reciprocal(zero), inf)
    assert_same(functions.reciprocal(inf), zero)
    assert_same(functions.reciprocal(tiny), inf)
    assert functions.reciprocal(tiny[:1], keep_denormals=True)[0] == np.inf
    assert_same(functions.reciprocal(np.float32([3e38])), np.float32([0]))
    assert_same(functions.reciprocal_sqrt(zero), inf)
    assert_same(functions.sqrt(np.float32([-0.0, -1, np.inf])), np.float32([-0.0, np.nan, np.inf]))
    assert_same(
        functions.exp2(np.float32([0, -np.inf, np.inf, 10, -127, 128])), np.float32([1, 0, np.inf, 1024, 0, np.inf])
    )
    assert_same(
        functions.log2(np.float32([1, 8, 0, -1, np.inf, 1e-40])), np.float32([0, 3, -np.inf, np.nan, np.inf, -np.inf])
    )
    assert_same(functions.exp2(np.float16([-24, 0.5])), np.float16([2.0**-24, 2**0.5]))


def test_sine_and_cosine_of_turns():
    quarters = np.arange(-8, 9, dtype=np.float32) / 4
    assert (functions.sine(quarters) == np.round(np.sin(2 * np.pi * quarters.astype(np.float64)))).all()
    assert (functions.cosine(quarters) == np.round(np.cos(2 * np.pi * quarters.astype(np.float64)))).all()
    turns = np.random.default_rng(9).uniform(-4, 4, 20000).astype(np.float32)
    wide = turns.astype(np.longdouble) * (2 * np.longdouble("3.14159265358979323846264338327950288"))
    assert np.abs(functions.sine(turns) - np.sin(wide)).max() < 2.0**-24
    assert np.abs(functions.cosine(turns) - np.cos(wide)).max() < 2.0**-24
    assert_same(functions.sine(np.float32([-0.0, np.inf, np.nan])), np.float32([-0.0, np.nan, np.nan]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_division_sequence_is_correctly_rounded(dtype):
    """The compiler's division: scale, one Newton step or more, fmas, fixup."""
    rng = np.random.default_rng(10)
    numerator, denominator = (awkward(dtype, rng, 20000) for _ in range(2))
    numerator = numerator[rng.permutation(numerator.size)]
    with np.errstate(all="ignore"):
        want = numerator / denominator
    scaled, _ = division.div_scale(denominator, denominator, numerator)
    top, vcc = division.div_scale(numerator, denominator, numerator)
    guess = functions.reciprocal(scaled)
    one = np.ones_like(guess)
    for _ in range(2):
        guess = arithmetic.fma(arithmetic.fma(-scaled, guess, one), guess, guess)
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
