"""A kernel's instructions bound to their semantics, and cut into straight runs that the scheduler executes whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from aot_runtime.errors import UnsupportedInstructionError

from . import buffer, compare, global_, lds, matrix, packed, scalar, smem, vector
from .decode import Instruction
from .operands import VGPR, Registers, scalar_source, scalar_writer, vector_register, vector_source
from .scalar import Step
from .wavefronts import EXEC, LANES, VCC, Array, Wavefronts

_IGNORED = re.compile(
    r"s_(nop|waitcnt(_\w+)?|sleep|setprio|wakeup|icache_inv|incperflevel|decperflevel|ttracedata|set_valu_coexec_mode)$"
)
"""Timing, priority, and waiting for what is complete at once here."""

Condition = Callable[[Wavefronts], Array]
_CONDITIONS: Mapping[str, Condition] = {
    "s_cbranch_scc0": lambda waves: ~waves.scc,
    "s_cbranch_scc1": lambda waves: waves.scc.copy(),
    "s_cbranch_vccz": lambda waves: waves.pair(VCC) == 0,
    "s_cbranch_vccnz": lambda waves: waves.pair(VCC) != 0,
    "s_cbranch_execz": lambda waves: waves.pair(EXEC) == 0,
    "s_cbranch_execnz": lambda waves: waves.pair(EXEC) != 0,
}
_INDIRECT = ("s_setpc_b64", "s_swappc_b64")


@dataclass(frozen=True)
class Exit:
    """How a run ends.

    Attributes:
        kind: `next` falls through to `target`, `jump` goes there, `branch` goes there or falls through to `other`,
            `barrier` waits and goes on at `target`, `indirect` goes to an address in registers.
        condition: of a branch: which wavefronts go to `target`.
        address: of an indirect jump: uint64 [wavefronts].
    """

    kind: Literal["next", "jump", "branch", "barrier", "end", "indirect"]
    target: int = -1
    other: int = -1
    condition: Condition | None = None
    address: Condition | None = None


@dataclass(frozen=True)
class Run:
    """Instructions that are executed one after another.

    Attributes:
        instructions: all of them, the one that ends the run too.
        steps: what executes those that do anything, with the index of each in `instructions`.
    """

    instructions: tuple[Instruction, ...]
    steps: tuple[tuple[int, Step], ...]
    exit: Exit


@dataclass
class Program:
    """A kernel's code.

    Attributes:
        kernel: its symbol.
        arch: bare name.
        address: of the kernel's first byte in device memory.
        instructions: by pc.
        layout: of its vector registers.
    """

    kernel: str
    arch: str
    address: int
    instructions: Mapping[int, Instruction]
    layout: Registers
    _runs: dict[int, Run] = field(default_factory=dict)

    @cached_property
    def _targets(self) -> frozenset[int]:
        """Where branches lead: runs end before them, so that wavefronts can meet there."""
        return frozenset(
            instruction.branch_target()
            for instruction in self.instructions.values()
            if instruction.mnemonic in _CONDITIONS or instruction.mnemonic == "s_branch"
        )

    @cached_property
    def _matrix(self) -> Mapping[str, matrix.MatrixOp]:
        return matrix.table(self.arch)

    def run_at(self, pc: int) -> Run:
        """The run that starts at a pc; made on first use. Raises `UnsupportedInstructionError`."""
        found = self._runs.get(pc)
        if found is None:
            found = self._runs[pc] = self._make_run(pc)
        return found

    def _make_run(self, pc: int) -> Run:
        instructions: list[Instruction] = []
        steps: list[tuple[int, Step]] = []
        while True:
            instruction = self.instructions.get(pc)
            if instruction is None:
                raise UnsupportedInstructionError("no instruction is known here", self.kernel, pc, "<unknown>")
            instructions.append(instruction)
            exit_ = self._exit(instruction)
            if exit_ is None:
                step = self._bind(instruction)
                if step is not None:
                    steps.append((len(instructions) - 1, step))
                pc = instruction.next_pc
                exit_ = Exit("next", pc) if pc in self._targets else None
            elif instruction.mnemonic == "s_swappc_b64":
                steps.append((len(instructions) - 1, self._link(instruction)))
            if exit_ is not None:
                return Run(tuple(instructions), tuple(steps), exit_)

    def _exit(self, instruction: Instruction) -> Exit | None:
        name, following = instruction.mnemonic, instruction.next_pc
        if name in _CONDITIONS:
            return Exit("branch", instruction.branch_target(), following, _CONDITIONS[name])
        if name == "s_branch":
            return Exit("jump", instruction.branch_target())
        if name == "s_barrier":
            return Exit("barrier", following)
        if name in ("s_endpgm", "s_endpgm_saved"):
            return Exit("end")
        if name in _INDIRECT:
            return Exit("indirect", address=scalar_source(instruction, instruction.fields["ssrc0"], "u64"))
        return None

    def _link(self, instruction: Instruction) -> Step:
        """s_swappc_b64 and s_getpc_b64: the address of the next instruction."""
        write = scalar_writer(instruction, instruction.fields["sdst"], "u64")
        following = np.uint64(self.address + instruction.next_pc)
        return lambda waves: write(waves, following)

    def _bind(self, instruction: Instruction) -> Step | None:
        """What executes an instruction; None if there is nothing to do. Raises `UnsupportedInstructionError`."""
        try:
            return self._find_step(instruction)
        except UnsupportedInstructionError as error:
            error.locate(self.kernel, instruction.pc, instruction.mnemonic)
            error.kernel = self.kernel
            raise

    def _find_step(self, instruction: Instruction) -> Step | None:
        name, encoding = instruction.mnemonic, instruction.base_encoding
        if _IGNORED.match(name):
            return None
        step: Step | None = None
        if name == "s_getpc_b64":
            step = self._link(instruction)
        elif encoding in ("SOP1", "SOP2", "SOPC", "SOPK"):
            step = scalar.bind(instruction)
        elif encoding == "SMEM":
            step = smem.bind(instruction)
        elif encoding == "DS":
            step = lds.bind(instruction, self.layout)
        elif encoding in ("GLOBAL", "FLAT", "SCRATCH"):
            step = global_.bind(instruction, self.layout)
        elif encoding == "MUBUF":
            step = buffer.bind(instruction, self.layout)
        elif name in self._matrix:
            step = _bind_matrix(instruction, self.layout, self._matrix[name])
        elif encoding in ("VOP1", "VOP2", "VOP3", "VOP3SD", "VOP3P", "VOPC"):
            step = (
                compare.bind(instruction, self.layout)
                or packed.bind(instruction, self.layout)
                or vector.bind(instruction, self.layout)
            )
        if step is None:
            raise instruction.unsupported("this instruction is not implemented")
        return step


def _bind_matrix(instruction: Instruction, layout: Registers, op: matrix.MatrixOp) -> Step:
    """MFMA: A, B, C and D in ordinary or accumulation registers; EXEC does not matter."""
    fields = {**_matrix_fields(instruction.fields), **instruction.fields}
    modifiers = matrix.Modifiers(cbsz=fields["cbsz"], abid=fields["abid"], blgp=fields["blgp"])
    op = matrix.resolve(op, modifiers)
    accumulates, sources = bool(fields["acc_cd"]), fields["acc"]

    def rows(name: str, accumulation: bool, words: int) -> slice:
        if fields[name] < VGPR:
            raise instruction.unsupported(f"{name} that is no vector register")
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

    def step(waves: Wavefronts) -> None:
        if isinstance(addend, slice):
            start: Array | None = waves.u32[addend]
        else:
            start = _spread(addend(waves), op.d_registers, waves.count)
        registers = waves.u32
        overlaps = any(target.start < part.stop and part.start < target.stop for part in (first, second))
        out = None if overlaps else registers[target]
        result = matrix.execute(op, registers[first], registers[second], start, modifiers, out=out)
        if out is None:
            registers[target] = result

    return step


def _matrix_fields(fields: Mapping[str, int]) -> dict[str, int]:
    """MFMA's names for what the tables, for some of its opcodes, call by the names of other VOP3P instructions."""
    if "cbsz" in fields:
        return {}
    return {
        "cbsz": fields["neg_hi"],
        "abid": fields["opsel"] | fields["opsel_hi2"] << 3,
        "acc_cd": fields["clmp"],
        "acc": fields["opsel_hi"],
        "blgp": fields["neg"],
    }


def _spread(value: Any, registers: int, wavefronts: int) -> Array | None:
    """A constant C in every element; None for zero."""
    if not value:
        return None
    words = np.asarray(value).reshape(1).view(np.uint32)
    repeated = np.tile(words, registers // len(words))
    return np.broadcast_to(repeated[:, None, None], (registers, wavefronts, LANES))
