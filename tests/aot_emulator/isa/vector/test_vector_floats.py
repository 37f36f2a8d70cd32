"""Float instructions of the vector unit: exact results by rational arithmetic, approximations within their error."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from aot_emulator.isa.floats import division
from aot_emulator.isa.vector.conversion_ops import CONVERSION_OPS
from aot_emulator.isa.vector.float_ops import FLOATS, OTHER_FLOATS, SHORT_FLOATS

from tests.support.emulation.exact_floats import exactly, high_maximum, low_minimum, rounded
from tests.support.emulation.machine import DEFAULT_MODE, Machine, edge_floats, integers
from tests.support.emulation.registers import assert_same, get, put, spelled

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


EXACT: dict[str, tuple[int, Callable[..., Any]]] = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "subrev": (2, lambda a, b: b - a),
    "mul": (2, lambda a, b: a * b),
    "fma": (3, lambda a, b, c: a * b + c),
}
EXACT_FORMS = {
    **{f"v_add_{k}": ("add", k) for k in DTYPES},
    **{f"v_mul_{k}": ("mul", k) for k in DTYPES},
    **{f"v_fma_{k}": ("fma", k) for k in DTYPES},
    **{f"v_{n}_{k}": (n, k) for n in ("sub", "subrev") for k in ("f16", "f32")},
}
CHOICES: dict[str, tuple[int, Callable[..., Any]]] = {
    "min": (2, low_minimum),
    "max": (2, high_maximum),
    "min3": (3, lambda a, b, c: low_minimum(low_minimum(a, b), c)),
    "max3": (3, lambda a, b, c: high_maximum(high_maximum(a, b), c)),
}
WHOLE: dict[str, Callable[[Any], Any]] = {"trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "rndne": np.rint}
# (function, error in units of the last place: hardware states 1; ours rounds the exact result)
APPROXIMATE: dict[str, Callable[[Any], Any]] = {
    "rcp": lambda x: 1 / x,
    "rsq": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "exp": np.exp2,
    "log": np.log2,
    "sin": lambda x: np.sin(2 * np.pi * np.fmod(x, 1)),
    "cos": lambda x: np.cos(2 * np.pi * np.fmod(x, 1)),
}


def run(
    name: str, kinds: list[str], sources: list[np.ndarray], result: str, modifiers: str = "", mode: int = DEFAULT_MODE
):
    machine = Machine(mode=mode)
    machine.v[2] = 0x55555555
    for i, source in enumerate(sources):
        put(machine, 8 + 4 * i, source)
    operands = ", ".join(spelled(kind, 8 + 4 * i) for i, kind in enumerate(kinds))
    machine.execute(f"{name} {spelled(result, 2)}, {operands}{modifiers}")
    return machine


def test_every_instruction_is_tested():
    tested = {
        *EXACT_FORMS,
        *(f"v_{n}_{k}" for n in CHOICES for k in DTYPES),
        *(f"v_{n}_{k}" for n in WHOLE for k in DTYPES),
        *(f"v_{n}_{k}" for n in APPROXIMATE for k in DTYPES),
    }
    tested |= {
        f"v_{name}_{k}" for name in ("fmac", "ldexp", "fract", "frexp_mant", "div_fixup", "med3") for k in DTYPES
    }
    tested |= {"v_frexp_exp_i16_f16", "v_frexp_exp_i32_f32", "v_frexp_exp_i32_f64"}
    assert {*FLOATS, *SHORT_FLOATS} <= tested
    assert set(OTHER_FLOATS) == set(OTHERS) | {"v_rcp_iflag_f32", "v_exp_legacy_f32", "v_log_legacy_f32"}
    assert set(CONVERSION_OPS) == set(CONVERSIONS) | {"v_cvt_pkaccum_u8_f32"}


@pytest.mark.parametrize("name", EXACT_FORMS)
def test_exact_arithmetic(name: str):
    operation, kind = EXACT_FORMS[name]
    count, function = EXACT[operation]
    dtype = DTYPES[kind]
    sources = [edge_floats(i, (4, 64), dtype) for i in range(count)]
    machine = run(name, [kind] * count, sources, kind)
    one = exactly(function, dtype)
    want = np.array([one(*values) for values in zip(*(source.ravel() for source in sources), strict=True)], dtype)
    assert_same(get(machine, 2, dtype).ravel(), want, name)


@pytest.mark.parametrize("name,kind", [(n, k) for n in CHOICES for k in DTYPES if k != "f64" or n in ("min", "max")])
def test_minimum_and_maximum(name: str, kind: str):
    count, function = CHOICES[name]
    sources = [edge_floats(i, (4, 64), DTYPES[kind]) for i in range(count)]
    machine = run(f"v_{name}_{kind}", [kind] * count, sources, kind)
    want = np.array([function(*v) for v in zip(*(s.ravel() for s in sources), strict=True)], DTYPES[kind])
    assert_same(get(machine, 2, DTYPES[kind]).ravel(), want, name)


@pytest.mark.parametrize("kind", ("f16", "f32"))
def test_median(kind: str):
    dtype = DTYPES[kind]
    sources = [np.where(np.isnan(s), dtype(3), s) for s in (edge_floats(i, (4, 64), dtype) for i in range(3))]
    machine = run(f"v_med3_{kind}", [kind] * 3, sources, kind)
    np.testing.assert_array_equal(get(machine, 2, dtype), np.median(np.stack(sources), axis=0))


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str, kind: str):
    source = edge_floats(3, (4, 64), DTYPES[kind])
    machine = run(f"v_{name}_{kind}", [kind], [source], kind)
    assert_same(get(machine, 2, DTYPES[kind]), WHOLE[name](source), name)


@pytest.mark.parametrize(
    "name,kind", [(n, k) for n in APPROXIMATE for k in DTYPES if k != "f64" or n in ("rcp", "rsq", "sqrt")]
)
def test_approximations(name: str, kind: str):
    dtype, info = DTYPES[kind], np.finfo(DTYPES[kind])
    source = edge_floats(4, (4, 64), dtype)
    if name in ("sin", "cos"):
        source = np.where(np.isfinite(source) & (np.abs(source) <= 256), source, dtype(0.25))
    got = get(run(f"v_{name}_{kind}", [kind], [source], kind), 2, dtype)
    with np.errstate(all="ignore"):
        given = source.astype(np.longdouble)
        if kind == "f32":  # these do not know denormals
            given = np.where(np.abs(given) < info.tiny, np.copysign(0, given), given)
        want = APPROXIMATE[name](given)
        if kind == "f32":
            want = np.where(np.abs(want) < info.tiny, np.copysign(0, want), want)
        want = want.astype(dtype)
    special = ~np.isfinite(want) | (want == 0)
    if name not in ("sin", "cos"):
        np.testing.assert_array_equal(got[special], want[special], name)
    finite = ~special
    error = np.abs(got[finite].astype(np.longdouble) - want[finite].astype(np.longdouble))
    absolute = 2 * info.eps if name in ("sin", "cos") else 0
    assert (error <= np.spacing(np.abs(want[finite])) + absolute).all(), name


@pytest.mark.parametrize("kind", DTYPES)
def test_exponents_and_mantissas(kind: str):
    dtype = DTYPES[kind]
    source = edge_floats(5, (4, 64), dtype)
    mantissa, exponent = np.frexp(source.astype(np.float64) if kind != "f64" else source)
    finite = np.isfinite(source)
    integer = "i16" if kind == "f16" else "i32"
    got = get(run(f"v_frexp_mant_{kind}", [kind], [source], kind), 2, dtype)
    assert_same(got, np.where(finite, mantissa, source).astype(dtype), "mantissa")
    got = get(run(f"v_frexp_exp_{integer}_{kind}", [kind], [source], "f32"), 2, np.dtype(f"i{int(integer[1:]) // 8}"))
    np.testing.assert_array_equal(got[finite], exponent[finite])
    assert not got[~finite].any()
    amount = integers(6, (4, 64)).astype(np.int32) % 80 - 40
    if kind == "f16":
        machine = Machine()
        put(machine, 8, source)
        machine.v[12] = amount.astype(np.int16).view(np.uint16)
        got = get(machine.execute("v_ldexp_f16 v2, v8, v12"), 2, dtype)
    else:
        got = get(run(f"v_ldexp_{kind}", [kind, "i32"], [source, amount], kind), 2, dtype)
    with np.errstate(all="ignore"):
        assert_same(got, np.ldexp(source, amount), "ldexp")


@pytest.mark.parametrize("kind", DTYPES)
def test_fractions(kind: str):
    dtype = DTYPES[kind]
    source = edge_floats(7, (4, 64), dtype)
    got = get(run(f"v_fract_{kind}", [kind], [source], kind), 2, dtype)
    finite = np.isfinite(source)
    assert ((got[finite] >= 0) & (got[finite] < 1)).all(), "always below 1"
    usual = finite & (np.abs(source) > 1e-3)
    np.testing.assert_array_equal(got[usual], (source - np.floor(source))[usual])


@pytest.mark.parametrize("kind", DTYPES)
def test_accumulating(kind: str):
    """v_fmac and v_mac read their destination."""
    dtype = DTYPES[kind]
    a, b, c = (np.random.default_rng(i).standard_normal((4, 64)).astype(dtype) for i in range(3))
    machine = Machine()
    for number, source in ((2, c), (8, a), (12, b)):
        put(machine, number, source)
    name = "v_mac_f16" if kind == "f16" else f"v_fmac_{kind}"
    machine.execute(f"{name} {spelled(kind, 2)}, {spelled(kind, 8)}, {spelled(kind, 12)}")
    if kind == "f16":
        want = a * b + c
    else:
        one = exactly(EXACT["fma"][1], dtype)
        want = np.array([one(*v) for v in zip(a.ravel(), b.ravel(), c.ravel(), strict=True)], dtype).reshape(4, 64)
    assert_same(get(machine, 2, dtype), want, name)


def halves_of(register: np.ndarray) -> list[np.ndarray]:
    return [(register >> shift).astype(np.uint16).view(np.float16).astype(np.float64) for shift in (0, 16)]


def fields_of(register: np.ndarray, bits: int) -> list[np.ndarray]:
    return [(register.view(np.int32) << 32 - bits - at >> 32 - bits).astype(np.int64) for at in range(0, 32, bits)]


OTHERS = ("v_mul_legacy_f32", "v_fmamk_f32", "v_fmaak_f32", "v_mac_f16", "v_madmk_f16", "v_madak_f16", "v_mad_f16",
          "v_dot2c_f32_f16", "v_dot2c_i32_i16", "v_dot4c_i32_i8", "v_dot8c_i32_i4")  # fmt: skip


def test_literals_as_sources():
    machine = Machine()
    a, b = (np.random.default_rng(i).standard_normal((4, 64)).astype(np.float32) for i in range(2))
    machine.v[8], machine.v[9] = a.view(np.uint32), b.view(np.uint32)
    machine.execute("v_fmamk_f32 v2, v8, 0x40490fdb, v9", "v_fmaak_f32 v3, v8, v9, 0x40490fdb")
    pi = float(np.float32(np.pi))
    np.testing.assert_array_equal(machine.v[2].view(np.float32), (a.astype(np.float64) * pi + b).astype(np.float32))
    np.testing.assert_array_equal(machine.v[3].view(np.float32), (a.astype(np.float64) * b + pi).astype(np.float32))
    short = [x.astype(np.float16) for x in (a, b)]
    for number, x in zip((8, 9), short, strict=True):
        put(machine, number, x)
    machine.execute("v_madmk_f16 v2, v8, 0x4248, v9", "v_madak_f16 v3, v8, v9, 0x4248")
    third = np.uint16(0x4248).view(np.float16)
    np.testing.assert_array_equal(get(machine, 2, np.float16), short[0] * third + short[1])
    np.testing.assert_array_equal(get(machine, 3, np.float16), short[0] * short[1] + third)


def test_legacy_multiply_and_unfused_multiply_add():
    a, b = (edge_floats(i, (4, 64), np.float32) for i in range(2))
    got = get(run("v_mul_legacy_f32", ["f32"] * 2, [a, b], "f32"), 2, np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.where((a == 0) | (b == 0), 0, a * b))
    x, y, z = (np.random.default_rng(i).standard_normal((4, 64)).astype(np.float16) for i in range(3))
    machine = run("v_mad_f16", ["f16"] * 3, [x, y, z], "f16")
    np.testing.assert_array_equal(get(machine, 2, np.float16), x * y + z)
    assert (machine.v[2] >> 16 == 0x5555).all(), "the upper half is kept"


def test_accumulating_dot_products():
    a, b = (np.random.default_rng(i).integers(0, 1 << 32, (4, 64), np.uint32) for i in range(2))
    machine = Machine()
    machine.v[8], machine.v[9] = a, b
    for i, (name, bits) in enumerate((("v_dot2c_i32_i16", 16), ("v_dot4c_i32_i8", 8), ("v_dot8c_i32_i4", 4))):
        machine.v[2 + i] = 1000
        machine.execute(f"{name} v{2 + i}, v8, v9")
        want = 1000 + sum(x * y for x, y in zip(fields_of(a, bits), fields_of(b, bits), strict=True))
        np.testing.assert_array_equal(machine.v[2 + i], want.astype(np.uint32))
    small = [(np.random.default_rng(i).integers(-9, 9, (4, 128)) / 4).astype(np.float16) for i in range(2)]
    machine.v[8], machine.v[9] = (x.view(np.uint32) for x in small)
    machine.v[2] = np.float32(0.25).view(np.uint32)
    machine.execute("v_dot2c_f32_f16 v2, v8, v9")
    x, y = (halves_of(value.view(np.uint32)) for value in small)
    np.testing.assert_array_equal(machine.v[2].view(np.float32), 0.25 + x[0] * y[0] + x[1] * y[1])


# Conversions


def whole(low: int, high: int, way: Callable[[float], float] = math.trunc) -> Callable[[Any], int]:
    def convert(x: Any) -> int:
        if np.isnan(x):
            return 0
        return min(max(way(float(x)), low), high) if np.isfinite(x) else (high if x > 0 else low)

    return convert


I32, U32, I16, U16 = (-(2**31), 2**31 - 1), (0, 2**32 - 1), (-(2**15), 2**15 - 1), (0, 2**16 - 1)
Case = tuple[list[Any], Any, Callable[..., Any]]


def scaled(scale: int, x: Any) -> int:
    low = -1 if scale == 0x7FFF else 0
    return 0 if np.isnan(x) else round(min(max(float(x), low), 1) * scale)


def two(function: Callable[[Any], int]) -> Callable[..., int]:
    return lambda a, b: (function(a) & 0xFFFF) | (function(b) & 0xFFFF) << 16


def toward_zero_half(x: Any) -> int:
    if not np.isfinite(x):
        return int(np.float16(x).view(np.uint16))
    near = np.float16(min(max(x, np.float32(-65504)), np.float32(65504)))
    if abs(float(near)) > abs(float(x)):
        near = np.nextafter(near, np.float16(0))
    return int(np.float16(np.copysign(near, x)).view(np.uint16))


def as_byte(x: Any) -> int:
    return 0 if np.isnan(x) else int(min(max(np.rint(x), 0), 255))


CONVERSIONS: dict[str, Case] = {
    "v_cvt_i32_f32": ([np.float32], np.int32, whole(*I32)),
    "v_cvt_u32_f32": ([np.float32], np.uint32, whole(*U32)),
    "v_cvt_i32_f64": ([np.float64], np.int32, whole(*I32)),
    "v_cvt_u32_f64": ([np.float64], np.uint32, whole(*U32)),
    "v_cvt_rpi_i32_f32": ([np.float32], np.int32, whole(*I32, lambda x: math.floor(Fraction(x) + Fraction(1, 2)))),
    "v_cvt_flr_i32_f32": ([np.float32], np.int32, whole(*I32, math.floor)),
    "v_cvt_i16_f16": ([np.float16], np.int16, whole(*I16)),
    "v_cvt_u16_f16": ([np.float16], np.uint16, whole(*U16)),
    "v_cvt_f32_i32": ([np.int32], np.float32, lambda x: rounded(Fraction(int(x)), np.float32)),
    "v_cvt_f32_u32": ([np.uint32], np.float32, lambda x: rounded(Fraction(int(x)), np.float32)),
    "v_cvt_f64_i32": ([np.int32], np.float64, float),
    "v_cvt_f64_u32": ([np.uint32], np.float64, float),
    "v_cvt_f16_i16": ([np.int16], np.float16, lambda x: rounded(Fraction(int(x)), np.float16)),
    "v_cvt_f16_u16": ([np.uint16], np.float16, lambda x: rounded(Fraction(int(x)), np.float16)),
    "v_cvt_f16_f32": ([np.float32], np.float16, exactly(lambda x: x, np.float16)),
    "v_cvt_f32_f64": ([np.float64], np.float32, exactly(lambda x: x, np.float32)),
    "v_cvt_f32_f16": ([np.float16], np.float32, np.float32),
    "v_cvt_f64_f32": ([np.float32], np.float64, np.float64),
    **{f"v_cvt_f32_ubyte{n}": ([np.uint32], np.float32, lambda x, n=n: int(x) >> 8 * n & 255) for n in range(4)},
    "v_cvt_off_f32_i4": ([np.uint32], np.float32, lambda x: ((int(x) & 15 ^ 8) - 8) / 16),
    "v_cvt_pk_u8_f32": (
        [np.float32, np.uint32, np.uint32], np.uint32,
        lambda x, at, old: int(old) & ~(0xFF << 8 * (int(at) & 3)) | as_byte(x) << 8 * (int(at) & 3),
    ),
    "v_cvt_pkrtz_f16_f32": ([np.float32] * 2, np.uint32, two(toward_zero_half)),
    "v_cvt_pknorm_i16_f32": ([np.float32] * 2, np.uint32, two(lambda x: scaled(0x7FFF, x))),
    "v_cvt_pknorm_u16_f32": ([np.float32] * 2, np.uint32, two(lambda x: scaled(0xFFFF, x))),
    "v_cvt_pknorm_i16_f16": ([np.float16] * 2, np.uint32, two(lambda x: scaled(0x7FFF, x))),
    "v_cvt_pknorm_u16_f16": ([np.float16] * 2, np.uint32, two(lambda x: scaled(0xFFFF, x))),
    "v_cvt_norm_i16_f16": ([np.float16], np.int16, lambda x: scaled(0x7FFF, x)),
    "v_cvt_norm_u16_f16": ([np.float16], np.uint16, lambda x: scaled(0xFFFF, x)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversion(name: str):
    dtypes, result, function = CONVERSIONS[name]
    sources = []
    for i, dtype in enumerate(map(np.dtype, dtypes)):
        if dtype.kind == "f":
            values = edge_floats(i, (4, 64), dtype)
            if i == 0 and np.dtype(result).kind in "iu":  # magnitudes that matter
                scale = np.random.default_rng(8).choice([1, 300, 2.0**15, 2.0**31], (4, 64))
                values = np.where(np.abs(values) < 4, (values * scale).astype(dtype), values)
            sources.append(values)
        else:
            sources.append(integers(i, (4, 64)).astype(dtype))
    # The register names' widths follow the dtypes.
    kinds = [f"f{np.dtype(dtype).itemsize * 8}" for dtype in dtypes]
    got = get(run(name, kinds, sources, f"f{np.dtype(result).itemsize * 8}"), 2, result)
    want = np.array([function(*v) for v in zip(*(s.ravel() for s in sources), strict=True)], dtype=object)
    want = np.array([w & 0xFFFFFFFF if result is np.uint32 else w for w in want], result).reshape(4, 64)
    if np.dtype(result).kind == "f":
        assert_same(got, want, name)
    else:
        np.testing.assert_array_equal(got, want, name)


# Division


@pytest.mark.parametrize("kind", ("f32", "f64"))
def test_steps_of_a_division(kind: str):
    """Their arithmetic is tested in `test_floats`."""
    n, d, q = (edge_floats(i + 20, (4, 64), DTYPES[kind]) for i in range(3))
    machine = Machine()
    for number, values in ((8, n), (12, d), (16, q)):
        put(machine, number, values)
    first, second, third, out, fixed = (spelled(kind, number) for number in (8, 12, 16, 20, 24))
    machine.execute(f"v_div_scale_{kind} {spelled(kind, 2)}, vcc, {first}, {second}, {first}",
                    f"v_div_fmas_{kind} {out}, {first}, {second}, {third}",
                    f"v_div_fixup_{kind} {fixed}, {third}, {second}, {first}")  # fmt: skip
    with np.errstate(all="ignore"):
        scaled, vcc = division.div_scale(n, d, n)
        np.testing.assert_array_equal(machine.lanes(106), vcc)
        assert_same(get(machine, 2, DTYPES[kind]), scaled, "scale")
        assert_same(get(machine, 20, DTYPES[kind]), division.div_fmas(n, d, q, vcc), "fmas")
        assert_same(get(machine, 24, DTYPES[kind]), division.div_fixup(q, d, n), "fixup")


def test_division_fixup_of_halves():
    a, b = (edge_floats(i, (4, 64), np.float16) for i in range(2))
    with np.errstate(all="ignore"):
        quotient = (a.astype(np.float32) / b.astype(np.float32)).astype(np.float16)
        got = get(run("v_div_fixup_f16", ["f16"] * 3, [quotient, b, a], "f16"), 2, np.float16)
        assert_same(got, a / b, "quotient")


# Modifiers and modes


def test_signs_clamp_and_output_modifiers():
    a, b = (edge_floats(i, (4, 64), np.float32) for i in range(2))
    with np.errstate(all="ignore"):
        got = get(run("v_add_f32_e64", ["f32"] * 2, [a, b], "f32"), 2, np.float32)
        machine = Machine()
        put(machine, 8, a)
        put(machine, 9, b)
        machine.execute("v_add_f32_e64 v2, -v8, |v9|", "v_add_f32_e64 v3, -|v8|, v9 clamp",
                        "v_mul_f32_e64 v4, v8, v9 mul:4", "v_cndmask_b32_e64 v5, -v8, |v9|, s[4:5]")  # fmt: skip
        assert_same(got, a + b, "plain")
        assert_same(get(machine, 2, np.float32), -a + np.abs(b), "signs")
        total = -np.abs(a) + b
        want = np.where(np.isnan(total) | (total <= 0), 0, np.minimum(total, 1)).astype(np.float32)
        assert_same(get(machine, 3, np.float32), want, "clamp: NaN and -0 become 0")
        assert_same(get(machine, 4, np.float32), a * b, "omod does nothing while denormals are kept")
        assert (machine.v[5] == np.abs(b).view(np.uint32)).all(), "every bit of the mask is set"


def test_output_modifier_without_denormals():
    machine = Machine(mode=DEFAULT_MODE & ~0x200 & ~0x30)  # IEEE off, fp32 denormals flushed
    machine.v[8] = np.float32(3).view(np.uint32)
    machine.execute("v_mul_f32_e64 v2, v8, v8 mul:2", "v_mul_f32_e64 v3, v8, v8 div:2")
    assert (machine.v[2].view(np.float32) == 18).all() and (machine.v[3].view(np.float32) == 4.5).all()


@pytest.mark.parametrize("rounding,way", [(1, np.inf), (2, -np.inf), (3, 0)], ids=("up", "down", "zero"))
def test_rounding_modes(rounding: int, way: float):
    a, b = (np.random.default_rng(i).standard_normal((4, 64)).astype(np.float32) for i in range(2))
    exact = a.astype(np.float64) * b
    near = exact.astype(np.float32)
    beyond = near > exact if way == -np.inf else near < exact if way == np.inf else np.abs(near) > np.abs(exact)
    want = np.where(beyond, np.nextafter(near, np.float32(way)), near)
    got = get(run("v_mul_f32", ["f32"] * 2, [a, b], "f32", mode=DEFAULT_MODE | rounding), 2, np.float32)
    np.testing.assert_array_equal(got, want)
    # fp16 rounds as MODE's other field says, which is still to nearest.
    short = get(run("v_mul_f16", ["f16"] * 2, [a.astype(np.float16), b.astype(np.float16)], "f16",
                    mode=DEFAULT_MODE | rounding), 2, np.float16)  # fmt: skip
    np.testing.assert_array_equal(short, a.astype(np.float16) * b.astype(np.float16))


def test_denormal_modes():
    tiny = np.float32(2.0**-130)
    source = np.broadcast_to(np.array([tiny, -tiny, 1.0, 0.0], np.float32), (4, 4))
    source = np.tile(source, 16)[:, :64].copy()
    half = np.full((4, 64), 0.5, np.float32)
    flush = DEFAULT_MODE & ~0x30
    got = get(run("v_mul_f32", ["f32"] * 2, [source, half], "f32", mode=flush), 2, np.float32)
    assert_same(got, np.where(np.abs(source) < 1, np.copysign(0, source), source * half), "flushed sources")
    small = np.full((4, 64), np.finfo(np.float32).tiny, np.float32)
    got = get(run("v_mul_f32", ["f32"] * 2, [small, half], "f32", mode=flush), 2, np.float32)
    assert not got.any(), "flushed result"
    got = get(run("v_max_f32", ["f32"] * 2, [source, source], "f32"), 2, np.float32)
    assert_same(got, source, "kept")


def test_overflow_to_the_largest_half():
    x = np.full((4, 64), 60000, np.float16)
    mode = DEFAULT_MODE | 1 << 23
    assert (get(run("v_add_f16", ["f16"] * 2, [x, x], "f16", mode=mode), 2, np.float16) == 65504).all()
    infinite = np.full((4, 64), np.inf, np.float16)
    assert np.isinf(get(run("v_add_f16", ["f16"] * 2, [x, infinite], "f16", mode=mode), 2, np.float16)).all()


def test_a_half_result_clears_the_upper_half_or_keeps_it():
    x = np.full((4, 64), 2, np.float16)
    assert (run("v_add_f16", ["f16"] * 2, [x, x], "f16").v[2] == 0x4400).all()
    assert (run("v_fma_f16", ["f16"] * 3, [x, x, x], "f16").v[2] == 0x55554600).all()
