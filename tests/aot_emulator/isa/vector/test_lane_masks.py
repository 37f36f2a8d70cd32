"""Vector instructions with a second result or an additional lane mask; any function of three bits."""

from __future__ import annotations

import numpy as np
import pytest

from aot_emulator.isa.floats import division
from tests.support.emulation.integer_oracles import permute
from tests.support.emulation.machine import LANE, OLD, RDNA, WAVE64, Machine, every_isa
from tests.support.emulation.values import assert_same, dtype_of, edge_floats, integers, mnemonics, spelled

CARRY = {
    "add": lambda a, b, c: a + b, "sub": lambda a, b, c: a - b, "subrev": lambda a, b, c: b - a,
    "addc": lambda a, b, c: a + b + c, "subb": lambda a, b, c: a - b - c, "subbrev": lambda a, b, c: b - a - c,
}  # fmt: skip
# On RDNA those that take no carry are in VOP3 alone.
CARRY_FORMS = [(arch, name, scalar) for arch in ("gfx942", *RDNA, WAVE64) for name in CARRY for scalar in (False, True)
               if scalar or arch == "gfx942" or name in ("addc", "subb", "subbrev")]  # fmt: skip


@pytest.mark.parametrize("arch,name,scalar", CARRY_FORMS)
def test_carries(arch: str, name: str, scalar: bool):
    """Carries go to VCC, or in VOP3 to any pair."""
    operation, takes = mnemonics(arch)[f"v_{name}_co_u32"], name not in ("add", "sub", "subrev")
    a, b, taken = integers(1), integers(2), np.random.default_rng(3).random(256) < 0.5
    machine = Machine(arch).fill({8: a, 12: b})
    machine.set_lanes(20 if scalar else 106, taken)
    out, given = (machine.mask(22), machine.mask(20)) if scalar else (machine.mask(106),) * 2
    machine.execute(f"{operation}{'_e64' if scalar else ''} v2, {out}, v8, v12{f', {given}' if takes else ''}")
    totals = np.array([CARRY[name](*values) for values in zip(a.tolist(), b.tolist(), taken.tolist(), strict=True)])
    machine.expect({2: totals}, {22 if scalar else 106: (totals < 0) | (totals >= 1 << 32)})


@pytest.mark.parametrize("signed", (False, True))
@every_isa
def test_wide_multiply_add(arch: str, signed: bool):
    name, a, b, c = "v_mad_i64_i32" if signed else "v_mad_u64_u32", integers(1), integers(2), integers(3, 256, 2)
    machine = Machine(arch).fill({8: a, 9: b, 10: c})
    machine.execute(f"{mnemonics(arch)[name]} v[2:3], {machine.mask(20)}, v8, v9, v[10:11]")
    kinds = (np.int32, np.int32, np.int64) if signed else (np.uint32, np.uint32, np.uint64)
    numbers = (source.view(kind).ravel().tolist() for source, kind in zip((a, b, c), kinds, strict=True))
    totals = [x * y + z for x, y, z in zip(*numbers, strict=True)]
    low, high = (-(1 << 63), 1 << 63) if signed else (0, 1 << 64)
    machine.expect({2: np.array([total % (1 << 64) for total in totals], np.uint64)},
                   {20: [not low <= total < high for total in totals]})  # fmt: skip


@pytest.mark.parametrize("kind", ("f32", "f64"))
@every_isa
def test_steps_of_a_division(arch: str, kind: str):
    """Their arithmetic is tested in `test_floats`."""
    n, d, q = (edge_floats(i + 20, dtype_of(kind)) for i in range(3))
    machine, (first, second, third) = Machine(arch).fill({8: n, 12: d, 16: q}), (spelled(kind, i) for i in (8, 12, 16))
    machine.execute(f"v_div_scale_{kind} {spelled(kind, 2)}, {machine.mask(106)}, {first}, {second}, {first}",
                    f"v_div_fmas_{kind} {spelled(kind, 20)}, {first}, {second}, {third}",
                    f"v_div_fixup_{kind} {spelled(kind, 24)}, {third}, {second}, {first}")  # fmt: skip
    scaled, vcc = division.div_scale(n, d, n)
    machine.expect({2: scaled, 20: division.div_fmas(n, d, q, vcc), 24: division.div_fixup(q, d, n)}, {106: vcc})


