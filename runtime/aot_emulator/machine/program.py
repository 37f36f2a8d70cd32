"""Kernel programs: instructions bound to their semantics, in straight-line runs that the scheduler executes whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from aot_emulator.errors import EmulationError, UnsupportedInstructionError
from aot_emulator.isa.archs import Arch
from aot_emulator.isa.classes import has_no_effect
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.matrix import matrix_op, mfma, wmma
from aot_emulator.isa.memory import buffer, lds, smem
from aot_emulator.isa.memory import flat as global_
from aot_emulator.isa.operands import Registers, Step, scalar_source, scalar_writer
from aot_emulator.isa.scalar import scalar_alu, scalar_floats
from aot_emulator.isa.vector import compare, vector_alu
from aot_emulator.isa.vector import dual_issue as dual
from aot_emulator.isa.vector import packed_math as packed
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import EXEC, M0, VCC, Wavefronts

_INTERRUPT, _DEALLOCATE_REGISTERS = 1, 3
"""s_sendmsg messages: interrupt the host; deallocate the wavefront's VGPRs."""
_WORKGROUP_BARRIER = (193, 0xFFFF)
"""Barrier -1, as encoded in s_barrier_signal and s_barrier_wait."""
_MODES = {"s_round_mode": (0x0F, 0), "s_denorm_mode": (0xF0, 4)}
"""Instructions that set a field of MODE: (mask, lowest bit)."""

Condition = Callable[[Wavefronts], Array]
_CONDITIONS: Mapping[str, Condition] = {
    "s_cbranch_scc0": lambda waves: ~waves.scc,
    "s_cbranch_scc1": lambda waves: waves.scc.copy(),
    "s_cbranch_vccz": lambda waves: waves.is_zero(VCC),
    "s_cbranch_vccnz": lambda waves: ~waves.is_zero(VCC),
    "s_cbranch_execz": lambda waves: waves.is_zero(EXEC),
    "s_cbranch_execnz": lambda waves: ~waves.is_zero(EXEC),
}
_INDIRECT = ("s_setpc_b64", "s_swappc_b64")


@dataclass(frozen=True)
class Exit:
    """Control transfer at the end of a run.

    Attributes:
        kind: `next` falls through to `target`; `jump` jumps to `target`; `branch` jumps to `target` or falls through
            to `other`; `barrier` waits and continues at `target`; `indirect` jumps to an address in registers.
        condition: for a branch, computes the wavefronts that take it.
        address: for an indirect jump, computes the target addresses, uint64 [wavefronts].
    """

    kind: Literal["next", "jump", "branch", "barrier", "end", "indirect"]
    target: int = -1
    other: int = -1
    condition: Condition | None = None
    address: Condition | None = None


@dataclass(frozen=True)
class Run:
    """A straight-line sequence of instructions.

    Attributes:
        instructions: all instructions, including the one that ends the run.
        steps: (index in `instructions`, function that executes it) of each instruction with an effect.
    """

    instructions: tuple[Instruction, ...]
    steps: tuple[tuple[int, Step], ...]
    exit: Exit

    @cached_property
    def every_step(self) -> tuple[tuple[int, Step | None], ...]:
        """All instructions as in `steps`, with None for those without an effect."""
        found = dict(self.steps)
        return tuple((index, found.get(index)) for index in range(len(self.instructions)))


