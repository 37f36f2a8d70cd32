"""Conversions of the vector ALU, and the modifiers and modes of floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from aot_emulator.isa.vector.conversion_ops import CONVERSION_OPS

from tests.support.emulation.exact_floats import exactly, rounded
from tests.support.emulation.machine import DEFAULT_MODE, Machine, edge_floats, integers
from tests.support.emulation.registers import assert_same, get, put
from tests.support.emulation.vector_runs import run

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


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


def test_every_conversion_has_a_case():
    assert set(CONVERSION_OPS) == set(CONVERSIONS) | {"v_cvt_pkaccum_u8_f32"}


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
