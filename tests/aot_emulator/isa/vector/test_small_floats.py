"""Conversions of 8-bit floats (OCP's, except on gfx942), gfx950's scaled conversions, and its stochastic rounding to 16
bits.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.emulation.machine import DEFAULT_MODE, LANE, OLD, Machine

BF16 = ml_dtypes.bfloat16
OCP = {"fp8": ml_dtypes.float8_e4m3fn, "bf8": ml_dtypes.float8_e5m2, "fp4": ml_dtypes.float4_e2m1fn}
FNUZ = {"fp8": ml_dtypes.float8_e4m3fnuz, "bf8": ml_dtypes.float8_e5m2fnuz}
WIDE = {"f32": np.float32, "f16": np.float16, "bf16": BF16}
FORMS = [(arch, name) for arch in ("gfx942", "gfx950", "gfx1201") for name in FNUZ]
every_byte = pytest.mark.parametrize("arch,name", FORMS)


def type_of(arch: str, name: str) -> Any:
    return (FNUZ if arch == "gfx942" else OCP)[name]


def every_code() -> np.ndarray:
    """Return each code in each place, uint8 [256, 4]."""
    return np.random.default_rng(0).permutation(np.arange(256, dtype=np.uint8).repeat(4)).reshape(256, 4)


@every_byte
def test_from_bytes(arch: str, name: str):
    codes, one, pair = every_code(), f"v_cvt_f32_{name}", f"v_cvt_pk_f32_{name}"
    machine = Machine(arch).fill({8: codes})
    if arch == "gfx1201":
        machine.execute(*(f"{one} v{2 + byte}, v8 byte_sel:{byte}" for byte in range(4)),
                        f"{pair} v[10:11], v8.l", f"{pair} v[12:13], v8.h")  # fmt: skip
    else:
        machine.execute(*(f"{one}_sdwa v{2 + byte}, v8 src0_sel:BYTE_{byte}" for byte in range(1, 4)), f"{one} v2, v8",
                        f"{pair} v[10:11], v8", f"{pair}_sdwa v[12:13], v8 src0_sel:WORD_1")  # fmt: skip
    machine.expect(dict.fromkeys((2, 10), codes.view(type_of(arch, name)).astype(np.float32)))


@pytest.mark.parametrize("saturate", (False, True))
@every_byte
def test_to_bytes(arch: str, name: str, saturate: bool):
    """With FP16_OVFL, which Triton sets around conversions on gfx942, large values and infinities saturate."""
    dtype = type_of(arch, name)
    limit, smallest = (np.float32(x) for x in (ml_dtypes.finfo(dtype).max, ml_dtypes.finfo(dtype).smallest_subnormal))
    sizes = np.random.default_rng(1).choice(smallest * 2.0 ** np.arange(-2, 18), (256, 2))
    values = (np.random.default_rng(0).standard_normal((256, 2)) * sizes).astype(np.float32)
    values[:8, 0] = [0.0, -0.0, np.nan, limit, limit * 4, -limit * 4, np.inf, -np.inf]
    machine = Machine(arch, mode=DEFAULT_MODE | saturate << 23).fill({8: values})
    low, high, tail = ("v2.l", "v3.h", "") if arch == "gfx1201" else ("v2", "v3", " op_sel:[0,0,1]")
    machine.execute(f"v_cvt_pk_{name}_f32 {low}, v8, v9", f"v_cvt_pk_{name}_f32 {high}, v8, -v9{tail}")
    for number, half, sign in ((2, 0, 1), (3, 1, -1)):
        given = values * np.array([1, sign], np.float32)
        want = (np.clip(given, -limit, limit) if saturate else given).astype(dtype).view(np.uint16)[:, 0]
        machine.expect({(number, half): want, (number, 1 - half): np.uint16(OLD >> 16 * (1 - half) & 0xFFFF)})


STOCHASTIC = [*((*form, "") for form in FORMS), *(("gfx950", name, "scalef32_") for name in FNUZ)]


@pytest.mark.parametrize("arch,name,scale", STOCHASTIC)
def test_stochastic_rounding_to_a_byte(arch: str, name: str, scale: str):
    """Between two codes, random bits of 0 truncate, and all ones round what is inexact up."""
    dtype, x = type_of(arch, name), (1.0 + LANE / 2048).astype(np.float32)
    machine = Machine(arch).fill({8: x, 9: 0, 10: 0xFFFFFFFF, 11: 129 << 23})
    text, tail = f"v_cvt_{scale}sr_{name}_f32", ", v11" * bool(scale)
    select = "byte_sel:3" if arch == "gfx1201" else "op_sel:[0,0,1,1]"
    machine.execute(f"{text} v2, v8, v9{tail} {select}", f"{text} v3, v8, v10{tail}")
    one = int(np.array(0.25 if scale else 1, dtype).view(np.uint8))
    machine.expect({2: OLD & 0xFFFFFF | one << 24, 3: OLD & 0xFFFFFF00 | one + (x != 1)})


@pytest.mark.parametrize("name,dtype,bits", (("bf16", BF16, 16), ("f16", np.float16, 13)))
def test_stochastic_rounding_to_16_bits(name: str, dtype: Any, bits: int):
    """Only the upper random bits count."""
    x = np.float32(1).view(np.uint32) | LANE.astype(np.uint32) << np.uint32(bits - 5)
    machine = Machine("gfx950").fill({8: x, 9: 0, 10: 0xFFFFFFFF, 11: 0x80000000})
    machine.execute(*(f"v_cvt_sr_{name}_f32 v{2 + i}, v8, v{9 + i} op_sel:[0,0,{int(i == 1)}]" for i in range(3)))
    low = int(np.array(1, dtype).view(np.uint16)) + ((x - 0x3F800000) >> bits)
    fraction = (x & (1 << bits) - 1) / 2**bits
    machine.expect({2: OLD & 0xFFFF0000 | low, 3: OLD & 0xFFFF | (low + (fraction > 0)) << 16,
                    4: OLD & 0xFFFF0000 | (low + (fraction >= 0.5))})  # fmt: skip


def block_scales(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return registers that hold block exponents, with a sign and a mantissa that do not matter, and their powers of
    two."""
    rng = np.random.default_rng(seed)
    exponents = rng.choice(np.array([127, 128, 120, 140, 126], np.uint32), 256)
    noise = rng.integers(0, 1 << 32, 256, np.uint32) & np.uint32(0x807FFFFF)
    return exponents << np.uint32(23) | noise, np.ldexp(1.0, exponents.astype(int) - 127)


