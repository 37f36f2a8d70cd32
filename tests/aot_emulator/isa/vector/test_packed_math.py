"""Packed and mixed arithmetic, dot products, and 8-bit floats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.support.emulation.machine import DEFAULT_MODE, Machine, integers
from tests.support.emulation.registers import halves

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# Packed and mixed

PACKED_INTEGERS = {
    "mul_lo_u16": lambda a, b: a * b, "add_u16": lambda a, b: a + b, "add_i16": lambda a, b: a + b,
    "sub_u16": lambda a, b: a - b, "sub_i16": lambda a, b: a - b,
    "lshlrev_b16": lambda a, b: b << (a & 15), "lshrrev_b16": lambda a, b: b >> (a & 15),
    "ashrrev_i16": lambda a, b: b.view(np.int16) >> (a & 15).view(np.int16),
    "max_u16": np.maximum, "min_u16": np.minimum,
    "max_i16": lambda a, b: np.maximum(a.view(np.int16), b.view(np.int16)),
    "min_i16": lambda a, b: np.minimum(a.view(np.int16), b.view(np.int16)),
    "mad_u16": lambda a, b, c: a * b + c, "mad_i16": lambda a, b, c: a * b + c,
}  # fmt: skip
PACKED_HALVES = {
    "add_f16": lambda a, b: a + b, "mul_f16": lambda a, b: a * b,
    "fma_f16": lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float16),
    "min_f16": np.fmin, "max_f16": np.fmax,
}  # fmt: skip


@pytest.mark.parametrize("name", [*PACKED_INTEGERS, *PACKED_HALVES])
def test_packed_halves(name: str):
    """Once plainly, once with halves chosen crosswise."""
    function = PACKED_INTEGERS.get(name) or PACKED_HALVES[name]
    count, floating = function.__code__.co_argcount if hasattr(function, "__code__") else 2, name in PACKED_HALVES
    machine = Machine()
    for i in range(count):
        random = np.random.default_rng(i).standard_normal((4, 128)).astype(np.float16).view(np.uint32)
        machine.v[8 + i] = random if floating else integers(i, (4, 64))
    operands = ", ".join(f"v{8 + i}" for i in range(count))
    low, high = (",".join(pattern[i % 2] for i in range(count)) for pattern in ("10", "01"))
    crossed = f"op_sel:[{low}] op_sel_hi:[{high}]"
    machine.execute(f"v_pk_{name} v2, {operands}", f"v_pk_{name} v3, {operands} {crossed}")
    sources = [halves(machine.v[8 + i]) for i in range(count)]
    if floating:
        sources = [[half.view(np.float16) for half in source] for source in sources]
    for target, swapped in ((2, False), (3, True)):
        for part in (0, 1):
            chosen = [source[part ^ (swapped and i % 2 == 0)] for i, source in enumerate(sources)]
            want = np.asarray(function(*chosen))
            np.testing.assert_array_equal(halves(machine.v[target])[part], want.astype(chosen[0].dtype).view(np.uint16))


def test_packed_signs_and_clamp():
    machine = Machine()
    for number in (8, 9):
        machine.v[number] = np.random.default_rng(number).standard_normal((4, 128)).astype(np.float16).view(np.uint32)
    machine.v[10:12] = integers(3, (2, 4, 64))
    machine.execute("v_pk_add_f16 v2, v8, v9 neg_lo:[1,0] neg_hi:[0,1] clamp", "v_pk_add_u16 v3, v10, v11 clamp",
                    "v_pk_add_u16 v4, v10, -1 op_sel_hi:[1,0]")  # fmt: skip
    a, b = ([half.view(np.float16) for half in halves(machine.v[n])] for n in (8, 9))
    for part, want in enumerate((-a[0] + b[0], a[1] - b[1])):
        np.testing.assert_array_equal(halves(machine.v[2])[part].view(np.float16), np.clip(want, 0, 1))
    for part in (0, 1):
        x, y = (halves(machine.v[n])[part].astype(np.int64) for n in (10, 11))
        np.testing.assert_array_equal(halves(machine.v[3])[part], np.minimum(x + y, 0xFFFF))
        np.testing.assert_array_equal(halves(machine.v[4])[part], (x - 1) & 0xFFFF)


@pytest.mark.parametrize("name", ("add", "mul", "fma"))
def test_packed_floats(name: str):
    """The destination is a source, with dwords chosen crosswise and a scalar pair among the sources."""
    machine = Machine()
    numbers = [2, 4, 6][: 3 if name == "fma" else 2]
    for number in numbers:
        for half in (0, 1):
            values = np.random.default_rng(number + half).standard_normal((4, 64)).astype(np.float32)
            machine.v[number + half] = values.view(np.uint32)
    before = machine.v.view(np.float32).astype(np.float64)[2:8].copy()
    operands = ", ".join(f"v[{n}:{n + 1}]" for n in numbers)
    rest = ",0" if name == "fma" else ""
    machine.execute(
        f"v_pk_{name}_f32 v[2:3], {operands} op_sel:[1,0{rest}] op_sel_hi:[0,1{rest and ',1'}] neg_lo:[0,1{rest}]"
    )
    for half in (0, 1):
        a, b, c = before[1 - half], before[2 + half] * (-1 if half == 0 else 1), before[4 + half]
        want = {"add": a + b, "mul": a * b, "fma": a * b + c}[name]
        np.testing.assert_array_equal(machine.v[2 + half].view(np.float32), want.astype(np.float32))


def test_packed_sources_that_are_scalars():
    machine = Machine()
    machine.v[2:4] = np.float32(3).view(np.uint32)
    machine.s[4], machine.s[5] = np.float32(2).view(np.uint32), np.float32(5).view(np.uint32)
    machine.execute("v_pk_mul_f32 v[4:5], v[2:3], s[4:5]", "v_pk_mul_f32 v[6:7], v[2:3], s[4:5] op_sel_hi:[1,0]",
                    "v_pk_mov_b32 v[8:9], v[4:5], s[4:5] op_sel:[1,0]")  # fmt: skip
    assert [machine.v[i, 0, 0].view(np.float32) for i in range(4, 10)] == [6, 15, 6, 6, 15, 2]


def test_mixed_precision():
    machine = Machine()
    a, b = (np.random.default_rng(i).standard_normal((4, 128)).astype(np.float16) for i in range(2))
    c = np.random.default_rng(2).standard_normal((4, 64)).astype(np.float32)
    machine.v[8], machine.v[9], machine.v[10] = a.view(np.uint32), b.view(np.uint32), c.view(np.uint32)
    machine.v[3:5] = 0x12345678
    machine.execute(
        "v_fma_mix_f32 v2, v8, -v9, |v10| op_sel:[1,0,0] op_sel_hi:[1,1,0]",
        "v_fma_mixlo_f16 v3, v8, v10, v9 op_sel:[0,0,1] op_sel_hi:[1,0,1]",
        "v_fma_mixhi_f16 v4, v10, v10, 1.0 op_sel_hi:[0,0,1]",
    )
    wide = [x.astype(np.float64) for x in (a[:, ::2], a[:, 1::2], b[:, ::2], b[:, 1::2], c)]
    np.testing.assert_array_equal(
        machine.v[2].view(np.float32), (wide[1] * -wide[2] + np.abs(wide[4])).astype(np.float32)
    )
    low = (wide[0] * wide[4] + wide[3]).astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(machine.v[3], low.view(np.uint16).astype(np.uint32) | 0x12340000)
    high = (wide[4] * wide[4] + 1).astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(machine.v[4], high.view(np.uint16).astype(np.uint32) << 16 | 0x5678)


@pytest.mark.parametrize(
    "name,bits,signed",
    [
        ("v_dot2_i32_i16", 16, True),
        ("v_dot2_u32_u16", 16, False),
        ("v_dot4_i32_i8", 8, True),
        ("v_dot4_u32_u8", 8, False),
        ("v_dot8_i32_i4", 4, True),
        ("v_dot8_u32_u4", 4, False),
    ],
)
def test_integer_dot_products(name: str, bits: int, signed: bool):
    machine = Machine()
    machine.v[8:11] = integers(0, (3, 4, 64))
    machine.execute(f"{name} v2, v8, v9, v10", f"{name} v3, v8, v9, v10 clamp")
    low, high = (-(1 << 31), (1 << 31) - 1) if signed else (0, (1 << 32) - 1)

    def number(value: int, width: int) -> int:
        return value - (value >> width - 1 << width) if signed else value

    for a, b, c, got, clamped in zip(*(machine.v[i].ravel().tolist() for i in (8, 9, 10, 2, 3)), strict=True):
        mask = (1 << bits) - 1
        total = number(c, 32) + sum(
            number(a >> at & mask, bits) * number(b >> at & mask, bits) for at in range(0, 32, bits)
        )
        assert got == total & 0xFFFFFFFF and clamped == min(max(total, low), high) & 0xFFFFFFFF


# 8-bit floats: gfx942 has the FNUZ forms

FLOAT8 = {"fp8": ml_dtypes.float8_e4m3fnuz, "bf8": ml_dtypes.float8_e5m2fnuz}


@pytest.mark.parametrize("name", FLOAT8)
def test_from_float8(name: str):
    machine = Machine()
    codes = np.arange(256, dtype=np.uint8).repeat(4)
    np.random.default_rng(0).shuffle(codes)
    machine.v[8] = codes.view(np.uint32).reshape(4, 64)
    machine.execute(
        f"v_cvt_f32_{name} v2, v8",
        f"v_cvt_f32_{name}_sdwa v3, v8 src0_sel:BYTE_2",
        f"v_cvt_pk_f32_{name} v[4:5], v8",
        f"v_cvt_pk_f32_{name}_sdwa v[6:7], v8 src0_sel:WORD_1",
    )
    values = codes.view(FLOAT8[name]).astype(np.float32).reshape(4, 64, 4)
    for register, octet in ((2, 0), (3, 2), (4, 0), (5, 1), (6, 2), (7, 3)):
        np.testing.assert_array_equal(machine.v[register].view(np.float32), values[..., octet])


@pytest.mark.parametrize("saturate", (False, True))
@pytest.mark.parametrize("name", FLOAT8)
def test_to_float8(name: str, saturate: bool):
    dtype = FLOAT8[name]
    info = ml_dtypes.finfo(dtype)
    scale = float(info.smallest_subnormal) * 2.0 ** np.arange(-2, 18)
    values = np.random.default_rng(0).standard_normal((2, 4, 64)) * np.random.default_rng(1).choice(scale, (2, 4, 64))
    values = values.astype(np.float32)
    values[0, 0, :6] = [0.0, -0.0, np.nan, float(info.max), float(info.max) * 4, -float(info.max) * 4]
    machine = Machine(mode=DEFAULT_MODE | saturate << 23)
    machine.v[8:10] = values.view(np.uint32)
    machine.v[2] = machine.v[3] = 0xDEADBEEF
    machine.execute(f"v_cvt_pk_{name}_f32 v2, v8, v9", f"v_cvt_pk_{name}_f32 v3, v8, -v9 op_sel:[0,0,1]")
    limit = np.float32(info.max)
    given = np.clip(values, -limit, limit) if saturate else values
    low, high, negative = (x.astype(dtype).view(np.uint8).astype(np.uint32) for x in (given[0], given[1], -given[1]))
    np.testing.assert_array_equal(machine.v[2], 0xDEAD0000 | low | high << 8)
    np.testing.assert_array_equal(machine.v[3], 0x0000BEEF | low << 16 | negative << 24)
