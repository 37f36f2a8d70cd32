"""Conversions of floats against exact fractions, ml_dtypes and numpy."""

import bisect
import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from aot_emulator.isa.floats import conversions, formats
from aot_emulator.state.float_mode import Rounding

from tests.support.emulation.float_rounding import ROUNDINGS, awkward, check_rounding, ident
from tests.support.emulation.registers import assert_same

ML_DTYPES = {
    formats.FP16: np.float16,
    formats.BF16: ml_dtypes.bfloat16,
    formats.FP8: ml_dtypes.float8_e4m3fn,
    formats.BF8: ml_dtypes.float8_e5m2,
    formats.FP8_FNUZ: ml_dtypes.float8_e4m3fnuz,
    formats.BF8_FNUZ: ml_dtypes.float8_e5m2fnuz,
    formats.FP6: ml_dtypes.float6_e2m3fn,
    formats.BF6: ml_dtypes.float6_e3m2fn,
    formats.FP4: ml_dtypes.float4_e2m1fn,
}
FORMATS = list(ML_DTYPES)
SMALL = [fmt for fmt in FORMATS if fmt.bits <= 8]


def codes(fmt):
    return np.arange(1 << fmt.bits, dtype=fmt.code_dtype)


# An exact rounding, written from the definition: try both neighbours in the sorted list of finite values.


def finite_values(fmt):
    table = sorted({Fraction(float(v)) for v in conversions.decode(codes(fmt), fmt) if np.isfinite(v)})
    return table


def exact_round(x, table, fmt, rounding):
    """The rounded value, or +-infinity for overflow; Fraction in, float out (zeros unsigned)."""
    above = bisect.bisect_left(table, x)
    if above < len(table) and table[above] == x:
        return float(x)
    top = table[-1]
    step = top - table[-2]
    lower = table[above - 1] if above > 0 else -top - step
    upper = table[above] if above < len(table) else top + step
    middle = (lower + upper) / 2
    if rounding is Rounding.UP or (rounding is Rounding.ZERO and x < 0):
        result = upper
    elif rounding is Rounding.DOWN or rounding is Rounding.ZERO:
        result = lower
    elif x != middle:
        result = lower if x < middle else upper
    else:
        unit = step if abs(lower) > top or abs(upper) > top else upper - lower
        result = lower if (lower / unit) % 2 == 0 else upper
    if abs(result) > top:
        return float("inf") if x > 0 else float("-inf")
    return float(result)


# --- Formats


@pytest.mark.parametrize("fmt", FORMATS, ids=ident)
def test_decode_every_code(fmt):
    want = codes(fmt).view(ML_DTYPES[fmt]).astype(np.float32)
    assert_same(conversions.decode(codes(fmt), fmt), want)


@pytest.mark.parametrize("fmt", FORMATS, ids=ident)
def test_encode_of_decode_is_the_code(fmt):
    value = conversions.decode(codes(fmt), fmt)
    got = conversions.encode(value, fmt)
    numbers = ~np.isnan(value)
    assert (got[numbers] == codes(fmt)[numbers]).all()
    assert (got[~numbers] & ~np.array(fmt.sign_code, got.dtype) == fmt.nan_code & ~fmt.sign_code).all()


@pytest.mark.parametrize("fmt", FORMATS, ids=ident)
def test_encode_nearest_agrees_with_ml_dtypes(fmt):
    rng = np.random.default_rng(1)
    scale = np.float32(conversions.decode(np.array([fmt.max_code], fmt.code_dtype), fmt)[0])
    with np.errstate(over="ignore"):
        value = np.concatenate([awkward(np.float32, rng), (rng.standard_normal(50000) * scale / 3).astype(np.float32)])
    value = np.concatenate([value, (rng.standard_normal(50000)).astype(np.float32)])
    if fmt.special == "finite":
        value = value[np.isfinite(value)]
    with np.errstate(all="ignore"):
        want = value.astype(ML_DTYPES[fmt])
    got = conversions.encode(value, fmt).view(ML_DTYPES[fmt])
    assert_same(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=ident)
@pytest.mark.parametrize("fmt", SMALL, ids=ident)
def test_encode_every_gap_of_a_small_format(fmt, rounding):
    """Each finite value, each middle, and a little to either side, in each rounding mode."""
    table = finite_values(fmt)
    middles = [(a + b) / 2 for a, b in itertools.pairwise(table)]
    past = table[-1] + (table[-1] - table[-2])
    points = [*table, *middles, past, -past, past * 2, (table[-1] + past) / 2, -(table[-1] + past) / 2]
    points = [p + d for p in points for d in (0, Fraction(1, 1 << 30), -Fraction(1, 1 << 30))]
    value = np.array([float(p) for p in points])
    assert all(Fraction(float(v)) == p for v, p in zip(value, points, strict=True))
    want = np.array([exact_round(p, table, fmt, rounding) for p in points], np.float32)
    top = np.float32(table[-1])
    if fmt.special == "finite":
        want = np.clip(want, -top, top)
    elif fmt.special != "ieee":
        want = np.where(np.isinf(want), np.float32(np.nan), want)
    got = conversions.decode(conversions.encode(value, fmt, rounding), fmt)
    assert ((got == want) | (np.isnan(got) & np.isnan(want))).all()
    zero = got == 0
    if fmt.special != "fnuz":
        assert (np.signbit(got[zero & (value != 0)]) == (value[zero & (value != 0)] < 0)).all()
    saturated = conversions.decode(conversions.encode(value, fmt, rounding, saturate=True), fmt)
    clipped = np.clip(np.array([exact_round(p, table, fmt, rounding) for p in points]), -float(top), float(top))
    assert (saturated == clipped.astype(np.float32)).all()


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=ident)
def test_encode_halves_in_each_rounding_mode(rounding):
    rng = np.random.default_rng(2)
    table = finite_values(formats.FP16)
    value = (rng.standard_normal(3000) * np.exp2(rng.integers(-28, 18, 3000))).astype(np.float32)
    want = [exact_round(Fraction(float(v)), table, formats.FP16, rounding) for v in value]
    got = conversions.decode(conversions.f32_to_f16(value, rounding), formats.FP16)
    assert (got == np.array(want, np.float32)).all()


