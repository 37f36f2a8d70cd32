"""Floats in the scalar unit (gfx12), against the vector ALU's and numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from aot_emulator.isa.scalar.scalar_floats import _OPS

from tests.support.emulation.machine import DEFAULT_MODE, Machine
from tests.support.emulation.values import assert_same, dtype_of, edge_floats, mnemonics, sources_of, spelled


def vector_name(operation: str) -> str:
    """What the vector unit calls the same."""
    plain = operation.replace("v_s_", "v_") if operation.startswith("v_s_") else f"v_{operation[2:]}"
    return mnemonics("gfx1201")[plain.replace("pk_rtz", "pkrtz")]


@pytest.mark.parametrize("mode", (DEFAULT_MODE, DEFAULT_MODE & ~0xF0 | 5), ids=("", "flushed and upward"))
@pytest.mark.parametrize("operation", _OPS)
def test_scalar_floats(operation: str, mode: int):
    """A value a wavefront: what the vector unit gives for a value a lane."""
    result, *kinds = _OPS[operation].kinds
    literal = {"mk": 1, "ak": 2}.get(operation[5:7])
    reference, machine = Machine("gfx1201", mode=mode), Machine("gfx1201", 256, mode=mode)
    vectors, scalars = [], []
    for i, (kind, source) in enumerate(zip(kinds, sources_of(tuple(kinds)), strict=True)):
        number = 2 if kind.startswith("=") else 8 + i
        reference.put(number, source)
        machine.s[number] = source.view(f"u{source.itemsize}")
        if number != 2:
            vectors.append("0x40490fdb" if i == literal else spelled(kind, number, 0))
            scalars.append("0x40490fdb" if i == literal else f"s{number}")
    reference.execute(f"{vector_name(operation)} {spelled(result, 2, 0)}, {', '.join(vectors)}")
    machine.execute(f"{mnemonics('gfx1201')[operation]} s2, {', '.join(scalars)}")
    dtype = dtype_of(result)
    assert dtype.itemsize == 4 or not (machine.s[2] >> 16).any(), "a half is a number of 32 bits"
    got = machine.s[2].astype(f"u{dtype.itemsize}").view(dtype)
    assert_same(got, reference.get(2, dtype), operation)


def test_scalar_floats_in_numbers():
    machine = Machine("gfx1201")
    for number, x in ((4, 1.5), (5, -2.25), (6, 7.9), (20, 1.5)):
        machine.s[number] = np.float32(x).view(np.uint32)
    machine.s[7] = np.array([-1, 3], np.float16).view(np.uint32)[0]
    wanted = {
        "s_add_f32 {}, s4, s5": -0.75, "s_mul_f32 {}, s4, s5": -3.375, "s_min_num_f32 {}, s4, s5": -2.25,
        "s_cvt_hi_f32_f16 {}, s7": 3, "s_cvt_f32_f16 {}, s7": -1, "s_trunc_f32 {}, s5": -2, "v_s_rcp_f32 {}, -s4": -2 / 3,
        "v_s_sqrt_f32 {}, |s5| clamp": 1, "s_max_num_f32 {}, s4, 0x7fc00000": 1.5, "s_maximum_f32 {}, s4, 0x7fc00000": np.nan,
    }  # fmt: skip
    machine.execute(*(text.format(f"s{30 + i}") for i, text in enumerate(wanted)), "s_fmac_f32 s20, s4, s5",
                    "s_cvt_i32_f32 s11, s6", "s_cvt_pk_rtz_f16_f32 s17, s4, s5")  # fmt: skip
    got = machine.s[30 : 30 + len(wanted), 0].view(np.float32)
    np.testing.assert_array_equal(got, np.array([*wanted.values()], np.float32))
    assert machine.s[20, 0].view(np.float32) == 1.5 * -2.25 + 1.5 and machine.s[11, 0] == 7
    assert machine.s[17, 0] == np.array([1.5, -2.25], np.float16).view(np.uint32)[0]


COMPARISONS = {
    "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "lg": lambda a, b: (a < b) | (a > b), "ge": lambda a, b: a >= b, "o": lambda a, b: (a == a) & (b == b),
    "u": lambda a, b: (a != a) | (b != b), "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b), "neq": lambda a, b: a != b, "nlt": lambda a, b: ~(a < b),
}  # fmt: skip


@pytest.mark.parametrize("bits", (16, 32))
@pytest.mark.parametrize(
    "name", sorted({name[6:-4] for name in mnemonics("gfx1201") if name.startswith("s_cmp_") and "_f" in name})
)
def test_scalar_float_comparison(name: str, bits: int):
    a, b = (edge_floats(seed, f"f{bits // 8}", 96) for seed in range(2))
    b[::5] = a[::5]
    machine = Machine("gfx1201", 96)
    machine.s[4], machine.s[8] = a.view(f"u{bits // 8}"), b.view(f"u{bits // 8}")
    machine.execute(f"s_cmp_{name}_f{bits} s4, s8")
    np.testing.assert_array_equal(machine.scc, COMPARISONS[name](a, b))
