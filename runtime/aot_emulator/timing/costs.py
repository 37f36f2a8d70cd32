"""Instruction costs: the execution unit and its cycles, by mnemonic. Unknown instructions are an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from aot_emulator.errors import UnsupportedInstructionError
from aot_emulator.isa.classes import is_conversion, is_transcendental, kind_of, matrix_passes, takes_only_issue
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.disassembly import operands_of
from aot_emulator.isa.operands import VGPR
from aot_emulator.isa.wait_counters import counted_by, waited_for

from .constants import Machine

ISSUE = 4
"""Cycles per issue slot of a SIMD, in which it issues at most one instruction to each unit."""
REGISTERS = 512
"""Vector registers of a wavefront: 256 VGPRs, followed by 256 AGPRs."""


class Unit(IntEnum):
    """Execution unit of an instruction."""

    SCALAR = 0
    VECTOR = 1
    MATRIX = 2
    LDS = 3
    LOAD = 4
    STORE = 5
    WAIT = 6
    BARRIER = 7


@dataclass(frozen=True)
class Cost:
    """Cost of an instruction.

    Attributes:
        unit: the unit that executes it.
        cycles: cycles that it occupies its SIMD's unit, or delays the wavefront's next instruction.
        vm, lgkm: maximum outstanding operations of the counter that it waits for; -1: does not wait.
        counts_vm, counts_lgkm: it increments the counter.
        near: it accesses scratch, which L2 serves.
        priority: wavefront priority that it sets; -1: unchanged.
        reads, writes: vector registers.
    """

    unit: Unit
    cycles: float
    vm: int
    lgkm: int
    counts_vm: bool
    counts_lgkm: bool
    near: bool
    priority: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


_UNITS: Mapping[str, Unit] = {
    "salu": Unit.SCALAR, "branch": Unit.SCALAR, "scalar_memory": Unit.SCALAR, "valu": Unit.VECTOR,
    "matrix": Unit.MATRIX, "lds_load": Unit.LDS, "lds_store": Unit.LDS, "lds_exchange": Unit.LDS,
    "lds_atomic": Unit.LDS, "global_load": Unit.LOAD, "scratch_load": Unit.LOAD, "global_atomic": Unit.LOAD,
    "global_store": Unit.STORE, "scratch_store": Unit.STORE, "wait": Unit.WAIT, "barrier": Unit.BARRIER,
}  # fmt: skip
_VECTOR = re.compile(
    r"v_(pk_)?(add|add3|addc|sub|subrev|subb|subbrev|mul|mad|mac|madak|madmk|fma|fmac|fmaak|fmamk|max|max3|min|min3|med3|sad"
    r"|and|or|or3|xor|xad|xnor|not|lshl|lshlrev|lshr|lshrrev|ashr|ashrrev|bfe|bfi|bfm|bfrev|bcnt|mbcnt|ffbh|ffbl|perm"
    r"|alignbit|alignbyte|cndmask|cmp|cmpx|mov|movreld|movrels|swap|readlane|readfirstlane|writelane|accvgpr|dot\w*|pack"
    r"|frexp|ldexp|fract|floor|ceil|trunc|rndne|div|permlane\w*|prng|bitop3|minimum3|maximum3|sat)(_|$)"
)


def cost_of(instruction: Instruction, machine: Machine) -> Cost:
    """Return the cost of an instruction. Raises `UnsupportedInstructionError` if it is unknown."""
    kind, name = kind_of(instruction), instruction.mnemonic
    unit = Unit.SCALAR if takes_only_issue(instruction) else _UNITS.get(kind)
    if unit is None:
        raise _unknown(instruction)
    waits = waited_for(instruction)
    counted = {item.counter for item in counted_by(instruction)}
    registers: list[list[int]] = [[], []]
    for operand in operands_of(instruction):
        if operand.is_vector:
            base = operand.number - VGPR + (REGISTERS // 2 if operand.accumulation else 0)
            registers[operand.result] += range(base, base + operand.words)
    return Cost(
        unit, _cycles(instruction, unit, machine), waits.get("vmcnt", -1), waits.get("lgkmcnt", -1),
        "vmcnt" in counted, "lgkmcnt" in counted, kind.startswith("scratch"),
        instruction.field("simm16") & 3 if name == "s_setprio" else -1, tuple(registers[0]), tuple(registers[1]),
    )  # fmt: skip


def _cycles(instruction: Instruction, unit: Unit, machine: Machine) -> float:
    name = instruction.mnemonic
    if unit is Unit.MATRIX:
        if (passes := matrix_passes(instruction)) is None:
            raise _unknown(instruction)
        return ISSUE * passes
    if unit is Unit.VECTOR:
        if is_transcendental(instruction):
            return machine.transcendental
        if is_conversion(instruction):
            return machine.conversion
        if not _VECTOR.match(name) and name != "v_nop":
            raise _unknown(instruction)
    if name == "s_nop":
        return ISSUE * (instruction.field("simm16") + 1)
    if name == "s_sleep":
        return 64 * (instruction.field("simm16") & 0x7F)
    return machine.branch if name.startswith(("s_branch", "s_cbranch")) else ISSUE


def _unknown(instruction: Instruction) -> UnsupportedInstructionError:
    return UnsupportedInstructionError(
        f"the model of time does not know its cost on {instruction.arch.name}",
        None,
        instruction.pc,
        instruction.mnemonic,
    )