@pytest.mark.parametrize("to", WIDE)
@pytest.mark.parametrize("of", OCP)
def test_scaled_widening(of: str, to: str):
    codes, (scales, factor), select = every_code(), block_scales(1), "1,0,0"
    machine = Machine("gfx950").fill({8: codes, 9: scales})
    if of == "fp4":  # a byte has two
        codes, select = np.stack([codes & 15, codes >> 4], -1).reshape(256, 8), "0,1,0"
    exact = (codes.view(OCP[of]).astype(np.float64) * factor[:, None]).astype(WIDE[to])
    for chosen, first in (("", 0), (f"op_sel:[{select}]", 4 if of == "fp4" else 2)):
        machine.execute(f"v_cvt_scalef32_pk_{to}_{of} {'v[2:3]' if to == 'f32' else 'v2'}, v8, v9 {chosen}")
        got = machine.get(2, WIDE[to], count=2)
        np.testing.assert_array_equal(got.astype(np.float64), exact[:, first : first + 2].astype(np.float64))
    if of != "fp4" and to != "bf16":
        machine.execute(f"v_cvt_scalef32_{to}_{of} v4, v8, v9 op_sel:[1,1,0]").expect({4: exact[:, 3]})
        assert to == "f32" or (machine.get(4) >> 16 == OLD >> 16).all()


def test_a_scale_that_is_no_number():
    machine = Machine("gfx950").fill({8: 0x38383838, 9: 0x7F800000, 10: 0})
    machine.execute("v_cvt_scalef32_pk_f32_fp8 v[2:3], v8, v9", "v_cvt_scalef32_pk_f32_fp8 v[4:5], v8, v10")
    assert np.isnan(machine.get(2, np.float32)).all() and (machine.get(4, np.float32) == 2.0**-127).all()


@pytest.mark.parametrize("saturate", (False, True))
@pytest.mark.parametrize("of", WIDE)
@pytest.mark.parametrize("to", OCP)
def test_scaled_narrowing(to: str, of: str, saturate: bool):
    """ml_dtypes rounds float64 once; fp4 has no infinity and always saturates."""
    limit, (scales, factor) = float(ml_dtypes.finfo(OCP[to]).max), block_scales(2)
    sizes = np.random.default_rng(1).choice([limit / 4, 1.0, 2.0**-6, 2.0**-9, 2.0**-16], (256, 2))
    values = np.random.default_rng(0).standard_normal((256, 2)) * sizes
    values[:4] = [[0.0, -0.0], [limit, -limit], [limit * 1.01, 0.25], [limit * 0.7, 0.75]]
    values, scales[:4], factor[:4] = values.astype(WIDE[of]), 127 << 23, 1.0
    exact = values.astype(np.float64) / factor[:, None]
    if saturate or to == "fp4":
        exact = np.where(np.isinf(exact) & (to != "fp4"), exact, np.clip(exact, -limit, limit))
    codes = exact.astype(OCP[to]).view(np.uint8).astype(np.uint32)
    bits, sources, zeros = (4, 8)[to != "fp4"], "v8, v9" if of == "f32" else "v8", "0,0,0" if of == "f32" else "0,0"
    selects = {0: f"op_sel:[{zeros},0]", 16: f"op_sel:[{zeros},1]"}
    if to == "fp4":
        selects = {0: "op_sel:[0,0,0,0]", 8: "op_sel:[0,0,1,0]", 24: "op_sel:[0,0,1,1]"}
    for position, select in selects.items():
        machine = Machine("gfx950", mode=DEFAULT_MODE | saturate << 23).fill({8: values, 10: scales})
        machine.execute(f"v_cvt_scalef32_pk_{to}_{of} v2, {sources}, v10 {select}")
        kept = OLD & ~((1 << 2 * bits) - 1 << position) & 0xFFFFFFFF
        machine.expect({2: kept | (codes[:, 0] | codes[:, 1] << bits) << position})
