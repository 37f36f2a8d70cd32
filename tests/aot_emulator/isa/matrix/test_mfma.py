"""MFMA from its assembly text, on every CDNA: which registers and modifiers it has. `test_matrix` has the arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aot_emulator.isa.matrix import matrix_op, matrix_product

from aot_runtime.errors import UnsupportedInstructionError
from tests.support.emulation.machine import ACCUMULATION, Machine

ARCHS = ("gfx90a", "gfx942", "gfx950")
FORMATS = {"fp8": 0, "bf8": 1, "fp6": 2, "bf6": 3, "fp4": 4}
A, B, C = "v", "a", "a"
"""Which registers the operands are in; D's are of C's sort."""


def mnemonics(scaled: bool = False) -> list[tuple[str, str]]:
    return [(arch, name) for arch in ARCHS for name, op in matrix_op.matrix_ops(arch).items() if op.scaled == scaled]


def filled(arch: str, op: matrix_op.MatrixOp, seed: int = 0) -> Machine:
    """A machine whose registers hold small numbers of the operands' types."""
    machine = Machine(arch=arch)
    rng = np.random.default_rng(seed)
    if op.a.bits == 64 or op.a.name in ("f32", "xf32"):
        numbers = rng.integers(-8, 9, (64, 4, 64))
        values = numbers.astype(np.float64 if op.a.bits == 64 else np.float32)
        words = np.ascontiguousarray(values).view(np.uint32)
        machine.v[:64] = machine.v[64:] = words[..., 1::2] if op.a.bits == 64 else words
    else:
        # Bits 6 and 14 would make NaN of some.
        machine.v[:] = rng.integers(0, 1 << 32, machine.v.shape, np.uint32) & np.uint32(0xBFBF_BFBF)
    return machine


def registers(letter: str, first: int, count: int) -> str:
    return f"{letter}[{first}:{first + count - 1}]" if count > 1 else f"{letter}{first}"


def rows(machine: Machine, letter: str, first: int, count: int) -> np.ndarray:
    start = first + (ACCUMULATION if letter == "a" else 0)
    return machine.v[start : start + count].copy()


def check(arch: str, name: str, modifiers: dict[str, int], tail: str = "", more: str = "", **given: Any) -> None:
    op = matrix_op.resolve(matrix_op.matrix_ops(arch)[name], matrix_op.MatrixModifiers(**modifiers))
    machine = filled(arch, op)
    a, b, c = rows(machine, A, 0, op.a_registers), rows(machine, B, 0, op.b_registers), rows(machine, C, 32, 32)
    chosen = matrix_op.MatrixModifiers(**modifiers)
    want = matrix_product.execute(matrix_op.matrix_ops(arch)[name], a, b, c[: op.d_registers], chosen, **given)
    operands = [registers(C, 32, op.d_registers), registers(A, 0, op.a_registers), registers(B, 0, op.b_registers)]
    machine.set_exec(0xF0F0)  # which does not matter
    fields = " ".join(f"{field}:{value}" for field, value in modifiers.items() if field in ("cbsz", "abid", "blgp"))
    machine.execute(f"{name} {', '.join([*operands, operands[0]])}{more} {tail} {fields}".rstrip())
    np.testing.assert_array_equal(rows(machine, C, 32, op.d_registers), want)
    assert (want != c[: op.d_registers]).any()


@pytest.mark.parametrize("arch,name", mnemonics())
def test_operands(arch: str, name: str):
    check(arch, name, {})


@pytest.mark.parametrize(
    "arch,name", [(arch, name) for arch, name in mnemonics() if matrix_op.matrix_ops(arch)[name].blocks > 1]
)
def test_broadcast_blocks(arch: str, name: str):
    modifiers = {"cbsz": 1, "abid": 1}
    if matrix_op.matrix_ops(arch)[name].allowed:
        check(arch, name, modifiers)
    if matrix_op.matrix_ops(arch)[name].blgp == "lanes":
        check(arch, name, {"blgp": 2})


@pytest.mark.parametrize("name", ("v_mfma_f32_32x32x64_f8f6f4", "v_mfma_f32_16x16x128_f8f6f4"))
@pytest.mark.parametrize("a,b", [("bf8", "fp8"), ("fp4", "fp6"), ("bf6", "fp4")])
def test_formats(name: str, a: str, b: str):
    check("gfx950", name, {"cbsz": FORMATS[a], "blgp": FORMATS[b]})


@pytest.mark.parametrize("name", ("v_mfma_scale_f32_32x32x64_f8f6f4", "v_mfma_scale_f32_16x16x128_f8f6f4"))
@pytest.mark.parametrize("bytes_", ((0, 0), (1, 2), (3, 1)))
@pytest.mark.parametrize("a,b", [("fp8", "fp8"), ("fp4", "bf8"), ("fp4", "fp4")])
def test_scales(name: str, a: str, b: str, bytes_: tuple[int, int]):
    """op_sel and op_sel_hi say which byte of the scales' registers is meant."""
    op = matrix_op.matrix_ops("gfx950")[name]
    machine = filled("gfx950", op)
    low, high = ([at >> bit & 1 for at in bytes_] for bit in (0, 1))
    modifiers = {
        "cbsz": FORMATS[a],
        "blgp": FORMATS[b],
        "opsel": low[0] | low[1] << 1,
        "opsel_hi": high[0] | high[1] << 1,
    }
    scales = machine.v[40][None].copy(), machine.v[41][None].copy()
    tail = f"op_sel:[{low[0]},{low[1]},0] op_sel_hi:[{high[0]},{high[1]},0]"
    check("gfx950", name, modifiers, tail, ", v40, v41", scales=scales)


@pytest.mark.parametrize("constant,value", (("0", 0.0), ("1.0", 1.0), ("-4.0", -4.0)))
def test_constant_addend(constant: str, value: float):
    op = matrix_op.matrix_ops("gfx950")["v_mfma_f32_16x16x32_f16"]
    machine = filled("gfx950", op)
    c = np.full((4, 4, 64), value, np.float32).view(np.uint32)
    want = matrix_product.execute(op, rows(machine, "a", 0, 4), rows(machine, "v", 8, 4), c)
    machine.execute(f"v_mfma_f32_16x16x32_f16 v[8:11], a[0:3], v[8:11], {constant}")  # D is B, too
    np.testing.assert_array_equal(rows(machine, "v", 8, 4), want)


@pytest.mark.parametrize("arch,text", [
    ("gfx942", "v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[8:11], v12"),
    ("gfx950", "v_smfmac_f32_16x16x64_f16 v[0:3], v[4:7], v[8:15], v16"),
    ("gfx950", "v_mfma_ld_scale_b32 v0, v1"),
])  # fmt: skip
def test_what_is_not_implemented_is_named(arch: str, text: str):
    with pytest.raises(UnsupportedInstructionError, match=text.split()[0]):
        Machine(arch=arch).execute(text)


def test_modifiers_that_an_instruction_lacks():
    with pytest.raises(UnsupportedInstructionError, match="has no modifier blgp"):
        Machine(arch="gfx950").execute("v_mfma_f32_16x16x32_f16 v[0:3], v[4:7], v[8:11], v[0:3] blgp:1")