def test_division_fixup_of_halves():
    a, b = (edge_floats(i, np.float16) for i in range(2))
    quotient = (a.astype(np.float32) / b.astype(np.float32)).astype(np.float16)
    machine = Machine().fill({8: quotient, 9: b, 10: a}).execute("v_div_fixup_f16 v2, v8, v9, v10")
    assert_same(machine.get(2, np.float16), a / b)


@every_isa
def test_lanes_below(arch: str):
    """v_mbcnt with all ones gives the lane; with a mask, its bits below the lane."""
    machine = Machine(arch).fill({1: 7})
    machine.s[4], machine.s[5] = 0x0F0F3005, 0x80000003
    machine.execute("v_mbcnt_lo_u32_b32 v2, -1, 0", "v_mbcnt_hi_u32_b32 v2, -1, v2",
                    "v_mbcnt_lo_u32_b32 v3, s4, v1", "v_mbcnt_hi_u32_b32 v3, s5, v3")  # fmt: skip
    lane, mask = LANE % machine.arch.lanes, 0x0F0F3005 | 0x80000003 << 32
    machine.expect({2: lane, 3: [7 + (mask & (1 << int(i)) - 1).bit_count() for i in lane]})


@pytest.mark.parametrize("name", ("v_add_u32_e64", "v_sub_u32_e64", "v_add_i32", "v_sub_i32"))
def test_clamp_saturates(name: str):
    info = np.iinfo(np.int32 if "_i" in name else np.uint32)
    a, b = (integers(seed).view(info.dtype) for seed in (1, 2))
    machine = Machine().fill({8: a, 9: b}).execute(f"{name} v2, v8, v9 clamp")
    exact = a.astype(np.int64) + b if "add" in name else a.astype(np.int64) - b
    machine.expect({2: np.clip(exact, info.min, info.max).astype(info.dtype)})


def test_byte_permutation_by_a_scalar():
    a, b = integers(1), integers(2)
    for selector in (0x07060302, 0x05040100, 0x00010203, 0x0C0C0605, 0x03020504, 0x0D0B0A09):
        machine = Machine().fill({8: a, 9: b})
        machine.s[5] = selector
        wanted = [permute(*pair, selector) for pair in zip(a.tolist(), b.tolist(), strict=True)]
        machine.execute("v_perm_b32 v2, v8, v9, s5").expect({2: wanted})


@pytest.mark.parametrize("table", (0x00, 0xFF, 0xE4, 0x96, 0xCA, 0x17, 0x01, 0x80, 0x3C, 0x55, *range(7, 256, 31)))
def test_any_function_of_three_bits(table: int):
    a, b, c = (integers(table + i) for i in range(3))
    machine, operation = Machine("gfx950").fill({8: a, 9: b, 10: c}), f"bitop3:{table:#x}"
    machine.s[4] = 0x0F0F_1234
    machine.execute(f"v_bitop3_b32 v2, v8, v9, v10 {operation}", f"v_bitop3_b32 v3, s4, v9, 3 {operation}",
                    f"v_bitop3_b16 v4, v8, v9, v10 {operation} op_sel:[1,0,1,1]")  # fmt: skip

    def by_bits(*sources: np.ndarray) -> np.ndarray:
        bits = [(np.broadcast_to(source, 256)[:, None] >> np.arange(32, dtype=np.uint32)) & 1 for source in sources]
        index = bits[0] << 2 | bits[1] << 1 | bits[2]
        return np.packbits(table >> index & 1, axis=1, bitorder="little").view(np.uint32)[:, 0]

    half = by_bits(a >> 16, b, c >> 16) << 16 | OLD & 0xFFFF
    machine.expect({2: by_bits(a, b, c), 3: by_bits(np.uint32(0x0F0F_1234), b, np.uint32(3)), 4: half})


# The first 240 bits of 2 / pi, as tables of argument reductions print them.
TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBB


@every_isa
def test_bits_of_two_over_pi(arch: str):
    def bits_at(value: float, segment: int) -> float:
        machine = Machine(arch).fill({8: value}).execute(f"v_trig_preop_f64 v[2:3], v[8:9], {segment}")
        return float(machine.get(2, np.float64)[0])

    for segment in range(4):
        for value, shift in ((1.0, 53 * segment), (2.0**60, 53 * segment + 1083 - 1077)):
            assert bits_at(value, segment) == (TWO_OVER_PI >> 240 - 53 - shift & (1 << 53) - 1) / 2 ** (53 + shift)
    assert 0 < bits_at(2.0**1000, 0) < 2.0 ** (128 - (1000 + 1023 - 1077)), "the result of so large a number is scaled"
