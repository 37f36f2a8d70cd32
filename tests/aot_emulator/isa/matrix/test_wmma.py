"""WMMA from its assembly text: registers, constants and modifiers. What is computed is tested in `test_matrix`."""

from __future__ import annotations

import numpy as np
import pytest
from aot_emulator.isa.matrix.matrix_op import MatrixModifiers

from aot_runtime.errors import UnsupportedInstructionError
from tests.support.emulation.machine import Machine
from tests.support.emulation.naive_matrix import EVERY, WAVES, Case, naive, unpack_d

WMMA = [(arch, name) for arch, name in EVERY if name.startswith("v_wmma")]
every_wmma = pytest.mark.parametrize("arch,name", WMMA)
A, B, C, D = 0, 8, 16, 24
UNTOUCHED = 0xABCD1234


def block(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"


def run(case: Case, addend: str | None = None, target: int = D, modifiers: str = "") -> np.ndarray:
    """D's registers, [registers, wavefronts, lanes]; all lanes are inactive."""
    machine, registers = Machine(WAVES, arch=case.arch), case.registers()
    for first, values in zip((A, B, C), registers, strict=True):
        machine.v[first : first + len(values)] = values
    machine.v[D : D + case.op.d_registers] = UNTOUCHED
    machine.set_exec(0)
    texts = [block(first, len(values)) for first, values in zip((A, B, C), registers, strict=True)]
    result = block(target, case.op.d_registers)
    machine.execute(f"{case.op.mnemonic} {result}, {texts[0]}, {texts[1]}, {addend or texts[2]} {modifiers}")
    return machine.v[target : target + case.op.d_registers].copy()


def low_of(name: str) -> int:
    return 0 if "_iu" in name else -3


@pytest.mark.parametrize("target", (D, C, A, B + 1), ids=("apart", "on C", "on A", "across B"))
@every_wmma
def test_every_instruction_wherever_its_result_goes(arch: str, name: str, target: int):
    case = Case(arch, name, low=low_of(name))
    got = unpack_d(case.op, run(case, target=target), case.d_type)
    np.testing.assert_array_equal(got, naive(case.a, case.b, case.c))


@every_wmma
def test_a_constant_is_every_element_of_c(arch: str, name: str):
    case = Case(arch, name, low=low_of(name))
    constants = {"0": 0}
    if case.op.d.bits == 32:
        constants |= {"-2.0": -2, "1.0": 1} if case.op.d.fmt else {"-7": -7, "64": 64}
    for text, value in constants.items():
        case.c[...] = value
        got = unpack_d(case.op, run(case, text), case.d_type)
        np.testing.assert_array_equal(got, naive(case.a, case.b, case.c), text)


@pytest.mark.parametrize("name", ("v_wmma_f16_16x16x16_f16", "v_wmma_bf16_16x16x16_bf16"))
@pytest.mark.parametrize("high", (False, True))
def test_the_other_half_of_gfx11s_results_stays(name: str, high: bool):
    case = Case("gfx1100", name)
    found = run(case, "0", modifiers=f"op_sel:[0,0,{int(high)}]")
    case.c[...] = 0
    np.testing.assert_array_equal(unpack_d(case.op, found, case.d_type, high), naive(case.a, case.b, case.c))
    other = found & 0xFFFF if high else found >> 16
    assert (other == (UNTOUCHED & 0xFFFF if high else UNTOUCHED >> 16)).all()


@pytest.mark.parametrize("arch,name", [(a, n) for a, n in WMMA if "iu" not in n and "fp8" not in n and "bf8" not in n])
def test_signs_of_floats(arch: str, name: str):
    """neg_lo is of even k, neg_hi of odd ones; of C, neg_hi is the absolute value and comes first."""
    case = Case(arch, name)
    found = run(case, modifiers="neg_lo:[1,0,1] neg_hi:[0,1,1]")
    case.a[..., 0::2] *= -1
    case.b[..., 1::2] *= -1
    want = naive(case.a, case.b, -np.abs(case.c))
    np.testing.assert_array_equal(unpack_d(case.op, found, case.d_type), want)


@pytest.mark.parametrize("signs", ((0, 0), (1, 0), (0, 1), (1, 1)))
@pytest.mark.parametrize("arch,name", [(arch, name) for arch, name in WMMA if "_iu" in name])
def test_signs_and_saturation_of_integers(arch: str, name: str, signs: tuple[int, int]):
    limit = 1 << int(name[-1]) - 1
    case = Case(arch, name, low=0, high=2 * limit - 1, modifiers=MatrixModifiers(neg=signs[0] | signs[1] << 1, clmp=1))
    case.c[0], case.c[1], case.c[2] = 2**31 - 5, -(2**31) + 5, 0
    found = run(case, modifiers=f"neg_lo:[{signs[0]},{signs[1]},0] clamp")
    for values, signed in zip((case.a, case.b), signs, strict=True):
        if signed:
            values[values >= limit] -= 2 * limit
    want = naive(case.a, case.b, case.c)
    assert (want > 2**31 - 1).any() or signs == (1, 1)
    np.testing.assert_array_equal(unpack_d(case.op, found, case.d_type), np.clip(want, -(2**31), 2**31 - 1))


@pytest.mark.parametrize(
    "arch,text,message",
    (
        ("gfx1201", "v_swmmac_f32_16x16x32_f16 v[16:23], v[0:3], v[4:11], v12", "not implemented"),
        ("gfx1201", "v_swmmac_i32_16x16x64_iu4 v[16:23], v[0:1], v[4:7], v12", "not implemented"),
        ("gfx1100", "v_wmma_f16_16x16x16_f16 v[24:31], v[0:7], v[8:15], 1.0", "inline constant other than 0"),
        ("gfx1100", "v_wmma_f32_16x16x16_f16 v[60:67], v[0:7], v[8:15], 0", "register v67"),
    ),
)
def test_what_is_refused(arch: str, text: str, message: str):
    with pytest.raises(UnsupportedInstructionError, match=message) as raised:
        Machine(arch=arch).execute(text)
    assert text.startswith(raised.value.mnemonic)
