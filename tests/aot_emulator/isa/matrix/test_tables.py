"""The tables of matrix instructions against the decoder's; refused modifiers, and codes of operands."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aot_emulator import Arithmetic
from aot_emulator.isa import gfx90a
from aot_emulator.isa.matrix import matrix_layout, matrix_op, matrix_product
from aot_emulator.isa.matrix.matrix_op import MatrixModifiers
from tests.support.emulation.naive_matrix import code_type
from tests.support.emulation.values import assert_same


@pytest.mark.parametrize(
    "isa,arches", [("cdna", ("gfx942", "gfx950")), ("rdna3", ("gfx1100",)), ("rdna4", ("gfx1201",))]
)
def test_every_dense_instruction_of_the_isa_tables_is_known(isa: str, arches: tuple[str, ...]):
    enum = pytest.importorskip(f"tinygrad.runtime.autogen.amd.{isa}.enum")
    names = {op.name.lower() for kind in (enum.VOP3POp, getattr(enum, "VOP3PX2Op", ())) for op in kind}
    dense = {name for name in names if re.match(r"v_(mfma|wmma)_", name)} - {"v_mfma_ld_scale_b32"}
    assert dense == set().union(*(matrix_op.matrix_ops(arch) for arch in arches))


def test_gfx90a_opcodes_name_its_instructions():
    assert set(gfx90a.MATRIX_OPCODES.values()) == set(matrix_op.matrix_ops("gfx90a"))


@pytest.mark.parametrize("fmt", ["f16", "bf16", "fp8", "bf8"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decode_every_code(arch: str, fmt: str, dtype: Any):
    op = next(op for name, op in matrix_op.matrix_ops(arch).items() if name.endswith("_" + fmt) and op.blocks == 1)
    bits, code_dtype = code_type(arch, fmt)
    every = np.arange(1 << bits, dtype=f"u{bits // 8}").repeat(2 if bits == 8 else 1)
    registers = every.view(np.uint32).reshape(-1, 1, 64)
    want = every.view(code_dtype).astype(dtype).reshape(registers.shape[0], 64, -1).swapaxes(1, 2)
    assert_same(matrix_layout.decode(registers, op.b, dtype=dtype)[0], want.reshape(-1, 64))


@pytest.mark.parametrize("arch,name,modifiers,message", [
    ("gfx942", "v_mfma_f32_32x32x8_f16", {"blgp": 1}, "has no modifier blgp"),
    ("gfx942", "v_mfma_f32_32x32x2_f32", {"cbsz": 1}, "has no modifier cbsz"),
    ("gfx942", "v_mfma_f32_16x16x4_4b_f16", {"cbsz": 3}, "one of at most 4 blocks"),
    ("gfx942", "v_mfma_f32_16x16x4_4b_f16", {"cbsz": 1, "abid": 2}, "one of at most 4 blocks"),
    ("gfx950", "v_mfma_f32_16x16x128_f8f6f4", {"cbsz": 5}, "must be 0 to 4"),
    ("gfx1100", "v_wmma_i32_16x16x16_iu8", {"neg_hi": 1}, "neg_hi must be 0"),
    ("gfx1201", "v_wmma_f32_16x16x16_fp8_fp8", {"neg": 1}, "only C can be negated"),
    ("gfx1100", "v_wmma_f32_16x16x16_f16", {"opsel": 4}, "op_sel"),
    ("gfx90a", "v_mfma_f64_16x16x4f64", {"blgp": 1}, "has no modifier blgp"),
])  # fmt: skip
def test_modifiers_without_a_meaning_are_refused(arch: str, name: str, modifiers: dict[str, int], message: str):
    with pytest.raises(ValueError, match=re.escape(name) + ".*" + message):
        matrix_op.resolve(matrix_op.matrix_ops(arch)[name], MatrixModifiers(**modifiers))


def test_wrong_operands_are_refused():
    def execute(arch: str, name: str, registers: int, *others: Any, **given: Any) -> None:
        op = matrix_op.matrix_ops(arch)[name]
        a = np.zeros((registers, 4, op.lanes), np.uint32)
        matrix_product.execute(op, a, *(others or (a,)), None, **given)

    plain, bad = "v_mfma_f32_16x16x16_f16", np.zeros((1, 4, 64), np.uint32)
    with pytest.raises(ValueError, match=r"B must be uint32\[2, 4, 64\], is uint32\[1, 4, 64\]"):
        execute("gfx942", plain, 2, bad)
    with pytest.raises(ValueError, match="B must be uint32"):
        execute("gfx942", plain, 2, np.zeros((2, 4, 64), np.int32))
    with pytest.raises(ValueError, match="takes no registers of scales"):
        execute("gfx942", plain, 2, scales=(bad, bad))
    with pytest.raises(ValueError, match="takes two registers of scales"):
        execute("gfx950", "v_mfma_scale_f32_16x16x128_f8f6f4", 8)
    with pytest.raises(ValueError, match="no hardware model is known"):
        execute("gfx1201", "v_wmma_f32_16x16x16_f16", 4, arithmetic=Arithmetic.HARDWARE)
