"""MFMA instructions of CDNA (ISA chapter "Matrix Arithmetic Instructions")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.operands import VGPR, Registers, Step, vector_register, vector_source
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import Wavefronts

from . import matrix_op, matrix_product


def bind(instruction: Instruction, layout: Registers, op: matrix_op.MatrixOp) -> Step:
    """Return the step of an MFMA instruction. Operands are VGPRs or AGPRs; EXEC is ignored."""
    fields = {**_matrix_fields(instruction.fields), **instruction.fields}
    modifiers = _modifiers(instruction, fields, op)
    try:
        op = matrix_op.resolve(op, modifiers)
    except ValueError as error:
        raise instruction.unsupported(str(error)) from None
    accumulates, sources = bool(fields["acc_cd"]), fields["acc"]

    def rows(name: str, accumulation: bool, words: int) -> slice:
        if fields[name] < VGPR:
            raise instruction.unsupported(f"{name} is not a vector register")
        row = vector_register(instruction, fields[name], accumulation, layout, words)
        return slice(row, row + words)

    first = rows("src0", bool(sources & 1), op.a_registers)
    second = rows("src1", bool(sources >> 1 & 1), op.b_registers)
    target = rows("vdst", accumulates, op.d_registers)
    addend: slice | Callable[[Wavefronts], Any]
    if fields["src2"] >= VGPR:
        addend = rows("src2", accumulates, op.d_registers)
    else:
        addend = vector_source(instruction, fields["src2"], "f64" if op.d.bits == 64 else "u32", layout)

    exponents = [rows(name, False, 1) for name in _SCALES if name in fields]

    def step(waves: Wavefronts) -> None:
        if isinstance(addend, slice):
            start: Array | None = waves.u32[addend]
        else:
            start = _spread(addend(waves), op.d_registers, waves.shape)
        registers = waves.u32
        overlaps = any(target.start < part.stop and part.start < target.stop for part in (first, second))
        out = None if overlaps else registers[target]
        scales = (registers[exponents[0]], registers[exponents[1]]) if exponents else None
        mode = waves.mode
        result = matrix_product.execute(
            op, registers[first], registers[second], start, modifiers, scales=scales, out=out,
            arithmetic=matrix_product.arithmetic_of(instruction, op, waves),
            flush=op.a.bits == 32 and not mode.keep_in32, saturate=mode.fp16_ovfl,
        )  # fmt: skip
        if out is None:
            registers[target] = result

    return step


_SCALES = ("scale_src0", "scale_src1")
_UNSCALED, _SCALED = ("cbsz", "abid", "blgp"), ("cbsz", "blgp", "neg", "neg_hi", "opsel", "opsel_hi")
_ABID_OF_SCALED = 1
"""Fixed value of abid in the encoding of scaled instructions."""


def _modifiers(
    instruction: Instruction, fields: Mapping[str, int], op: matrix_op.MatrixOp
) -> matrix_op.MatrixModifiers:
    """Return the modifiers of an instruction. The ISA tables list the same bits under several names."""
    if op.scaled and fields["abid"] != _ABID_OF_SCALED:
        raise instruction.unsupported(f"abid {fields['abid']} of a scaled instruction")
    return matrix_op.MatrixModifiers.from_fields({name: fields[name] for name in (_SCALED if op.scaled else _UNSCALED)})


def _matrix_fields(fields: Mapping[str, int]) -> dict[str, int]:
    """Return MFMA's fields for opcodes to which the ISA tables give the field names of other VOP3P instructions."""
    if "cbsz" in fields:
        return {}
    return {
        "cbsz": fields["neg_hi"],
        "abid": fields["opsel"] | fields["opsel_hi2"] << 3,
        "acc_cd": fields["clmp"],
        "acc": fields["opsel_hi"],
        "blgp": fields["neg"],
    }


def _spread(value: Any, registers: int, shape: tuple[int, int]) -> Array | None:
    """Broadcast a constant C to all elements; None for zero."""
    if not value:
        return None
    words = np.asarray(value).reshape(1).view(np.uint32)
    repeated = np.tile(words, registers // len(words))
    return np.broadcast_to(repeated[:, None, None], (registers, *shape))
