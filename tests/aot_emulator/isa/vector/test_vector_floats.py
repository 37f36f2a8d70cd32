"""Float instructions of the vector unit: exact results by rational arithmetic, approximations within their error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from aot_emulator.isa.floats import division
from aot_emulator.isa.vector.float_ops import FLOATS, OTHER_FLOATS, SHORT_FLOATS

from tests.support.emulation.exact_floats import exactly, high_maximum, low_minimum
from tests.support.emulation.machine import Machine, edge_floats, integers
from tests.support.emulation.registers import assert_same, get, put, spelled
from tests.support.emulation.vector_runs import run

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
