"""VOPD: dual-issued VALU instructions, which both read their sources before either writes (ISA chapter "VOPD")."""

from __future__ import annotations

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.operands import Registers, Step, vector_register
from aot_emulator.state.wavefronts import Wavefronts

from . import vector_alu


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """Return the step of a pair, or None if a part is not a VALU instruction."""
    first, second = (vector_alu.bind(part, layout) for part in instruction.parts)
    if first is None or second is None:
        return None
    one, other = instruction.parts
    if not _reads(other, one.fields["vdst"]):
        return _in_turn(first, second)
    if not _reads(one, other.fields["vdst"]):
        return _in_turn(second, first)
    row = vector_register(instruction, one.fields["vdst"], False, layout, 1)
    return _with_old_value(first, second, row)


def _reads(instruction: Instruction, register: int) -> bool:
    names = ("src0", "vsrc1", *(("vdst",) if "fmac" in instruction.mnemonic or "acc" in instruction.mnemonic else ()))
    return any(instruction.field(name) == register for name in names)


def _in_turn(first: Step, second: Step) -> Step:
    def step(waves: Wavefronts) -> None:
        first(waves)
        second(waves)

    return step


def _with_old_value(first: Step, second: Step, row: int) -> Step:
    def step(waves: Wavefronts) -> None:
        old = waves.u32[row].copy()
        first(waves)
        new = waves.u32[row].copy()
        waves.u32[row] = old
        second(waves)
        waves.u32[row] = new

    return step
