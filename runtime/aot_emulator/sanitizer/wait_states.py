"""Wait states of CDNA: the number required between two instructions where the hardware does not delay the second.

The tables are from the ISA documents: "Manually Inserted Wait States", and for MFMA "Dependency Resolution: Required
Independent Instructions". Where these are unclear, the numbers are those of LLVM's hazard recogniser. Every instruction
is one wait state, `s_nop N` is N + 1. RDNA's hardware resolves nearly all hazards, so RDNA is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from weakref import WeakKeyDictionary

from aot_emulator.isa.archs import Generation
from aot_emulator.isa.classes import is_transcendental, matrix_passes
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.disassembly import Operand, disassemble, operands_of
from aot_emulator.isa.operands import Registers
from aot_emulator.isa.wait_counters import is_direct_to_lds
from aot_emulator.machine.program import Program
from aot_emulator.state.wavefronts import EXEC, M0, VCC, Wavefronts

from .waits import names_of, register_set

_VECTORS = -1 << 128
"""The vector registers, in a set of registers."""
_EXEC, _VCC, _M0 = 3 << EXEC, 3 << VCC, 1 << M0
_MATRIX = re.compile(r"v_(?:s?mfma\w*?|smfmac)_(?:scale_)?\w+?_(\d+)x\d+x\d+(?:_\d+b)?_?(\w+)")
_ACCUMULATING = re.compile(r"v_(fmac|mac|dot\d+c|pk_fmac)_")
_LANE = ("v_readlane", "v_readfirstlane", "v_writelane")
_MEMORY = ("global_", "flat_", "scratch_", "buffer_", "ds_")
_SDWA_DWORD = 6
_LONGEST = 20
"""More wait states than any rule asks for."""
_LONGEST_OF_VECTORS = 5
"""Maximum number of wait states that a rule requires after a VALU instruction other than a matrix instruction."""


@dataclass(frozen=True)
class Matrix:
    """Properties of a matrix instruction that the rules depend on.

    Attributes:
        rows: number of rows of A: 4, 16 or 32.
        passes: number of passes, of four cycles each.
        is_double: True for fp64.
        is_xdl: True if it runs on the XDL unit. On gfx942 and gfx950, instructions with fp32 operands do not.
        a_and_b, c: the registers of its operands.
    """

    rows: int
    passes: int
    is_double: bool
    is_xdl: bool
    a_and_b: int
    c: int


@dataclass(frozen=True)
class Role:
    """Properties of an instruction that the rules depend on. Registers are sets of `waits.register_set`."""

    name: str
    pc: int
    states: int
    reads: int
    writes: int
    matrix: Matrix | None
    is_vector: bool
    is_memory: bool
    is_dot: bool
    is_transcendental: bool
    is_partial: bool
    dpp: int
    selects_lane: int
    stored: int
    reads_m0: bool

    @cached_property
    def reach(self) -> int:
        """The most wait states that any instruction may have to be behind this one; see `needed`."""
        if self.matrix is not None:
            return _LONGEST
        if self.is_vector:
            return _LONGEST_OF_VECTORS
        return 2 if self.stored or self.name.startswith("s_setreg") else 1 if self.writes & _M0 else 0

    @classmethod
    def of(cls, instruction: Instruction, layout: Registers) -> Role:
        name, operands = instruction.mnemonic, operands_of(instruction)
        sets = {operand.name: register_set(operand, layout) for operand in operands}
        reads = _union(sets[operand.name] for operand in operands if not operand.result)
        writes = _union(sets[operand.name] for operand in operands if operand.result)
        if name.startswith("v_cmpx"):
            writes |= _EXEC
        if name.startswith(("v_div_fmas", "v_cndmask_b32_e32")):
            reads |= _VCC
        if _ACCUMULATING.match(name):
            reads |= writes
        is_vector, is_partial = name.startswith("v_"), _is_partial(instruction)
        return cls(
            name, instruction.pc,
            states=instruction.field("simm16") % 16 + 1 if name == "s_nop" else 1,
            reads=reads | (writes if is_partial else 0), writes=writes,
            matrix=_matrix(instruction, sets), is_vector=is_vector,
            is_memory=name.startswith(_MEMORY), is_dot=name.startswith("v_dot"),
            is_transcendental=is_transcendental(instruction), is_partial=is_partial,
            dpp=sets.get("src0", 0) if "DPP" in instruction.encoding else 0,
            selects_lane=sets.get("src1", 0) if name.startswith(("v_readlane", "v_writelane")) else 0,
            stored=_stored(instruction, operands, sets),
            reads_m0=is_direct_to_lds(instruction) or name.startswith(("s_sendmsg", "s_movrel", "v_movrel")),
        )  # fmt: skip


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _is_partial(instruction: Instruction) -> bool:
    """Return True if it writes part of a register, which is forwarded too late for the next instruction."""
    if "SDWA" in instruction.encoding:
        return instruction.field("dst_sel", _SDWA_DWORD) != _SDWA_DWORD
    if instruction.base_encoding == "VOP3" and "cvt_sr_" in instruction.mnemonic:
        return bool(instruction.field("opsel") >> 2)
    return "mixhi" in instruction.mnemonic or (
        instruction.base_encoding == "VOP3" and bool(instruction.field("opsel") >> 3)
    )


def _stored(instruction: Instruction, operands: tuple[Operand, ...], sets: dict[str, int]) -> int:
    """The data of a store of more than 8 bytes, which is read later than the store is given."""
    if not instruction.mnemonic.startswith(_MEMORY[:4]) or "store" not in instruction.mnemonic:
        return 0
    if instruction.mnemonic.startswith("buffer_") and any(o.name == "soffset" and o.is_register for o in operands):
        return 0
    return _union(sets[o.name] for o in operands if o.name in ("data", "vdata", "vsrc") and o.words > 2)


def _matrix(instruction: Instruction, sets: dict[str, int]) -> Matrix | None:
    match = _MATRIX.match(instruction.mnemonic)
    if match is None:
        return None
    rows, kind, generation = int(match[1]), match[2], instruction.arch.generation
    is_double = kind.startswith("f64")
    is_xdl = not is_double and (generation == "cdna2" or not kind.startswith("f32"))
    a_and_b = sets.get("src0", 0) | sets.get("src1", 0)
    passes = matrix_passes(instruction)
    if passes is None:
        raise instruction.unsupported("a matrix instruction of unknown passes")
    return Matrix(rows, passes, is_double, is_xdl, a_and_b, sets.get("src2", 0))


def needed(first: Role, second: Role, generation: Generation) -> tuple[int, int]:
    """(wait states that two instructions have to be apart, the registers that they share); 0 without a rule."""
    found = [(0, 0)]
    if first.matrix is not None:
        found += _after_matrix(first, first.matrix, second, generation)
    elif first.is_vector:
        found += _after_vector(first, second, generation)
    if first.stored & second.writes and second.is_vector:
        found.append((1 if generation == "cdna2" else 2, first.stored & second.writes))
    if first.name.startswith("s_") and first.writes & _M0 and second.reads_m0:
        found.append((1, _M0))
    if first.name.startswith("s_setreg") and second.name.startswith(("s_getreg", "s_setreg")):
        found.append((2, 0))
    return max(found)


def _after_matrix(first: Role, matrix: Matrix, second: Role, generation: Generation) -> list[tuple[int, int]]:
    written = first.writes
    if second.matrix is not None:
        found = [
            (_to_a_or_b(matrix, generation), written & second.matrix.a_and_b),
            (_to_c(matrix, first, second.matrix, generation), written & second.matrix.c),
        ]
        return [(states, shared) for states, shared in found if shared]
    if not (second.is_vector or second.is_memory):
        return []
    touched = written & (second.reads | second.writes) & _VECTORS
    found = [(_to_others(matrix, second, bool(written & second.reads & _VECTORS), generation), touched)]
    if not matrix.is_double and (generation == "cdna2" or matrix.is_xdl):
        found.append(({2: 1, 4: 3, 8: 7, 16: 15}[matrix.passes], matrix.c & second.writes & _VECTORS))
    return [(states, shared) for states, shared in found if shared]


def _late(matrix: Matrix, generation: Generation) -> int:
    """gfx950 takes one more wait state after an XDL instruction of more than two passes."""
    return int(generation == "cdna4" and matrix.is_xdl and matrix.passes > 2)


def _to_a_or_b(matrix: Matrix, generation: Generation) -> int:
    if matrix.is_double:
        return 6 if matrix.rows == 4 else matrix.passes + 3
    if generation == "cdna2":
        return matrix.passes + 3
    return matrix.passes + 2 + matrix.is_xdl + _late(matrix, generation)


def _to_c(matrix: Matrix, first: Role, second: Matrix, generation: Generation) -> int:
    if first.writes == second.c:
        if matrix.is_double and second.is_double and matrix.rows == second.rows == 4:
            return 4
        return 2 if generation != "cdna2" and matrix.passes == 2 else 0
    if matrix.is_double:
        return 0 if second.is_xdl else 4 if matrix.rows == 4 else matrix.passes + 1
    if generation == "cdna2":
        return matrix.passes + second.is_double
    if second.is_xdl and not matrix.is_xdl:
        return 0
    return matrix.passes + matrix.is_xdl + _late(matrix, generation)


def _to_others(matrix: Matrix, second: Role, reads: bool, generation: Generation) -> int:
    """Return the wait states before an instruction that is not a matrix instruction.

    reads: it reads the result of the matrix instruction; else it overwrites it.
    """
    if matrix.is_double and reads and second.is_memory:
        return 9 if matrix.rows == 4 else 18
    if matrix.is_double and not reads:
        return 6 if matrix.rows == 4 else 11  # on gfx950 as well, where it takes 16 passes
    return _to_a_or_b(matrix, generation)


def _after_vector(first: Role, second: Role, generation: Generation) -> list[tuple[int, int]]:
    vectors, scalars = first.writes & _VECTORS, first.writes & ~_VECTORS & ~_EXEC
    masks = first.writes & _EXEC
    found = []
    if second.matrix is not None:
        if not first.is_dot:
            found.append((2, vectors & (second.matrix.a_and_b | second.matrix.c)))
        found.append((4, masks))
    if second.is_memory:
        found.append((5, scalars & second.reads))
    if second.name.startswith("v_div_fmas"):
        found.append((4, scalars & _VCC))
    found += [(4, scalars & second.selects_lane), (2, vectors & second.dpp)]
    if second.dpp:
        found.append((5, masks))
    if first.is_dot and (second.is_vector or second.is_memory) and second.matrix is None:
        same = first.name == second.name
        found.append((3, vectors & (second.reads & ~second.writes if same else second.reads | second.writes)))
    if generation != "cdna2" and second.is_vector:
        found += _after_vector_since_gfx940(first, second, vectors, scalars, masks)
    return [(states, shared) for states, shared in found if shared]


def _after_vector_since_gfx940(
    first: Role, second: Role, vectors: int, scalars: int, masks: int
) -> list[tuple[int, int]]:
    found = [(2, scalars & second.reads)]
    if second.name.startswith(_LANE):
        found += [(1, vectors & second.reads), (4, masks)]
    if first.is_transcendental and not second.is_transcendental:
        found.append((1, vectors & second.reads))
    if first.is_partial:
        found.append((1, vectors & second.reads))
    return found


def _not_overwritten(role: Role, later: Iterable[tuple[int, Role]]) -> Role:
    """Return the role without results that later matrix instructions overwrite, whose own rules hold for them."""
    overwritten = _union(item.writes for _, item in later if item.matrix is not None)
    return replace(role, writes=role.writes & ~overwritten)


@dataclass
class _History:
    """The latest instructions of a group of wavefronts that a rule may still hold to: (when each ended, its role)."""

    now: int = 0
    recent: list[tuple[int, Role]] = field(default_factory=list)


class WaitStates:
    """The latest instructions of every group of a launch, held to the rules."""

    def __init__(self, program: Program):
        self._program, self._generation = program, program.arch.generation
        self._roles: dict[int, Role] = {}
        self._needed: dict[tuple[int, int], int] = {}
        self._groups: WeakKeyDictionary[Wavefronts, _History] = WeakKeyDictionary()

    def execute(self, waves: Wavefronts, instruction: Instruction) -> str:
        """Record that wavefronts execute an instruction. Returns a description of missing wait states, or nothing."""
        role = self._roles.get(instruction.pc)
        if role is None:
            role = self._roles[instruction.pc] = Role.of(instruction, self._program.layout)
        history = self._groups.get(waves)
        if history is None:
            history = self._groups[waves] = _History()
        now, wrong = history.now, ""
        history.recent = recent = [item for item in history.recent if now - item[0] < item[1].reach]
        for place, (ended, earlier) in enumerate(recent):
            if self._between(earlier, role) > now - ended:
                states, shared = needed(_not_overwritten(earlier, recent[place + 1 :]), role, self._generation)
                if states > now - ended:
                    wrong = wrong or self._describe(earlier, states, now - ended, shared)
        history.now = now + role.states
        if role.reach and role.states == 1:
            recent.append((history.now, role))
        return wrong

    def derive(self, part: Wavefronts, sources: tuple[Wavefronts, ...]) -> None:
        """A group made of others has the latest instructions of each."""
        found: dict[int, tuple[int, Role]] = {}
        for source in sources:
            history = self._groups.get(source, _History())
            for ended, role in history.recent:
                found[role.pc] = max(ended - history.now, found.get(role.pc, (-_LONGEST, role))[0]), role
        self._groups[part] = _History(0, sorted(found.values(), key=lambda item: item[0]))

    def _between(self, first: Role, second: Role) -> int:
        key = first.pc, second.pc
        found = self._needed.get(key)
        if found is None:
            found = self._needed[key] = needed(first, second, self._generation)[0]
        return found

    def _describe(self, first: Role, states: int, given: int, shared: int) -> str:
        instructions = self._program.instructions
        names = f" ({names_of(shared, self._program.layout)})" if shared else ""
        return (
            f"`{disassemble(instructions[first.pc])}` at pc {first.pc:#x} needs {states} wait states before this"
            f"{names}, and there {'is' if given == 1 else 'are'} {given}"
        )
