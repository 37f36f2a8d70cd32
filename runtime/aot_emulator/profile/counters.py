"""Launch statistics: executions by instruction, class and loop, and optionally memory traffic.

During a launch, the scheduler only counts entries of each straight-line run and taken branches at its end. With
`Options.profile`, `traffic` also monitors memory accesses. All other figures are computed here on demand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property

from aot_emulator.isa.classes import is_transcendental, kind_of
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.matrix import matrix_op
from aot_emulator.machine.launch_records import Execution
from aot_emulator.state.access import Action, Space

from .loops import Loop, find_loops, innermost
from .peaks import Work
from .traffic import AccessCount, Traffic


def matrix_flops(instruction: Instruction) -> tuple[str, int] | None:
    """Return (type of the first operand, operations per wavefront) of a matrix instruction, or None.

    The count includes inactive lanes, as matrix instructions ignore EXEC, and padding.
    """
    op = matrix_op.matrix_ops(instruction.arch.name).get(instruction.mnemonic)
    if op is None:
        return None
    if op.blgp == "format":
        op = matrix_op.resolve(
            op, matrix_op.MatrixModifiers(cbsz=instruction.field("cbsz"), blgp=instruction.field("blgp"))
        )
    return op.a.name, op.flops


@dataclass
class Summary:
    """Execution counts of a set of instructions, per wavefront.

    Attributes:
        instructions: total instructions.
        kinds: instructions by class.
        by_kind: instructions by class and mnemonic.
        transcendental: transcendental instructions of class `valu`.
        matrix, flops: matrix instructions, and their multiplications and additions, by type of the first operand.
        accesses: memory accesses by space and action; empty without traffic.
    """

    instructions: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    transcendental: int = 0
    matrix: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)
    accesses: dict[tuple[Space, Action], AccessCount] = field(default_factory=dict)

    def add(self, instruction: Instruction, executions: int) -> None:
        kind = kind_of(instruction)
        self.instructions += executions
        self.kinds[kind] += executions
        self.by_kind.setdefault(kind, Counter())[instruction.mnemonic] += executions
        if kind == "valu" and is_transcendental(instruction):
            self.transcendental += executions
        found = matrix_flops(instruction) if kind == "matrix" else None
        if found is not None:
            self.matrix[found[0]] += executions
            self.flops[found[0]] += executions * found[1]

    def add_access(self, space: Space, action: Action, count: AccessCount) -> None:
        self.accesses.setdefault((space, action), AccessCount()).add(count)

    @property
    def mnemonics(self) -> Counter[str]:
        """Instructions by mnemonic."""
        return sum(self.by_kind.values(), Counter[str]())

    @property
    def lds_passes(self) -> int:
        return sum(count.passes for (space, _), count in self.accesses.items() if space == "lds")


@dataclass(frozen=True)
class LoopCount:
    """Execution counts of a loop.

    Attributes:
        entered: number of entries into the loop from outside.
        iterations: number of executions of its header.
        own: counts of its instructions, excluding inner loops.
    """

    loop: Loop
    entered: int
    iterations: int
    own: Summary

    @property
    def trip_count(self) -> float:
        """Average number of iterations per entry."""
        return self.iterations / self.entered if self.entered else 0.0


@dataclass(frozen=True)
class InstructionCount:
    """Counts of one instruction: executions, accesses by space and action, and the header of its innermost loop."""

    instruction: Instruction
    executions: int
    accesses: Mapping[tuple[Space, Action], AccessCount]
    loop: int | None


@dataclass(repr=False)
class Statistics(Execution):
    """Statistics of a launch. `traffic` has its memory accesses if `Options.profile` was set."""

    traffic: Traffic | None = None

    @classmethod
    def of(cls, execution: Execution, traffic: Traffic | None) -> Statistics:
        return cls(**{item.name: getattr(execution, item.name) for item in fields(execution)}, traffic=traffic)

    def __repr__(self) -> str:
        return f"Statistics(kernel={self.program and self.program.kernel!r}, instructions={self.instructions})"

    @cached_property
    def summary(self) -> Summary:
        """Counts of the whole launch."""
        return self._summary(None)

    @cached_property
    def loops(self) -> tuple[LoopCount, ...]:
        """Counts by loop, in program order. Loops are found in the control flow that was executed."""
        innermost_loop = self._innermost
        return tuple(
            LoopCount(
                loop,
                self.runs[loop.header] - sum(self._followed(latch, loop.header) for latch in loop.latches),
                self.runs[loop.header],
                self._summary([run for run in loop.blocks if innermost_loop[run] is loop]),
            )
            for loop in self._loops
        )

    @cached_property
    def by_instruction(self) -> tuple[InstructionCount, ...]:
        """Counts of each executed instruction, in program order."""
        executions, loops = Counter[int](), dict[int, int]()
        instructions: dict[int, Instruction] = {}
        for start, count, instruction in self._executions(self.runs):
            executions[instruction.pc] += count
            instructions[instruction.pc] = instruction
            if start in self._innermost:
                loops[instruction.pc] = self._innermost[start].header
        accesses: dict[int, dict[tuple[Space, Action], AccessCount]] = {pc: {} for pc in instructions}
        for key, access in self.traffic.counts.items() if self.traffic else ():
            accesses[key.pc][key.space, key.action] = access
        return tuple(
            InstructionCount(instructions[pc], executions[pc], accesses[pc], loops.get(pc))
            for pc in sorted(instructions)
        )

    @property
    def work(self) -> Work:
        """Minimum hardware work of the launch; the memory terms are 0 without traffic."""
        total = self.summary
        return Work(
            workgroups=self.workgroups,
            matrix=dict(total.flops),
            valu=total.kinds["valu"] - total.transcendental,
            transcendental=total.transcendental,
            lds_passes=total.lds_passes,
            memory_bytes=sum(self.traffic.reached()) if self.traffic else 0,
        )

    def _executions(self, runs: Collection[int]) -> Iterator[tuple[int, int, Instruction]]:
        if self.program is not None:
            for start in runs:
                for instruction in self.program.run_at(start).instructions:
                    yield start, self.runs[start], instruction

    def _summary(self, runs: Collection[int] | None) -> Summary:
        found = Summary()
        inside = set()
        for _, count, instruction in self._executions(self.runs if runs is None else runs):
            found.add(instruction, count)
            inside.add(instruction.pc)
        for key, access in self.traffic.counts.items() if self.traffic else ():
            if key.pc in inside:
                found.add_access(key.space, key.action, access)
        return found

    # Loops of the executed runs

    @cached_property
    def _loops(self) -> tuple[Loop, ...]:
        graph = {start: tuple(self._successors(start)) for start in self.runs}
        reached = {target for targets in graph.values() for target in targets}
        # The kernel's entry, and runs that are only reached by indirect jumps.
        entries = [start for start in self.runs if start not in reached] or list(self.runs)[:1]
        return find_loops([*list(self.runs)[:1], *entries], graph)

    @cached_property
    def _innermost(self) -> Mapping[int, Loop]:
        return innermost(self._loops)

    def _successors(self, start: int) -> Iterator[int]:
        """Yield the executed successors of a run. A call continues after it; other indirect jumps have none."""
        assert self.program is not None
        run = self.program.run_at(start)
        last = run.instructions[-1]
        if run.exit.kind == "indirect":
            ways = [last.next_pc] if last.mnemonic == "s_swappc_b64" else []
        else:
            ways = [run.exit.target, run.exit.other]
        yield from (way for way in dict.fromkeys(ways) if way in self.runs)

    def _followed(self, start: int, target: int) -> int:
        assert self.program is not None
        way = self.program.run_at(start).exit
        if way.kind != "branch" or way.target == way.other:
            return self.runs[start]
        return self.taken[start] if way.target == target else self.runs[start] - self.taken[start]