@dataclass
class Program:
    """The code of a kernel.

    Attributes:
        kernel: the kernel's symbol.
        address: device address of the first instruction.
        instructions: decoded instructions by pc.
        layout: layout of the vector registers.
    """

    kernel: str
    arch: Arch
    address: int
    instructions: Mapping[int, Instruction]
    layout: Registers
    _runs: dict[int, Run] = field(default_factory=dict)

    @cached_property
    def _targets(self) -> frozenset[int]:
        """Branch targets. Runs end before them, so that wavefronts can reconverge there."""
        return frozenset(
            instruction.branch_target()
            for instruction in self.instructions.values()
            if instruction.mnemonic in _CONDITIONS or instruction.mnemonic == "s_branch"
        )

    @cached_property
    def shifts_barriers(self) -> bool:
        """True if a branch skips a barrier and nothing else.

        In such "ping-pong" kernels, half of the wavefronts run one barrier ahead on purpose, multiplying while the
        others load. Wavefronts of a workgroup then meet at different barrier instructions.
        """
        barriers = {found.pc: found.next_pc for found in self.instructions.values() if found.mnemonic == "s_barrier"}
        branches = (found for found in self.instructions.values() if found.mnemonic in _CONDITIONS)
        return any(branch.branch_target() == barriers.get(branch.next_pc) for branch in branches)

    @cached_property
    def _matrix(self) -> Mapping[str, matrix_op.MatrixOp]:
        return matrix_op.matrix_ops(self.arch.name, self.arch.wave64)

    def run_at(self, pc: int) -> Run:
        """Return the run that starts at a pc, built on first use. Raises `UnsupportedInstructionError`."""
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
                raise UnsupportedInstructionError("unknown instruction", self.kernel, pc, "<unknown>")
            instructions.append(instruction)
            exit_ = self._exit(instruction)
            if exit_ is None:
                step = self._bind(instruction)
                if step is not None:
                    steps.append((len(instructions) - 1, step))
                pc = instruction.next_pc
                exit_ = Exit("next", pc) if pc in self._targets else None
            elif instruction.mnemonic in _BEFORE_EXIT:
                steps.append((len(instructions) - 1, _BEFORE_EXIT[instruction.mnemonic](self, instruction)))
            if exit_ is not None:
                return Run(tuple(instructions), tuple(steps), exit_)

    def _exit(self, instruction: Instruction) -> Exit | None:
        name, following = instruction.mnemonic, instruction.next_pc
        if name in _CONDITIONS:
            return Exit("branch", instruction.branch_target(), following, _CONDITIONS[name])
        if name == "s_branch":
            return Exit("jump", instruction.branch_target())
        if name in ("s_barrier", "s_barrier_wait"):
            return Exit("barrier", following)
        if name in ("s_endpgm", "s_endpgm_saved"):
            return Exit("end")
        if name in _INDIRECT:
            return Exit("indirect", address=scalar_source(instruction, instruction.fields["ssrc0"], "u64"))
        return None

    def _link(self, instruction: Instruction) -> Step:
        write = scalar_writer(instruction, instruction.fields["sdst"], "u64")
        following = np.uint64(self.address + instruction.next_pc)
        return lambda waves: write(waves, following)

    def _signal(self, instruction: Instruction) -> Step:
        if instruction.fields["ssrc0"] not in _WORKGROUP_BARRIER:
            raise instruction.unsupported("a barrier other than the workgroup's")

        def step(waves: Wavefronts) -> None:
            waves.signalled[...] = True

        return step

    def _wait(self, instruction: Instruction) -> Step:
        if instruction.fields["simm16"] not in _WORKGROUP_BARRIER:
            raise instruction.unsupported("a barrier other than the workgroup's")

        def step(waves: Wavefronts) -> None:
            if not waves.signalled.all():
                raise EmulationError("a wavefront waits at a barrier without having signalled it")
            waves.signalled[...] = False

        return step

    def _bind(self, instruction: Instruction) -> Step | None:
        """Return the function that executes an instruction, or None if it has no effect.

        Raises `UnsupportedInstructionError`.
        """
        try:
            return self._find_step(instruction)
        except UnsupportedInstructionError as error:
            error.locate(self.kernel, instruction.pc, instruction.mnemonic)
            error.kernel = self.kernel
            raise

    def _interrupt(self, instruction: Instruction) -> Step:
        """Interrupt the host; M0 holds the low bits of the event number."""
        m0 = M0 if self.arch.isa == "cdna" else M0 + 1

        def step(waves: Wavefronts) -> None:
            interrupt = waves.memory.memory.interrupt
            if interrupt is None:
                refused = instruction.unsupported("an interrupt, which no host takes")
                refused.kernel = self.kernel
                raise refused
            for event in set(waves.scalars[m0].tolist()):
                interrupt(event)

        return step

    def _find_step(self, instruction: Instruction) -> Step | None:
        name, encoding = instruction.mnemonic, instruction.base_encoding
        if has_no_effect(instruction) or (
            name == "s_sendmsg" and instruction.fields["simm16"] == _DEALLOCATE_REGISTERS
        ):
            return None
        step: Step | None = None
        if name == "s_getpc_b64":
            step = self._link(instruction)
        elif name == "s_barrier_signal":
            step = self._signal(instruction)
        elif name == "s_sendmsg" and instruction.fields["simm16"] == _INTERRUPT:
            step = self._interrupt(instruction)
        elif name in _MODES:
            mask, shift = _MODES[name]
            step = scalar_alu.set_mode(instruction, mask, instruction.fields["simm16"] << shift)
        elif encoding in ("SOP1", "SOP2", "SOPC", "SOPK"):
            step = scalar_alu.bind(instruction) or scalar_floats.bind(instruction)
        elif encoding == "SMEM":
            step = smem.bind(instruction)
        elif encoding == "DS":
            step = lds.bind(instruction, self.layout)
        elif encoding.removeprefix("V") in ("GLOBAL", "FLAT", "SCRATCH"):
            step = global_.bind(instruction, self.layout)
        elif encoding in ("MUBUF", "VBUFFER"):
            step = buffer.bind(instruction, self.layout)
        elif name in self._matrix:
            unit = wmma if name.startswith("v_wmma_") else mfma
            step = unit.bind(instruction, self.layout, self._matrix[name])
        elif encoding == "VOPD":
            step = dual.bind(instruction, self.layout)
        elif name.startswith("v_s_"):
            step = scalar_floats.bind(instruction)
        elif encoding in ("VOP1", "VOP2", "VOP3", "VOP3SD", "VOP3P", "VOPC"):
            step = (
                compare.bind(instruction, self.layout)
                or packed.bind(instruction, self.layout)
                or vector_alu.bind(instruction, self.layout)
            )
        if step is None:
            raise instruction.unsupported("this instruction is not implemented")
        return step


_BEFORE_EXIT: Mapping[str, Callable[[Program, Instruction], Step]] = {
    "s_swappc_b64": Program._link,
    "s_barrier_wait": Program._wait,
}
"""Effects of run-ending instructions, executed before control is transferred."""
