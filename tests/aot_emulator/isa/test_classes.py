"""Passes of matrix instructions, where formats and generations differ."""

from __future__ import annotations

import pytest

from aot_emulator import ARCHS
from aot_emulator.isa.classes import matrix_passes
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.matrix.matrix_op import matrix_ops

PASSES = {
    ("gfx942", "v_mfma_f64_16x16x4_f64"): 8,
    ("gfx950", "v_mfma_f64_16x16x4_f64"): 16,
    ("gfx950", "v_mfma_f32_16x16x128_f8f6f4", 0, 4): 8,  # float8 beside float4
    ("gfx950", "v_mfma_f32_16x16x128_f8f6f4", 2, 4): 4,  # float6 beside float4
    ("gfx950", "v_mfma_scale_f32_32x32x64_f8f6f4", 1, 1): 16,
    ("gfx950", "v_mfma_scale_f32_32x32x64_f8f6f4", 4, 4): 8,
}


def instruction(arch: str, name: str, a: int = 0, b: int = 0) -> Instruction:
    return Instruction(ARCHS[arch], 0, 8, name, "VOP3P", {"cbsz": a, "blgp": b}, ())


@pytest.mark.parametrize("case", PASSES, ids=str)
def test_passes(case: tuple):
    assert matrix_passes(instruction(*case)) == PASSES[case]


@pytest.mark.parametrize("arch", ("gfx90a", "gfx942", "gfx950"))
def test_every_matrix_instruction_has_passes(arch: str):
    assert all(matrix_passes(instruction(arch, name)) in (2, 4, 8, 16) for name in matrix_ops(arch))