def test_infinities():
    infinite = np.array([np.inf, -np.inf], np.float32)
    for saturate in (False, True):
        for fmt in (formats.FP16, formats.BF16):
            got = conversions.encode(infinite, fmt, saturate=saturate)
            assert_same(conversions.decode(got, fmt), infinite)
    assert_same(conversions.decode(conversions.encode(infinite, formats.BF8), formats.BF8), infinite)
    for fmt in (formats.FP8, formats.FP8_FNUZ, formats.BF8_FNUZ):
        assert np.isnan(conversions.decode(conversions.encode(infinite, fmt), fmt)).all()
    for saturate in (False, True):
        for fmt in (formats.FP4, formats.FP6, formats.BF6):
            assert (
                conversions.encode(infinite, fmt, saturate=saturate) == [fmt.max_code, fmt.max_code | fmt.sign_code]
            ).all()


def test_fnuz_has_no_negative_zero():
    tiny = np.array([-0.0, -1e-30, 0.0], np.float32)
    assert (conversions.encode(tiny, formats.FP8_FNUZ) == 0).all()
    assert (conversions.encode(tiny, formats.FP8) == [0x80, 0x80, 0]).all()


def test_bf16_short_way_equals_the_general_one():
    value = awkward(np.float32, np.random.default_rng(3), 200000)
    number = ~np.isnan(value)
    assert (conversions.f32_to_bf16(value)[number] == conversions.encode(value[number], formats.BF16)).all()
    assert np.isnan(conversions.decode(conversions.f32_to_bf16(value[~number]), formats.BF16)).all()


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=ident)
def test_narrow_double(rounding):
    rng = np.random.default_rng(4)
    value = rng.standard_normal(4000) * np.exp2(rng.integers(-155, 130, 4000))
    got = conversions.narrow(value, rounding)
    for v, g in zip(value, got, strict=True):
        check_rounding(Fraction(float(v)), g, rounding)
    assert_same(
        conversions.narrow(np.array([np.nan, np.inf, -np.inf, -0.0]), rounding),
        np.float32([np.nan, np.inf, -np.inf, -0.0]),
    )


@pytest.mark.parametrize("fmt", [formats.FP8, formats.BF8_FNUZ, formats.FP16, formats.BF16], ids=ident)
def test_stochastic_rounding_thresholds(fmt):
    """The value one quarter of the way up to the next one goes up for exactly a quarter of the random numbers."""
    ulp = 2.0**-fmt.mantissa_bits
    value = np.full(1 << 12, 1 + ulp / 4, np.float32)
    random = np.linspace(0, 2**32 - 1, value.size).astype(np.uint32)
    for sign in (1, -1):
        got = sign * conversions.decode(conversions.cvt_sr(sign * value, random, fmt), fmt)
        assert set(got) == {1.0, np.float32(1 + ulp)}
        assert ((got > 1) == (random >= 3 << 30)).all()
    exact = conversions.decode(codes(fmt), fmt)
    exact = exact[np.isfinite(exact)]
    assert_same(
        conversions.decode(conversions.cvt_sr(exact, np.full(exact.shape, 0xFFFFFFFF, np.uint32), fmt), fmt), exact
    )


def test_packed_conversions():
    low, high = np.array([1.0, 65520.0, -1e9], np.float32), np.array([-2.0, 1 + 2.0**-11, 3.0], np.float32)
    assert list(conversions.cvt_pkrtz_f16_f32(low, high)) == [0xC0003C00, 0x3C007BFF, 0x4200FBFF]
    assert list(conversions.cvt_pk_bf16_f32(low, high)) == [0xC0003F80, 0x3F804780, 0x4040CE6E]
    assert list(conversions.cvt_pk_f8_f32(low, high, formats.FP8, saturate=True)) == [0xC038, 0x387E, 0x44FE]
    assert list(conversions.cvt_pk_f8_f32(low, high, formats.FP8_FNUZ, saturate=False)) == [0xC840, 0x4080, 0x4C80]
    assert list(conversions.insert_bits(np.uint32([0x11223344]), np.uint16([0xABCD]), 16, 16)) == [0xABCD3344]


def test_to_integer():
    value = np.array([1.9, -1.9, np.nan, np.inf, -np.inf, 3e9, -3e9, 2147483520.0], np.float32)
    assert list(conversions.to_integer(value, 32, True)) == [
        1,
        -1,
        0,
        2**31 - 1,
        -(2**31),
        2**31 - 1,
        -(2**31),
        2147483520,
    ]
    assert list(conversions.to_integer(value, 32, False)) == [1, 0, 0, 2**32 - 1, 0, 3000000000, 0, 2147483520]
    assert list(conversions.to_integer(value.astype(np.float64), 16, True))[5:] == [32767, -32768, 32767]
