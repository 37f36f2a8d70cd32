"""Detection of register halves that a d16 load into the other half leaves undefined.

A d16 load writes half a register. Chips with SRAM ECC write 0 to the other half, others preserve it (LLVM's `sramecc`
feature). Code that uses the other half depends on one of the two. Compilers avoid such code; AMD's hand-written
assembly for specific chips depends on the zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import reduce
from weakref import WeakKeyDictionary

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.disassembly import Operand, disassemble, operands_of
from aot_emulator.isa.operands import constant
from aot_emulator.machine.program import Program
from aot_emulator.state.wavefronts import Wavefronts

from .waits import names_of, register_set

Halves = Mapping[int, int]
"""Undefined halves: bit in a `register_set` → pc of the load that left it undefined."""

_POSITIONS = {"src0": 0, "src1": 1, "vsrc1": 1, "src2": 2}
"""Positions of operands' bits in op_sel."""
_DATA = ("vsrc", "vdata", "data", "data0", "data1")
_BOTH = (0, 1)
_NOTHING: Halves = {}


class HalfLoads:
    """The undefined halves of each group of wavefronts."""

    def __init__(self, program: Program):
        self._program = program
        self._loads = any(_open_half(found) is not None for found in program.instructions.values())
        self._groups: WeakKeyDictionary[Wavefronts, Halves] = WeakKeyDictionary()

    def execute(self, waves: Wavefronts, instruction: Instruction) -> str:
        """Update a group for an instruction. Returns the description of a fault, or an empty string."""
        if not self._loads:
            return ""
        before, half = self._groups.get(waves, _NOTHING), _open_half(instruction)
        if not before and half is None:
            return ""
        used = {bit: before[bit] for bit in self._read(instruction) if bit in before}
        after = dict(before)
        for operand in operands_of(instruction):
            if operand.result:
                bits = list(_bits(register_set(operand, self._program.layout)))
                for bit in bits:
                    after.pop(bit, None)
                if half is not None:
                    after[bits[half]] = instruction.pc
        self._groups[waves] = after
        return self._describe(used) if used else ""

    def derive(self, part: Wavefronts, sources: tuple[Wavefronts, ...]) -> None:
        """Give a group made from others the undefined halves of each."""
        if self._loads:
            empty: Halves = {}
            self._groups[part] = reduce(
                lambda found, source: {**found, **self._groups.get(source, _NOTHING)}, sources, empty
            )

    def _read(self, instruction: Instruction) -> Iterator[int]:
        """Yield the bits of the VGPR halves that affect the result of an instruction."""
        for operand in operands_of(instruction):
            if operand.is_vector and (not operand.result or _adds_to(instruction, operand)):
                bits = list(_bits(register_set(operand, self._program.layout)))
                yield from bits if operand.words > 1 else (bits[half] for half in _halves_read(instruction, operand))

    def _describe(self, used: Halves) -> str:
        names = names_of(reduce(lambda bits, bit: bits | 1 << bit, used, 0), self._program.layout)
        loads = " and ".join(
            f"`{disassemble(self._program.instructions[pc])}` at pc {pc:#x}" for pc in sorted(set(used.values()))
        )
        return (
            f"half of {names} is used that {loads} did not load: chips with SRAM ECC (MI200, MI300, MI350) write 0 "
            "there, others preserve it"
        )


def _open_half(instruction: Instruction) -> int | None:
    name = instruction.mnemonic
    if "_d16" not in name or ("_read_" not in name and "_load_" not in name):
        return None
    return 0 if name.endswith("_hi") else 1


def _adds_to(instruction: Instruction, operand: Operand) -> bool:
    return operand.name == "vdst" and any(part in instruction.mnemonic for part in ("fmac", "v_dot", "v_mac_"))


def _halves_read(instruction: Instruction, operand: Operand) -> tuple[int, ...]:
    name, fields = instruction.mnemonic, instruction.fields
    if operand.name in _DATA and ("_store_" in name or "_write_" in name):
        return (1,) if "_d16_hi" in name else (0,) if name.endswith(("_b16", "_b8", "_short", "_byte")) else _BOTH
    if operand.name == "src0" and "src0_sel" in fields and "vsrc0" in fields:
        return _of_selection(fields["src0_sel"])
    if operand.name == "vsrc1" and "src1_sel" in fields:
        return _of_selection(fields["src1_sel"])
    if operand.name in instruction.short and not name.startswith(("v_pk_", "v_dot")):
        return (instruction.field("opsel") >> _POSITIONS.get(operand.name, 0) & 1,)
    if operand.name in ("vsrc1", "src1") and (first := constant(instruction, fields["src0"], "u32")) is not None:
        return _kept(name, int(first))
    return _BOTH


def _kept(name: str, first: int) -> tuple[int, ...]:
    """Return the halves of the second operand that a shift by a constant, or a constant mask, keeps."""
    dropped = {
        "v_and_b32": (not first & 0xFFFF, not first >> 16),
        "v_lshrrev_b32": (first >= 16, False),
        "v_lshlrev_b32": (False, first >= 16),
    }.get(re.sub("_e(32|64)$", "", name), (False, False))
    return tuple(half for half in _BOTH if not dropped[half])


def _of_selection(selection: int) -> tuple[int, ...]:
    """Return the halves read by an SDWA selection: bytes 0 to 3, words 4 and 5, or the whole register."""
    return (selection >> 1,) if selection < 4 else (selection - 4,) if selection < 6 else _BOTH


def _bits(registers: int) -> Iterator[int]:
    return (bit for bit in range(registers.bit_length()) if registers >> bit & 1)
