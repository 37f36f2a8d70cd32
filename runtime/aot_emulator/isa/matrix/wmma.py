"""WMMA instructions of RDNA (ISA chapter "Wave Matrix Multiply Accumulate").

The sparse forms (SWMMAC) are not supported.
"""

from __future__ import annotations

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.operands import VGPR, Registers, Step, constant, vector_register
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import Wavefronts

from . import matrix_op, matrix_product


def bind(instruction: Instruction, layout: Registers, op: matrix_op.MatrixOp) -> Step:
    """Return the step of a WMMA instruction. Operands are VGPRs; EXEC is ignored."""
    modifiers = matrix_op.MatrixModifiers.from_fields(instruction.fields)
    try:
        op = matrix_op.resolve(op, modifiers)
    except ValueError as error:
        raise instruction.unsupported(str(error)) from None

    def rows(name: str, words: int) -> slice:
        if instruction.fields[name] < VGPR:
            raise instruction.unsupported(f"{name} is not a vector register")
        row = vector_register(instruction, instruction.fields[name], False, layout, words)
        return slice(row, row + words)

    first, second = rows("src0", op.a_registers), rows("src1", op.b_registers)
    target = rows("vdst", op.d_registers)
    addend = rows("src2", op.d_registers) if instruction.fields["src2"] >= VGPR else _constant(instruction, op)
    overlaps = any(target.start < part.stop and part.start < target.stop for part in (first, second))

    def step(waves: Wavefronts) -> None:
        registers, start = waves.u32, None
        if isinstance(addend, slice):
            start = registers[addend]
        elif addend:
            start = np.broadcast_to(addend, (op.d_registers, *waves.shape))
        # 16-bit results preserve the other half of D's registers.
        out: Array = registers[target].copy() if overlaps else registers[target]
        how = matrix_product.arithmetic_of(instruction, op, waves)
        matrix_product.execute(op, registers[first], registers[second], start, modifiers, out=out, arithmetic=how)
        if overlaps:
            registers[target] = out

    return step


def _constant(instruction: Instruction, op: matrix_op.MatrixOp) -> np.uint32:
    value = constant(instruction, instruction.fields["src2"], "u32")
    if value is None or instruction.fields["src2"] == 255:
        raise instruction.unsupported("src2 is neither a vector register nor an inline constant")
    if value and op.d.bits != 32:
        raise instruction.unsupported("non-zero inline constant for 16-bit elements")
    return np.uint32(value)
