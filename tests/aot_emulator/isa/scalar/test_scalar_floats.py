"""Floats in the scalar unit (gfx12), against the vector ALU's and numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from aot_emulator.isa.scalar.scalar_floats import _OPS

from tests.support.emulation.machine import DEFAULT_MODE, Machine, edge_floats, integers
from tests.support.emulation.registers import assert_same, dtype_of, get, mnemonics, put, spelled

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def vector_name(operation: str) -> str:
    """What the vector unit calls the same."""
    plain = operation.replace("v_s_", "v_") if operation.startswith("v_s_") else f"v_{operation[2:]}"
    return mnemonics("gfx1201")[plain.replace("pk_rtz", "pkrtz")]


@pytest.mark.parametrize("mode", (DEFAULT_MODE, DEFAULT_MODE & ~0xF0, DEFAULT_MODE | 5), ids=("", "flushed", "upward"))
@pytest.mark.parametrize("operation", _OPS)
def test_scalar_floats(operation: str, mode: int):
    """A value a wavefront: what the vector unit gives for a value a lane."""
    result, *kinds = _OPS[operation].kinds
    name, literal = mnemonics("gfx1201")[operation], {"mk": 1, "ak": 2}.get(operation[5:7])
    reference, machine = Machine(mode=mode, arch="gfx1201"), Machine(128, mode=mode, arch="gfx1201")
    vectors, scalars = [], []
    for i, kind in enumerate(kinds):
        dtype = dtype_of(kind)
        source = edge_floats(i, (4, 32), dtype) if dtype.kind == "f" else integers(i, (4, 32)).view(dtype)
        number = 2 if kind.startswith("=") else 8 + i
        put(reference, number, source)
        machine.s[number] = source.ravel().view(f"u{dtype.itemsize}")
        if number != 2:
            vectors.append("0x40490fdb" if i == literal else spelled(kind, number, 0))
            scalars.append("0x40490fdb" if i == literal else f"s{number}")
    reference.execute(f"{vector_name(operation)} {spelled(result, 2, 0)}, {', '.join(vectors)}")
    machine.execute(f"{name} s2, {', '.join(scalars)}")
    dtype = dtype_of(result)
    if dtype.itemsize == 2:
        assert not (machine.s[2] >> 16).any(), "a half is a number of 32 bits"
    got = machine.s[2].astype(f"u{dtype.itemsize}").view(dtype)
    assert_same(got, get(reference, 2, dtype).ravel(), name)


def test_scalar_floats_in_numbers():
    machine = Machine(arch="gfx1201")
    for number, x in ((4, 1.5), (5, -2.25), (6, 7.9)):
        machine.s[number] = np.float32(x).view(np.uint32)
    machine.s[7] = int(np.float16(3).view(np.uint16)) << 16 | int(np.float16(-1).view(np.uint16))
    machine.s[20] = machine.s[4]
    machine.execute(
        "s_add_f32 s8, s4, s5", "s_mul_f32 s9, s4, s5", "s_min_num_f32 s10, s4, s5", "s_cvt_i32_f32 s11, s6",
        "s_cvt_hi_f32_f16 s12, s7", "s_cvt_f32_f16 s13, s7", "s_fmac_f32 s20, s4, s5", "s_trunc_f32 s14, s5",
        "v_s_rcp_f32 s15, -s4", "v_s_sqrt_f32 s16, |s5| clamp", "s_cvt_pk_rtz_f16_f32 s17, s4, s5",
        "s_maximum_f32 s18, s4, 0x7fc00000", "s_max_num_f32 s19, s4, 0x7fc00000",
    )  # fmt: skip
    got = {number: float(machine.s[number, 0].view(np.float32)) for number in range(8, 21)}
    assert (got[8], got[9], got[10]) == (-0.75, -3.375, -2.25) and (machine.s[11] == 7).all()
    assert (got[12], got[13], got[20], got[14]) == (3, -1, 1.5 * -2.25 + 1.5, -2)
    assert (got[15], got[16]) == (-float(np.float32(1) / np.float32(1.5)), 1)
    assert (
        machine.s[17] == (int(np.float16(-2.25).view(np.uint16)) << 16 | int(np.float16(1.5).view(np.uint16)))
    ).all()
    assert np.isnan(got[18]) and got[19] == 1.5


COMPARISONS = {
    "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "lg": lambda a, b: (a < b) | (a > b), "ge": lambda a, b: a >= b, "o": lambda a, b: (a == a) & (b == b),
    "u": lambda a, b: (a != a) | (b != b), "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b), "neq": lambda a, b: a != b,
    "nlt": lambda a, b: ~(a < b),
}  # fmt: skip


@pytest.mark.parametrize("bits", (16, 32))
@pytest.mark.parametrize("name", COMPARISONS)
def test_scalar_float_comparison(name: str, bits: int):
    dtype, unsigned = np.dtype(f"f{bits // 8}"), np.dtype(f"u{bits // 8}")
    a, b = (edge_floats(i, (96,), dtype) for i in range(2))
    b[::5] = a[::5]
    machine = Machine(96, arch="gfx1201")
    machine.s[4], machine.s[8] = a.view(unsigned), b.view(unsigned)
    machine.execute(f"s_cmp_{name}_f{bits} s4, s8")
    np.testing.assert_array_equal(machine.scc, COMPARISONS[name](a, b))


def test_every_comparison_has_a_case():
    there = {name[6:-4] for name in mnemonics("gfx1201") if name.startswith("s_cmp_") and "_f" in name}
    assert set(COMPARISONS) == there
