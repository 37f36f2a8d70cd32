"""Instruction traces of sampled workgroups, with the memory traffic of each instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aot_emulator.errors import UnsupportedInstructionError
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.disassembly import disassemble
from aot_emulator.machine.execution import execute
from aot_emulator.machine.launch_options import Options
from aot_emulator.machine.launch_records import Launch
from aot_emulator.machine.monitor import BatchView, Monitor
from aot_emulator.profile.counters import Statistics
from aot_emulator.profile.traffic import AccessCount, Traffic
from aot_emulator.state.access import Action, Space
from aot_emulator.state.arrays import Array
from aot_emulator.state.device_memory import Memory
from aot_emulator.state.wavefronts import Wavefronts

from .constants import Machine
from .costs import Cost, Unit, cost_of
from .folding import Folded, fold


@dataclass(frozen=True)
class Line:
    """Display form of an instruction. source: `file:line`, or empty."""

    pc: int
    mnemonic: str
    text: str
    source: str


@dataclass(frozen=True, eq=False)
class Trace:
    """Trace of some workgroups of a launch.

    Attributes:
        lines, costs: display form and cost of each executed instruction, in program order.
        amounts: float64 [instructions, 4], mean LDS passes, bytes loaded, bytes stored and cache lines touched per
            execution.
        workgroups: numbers of the traced workgroups.
        waves: instruction indices executed by each wavefront of each workgroup.
        loop: index of the header of the loop with the most matrix instructions, or among loops with global loads the
            most executed one; None if there is none.
        statistics: statistics of the traced workgroups.
    """

    lines: tuple[Line, ...]
    costs: tuple[Cost, ...]
    amounts: Array
    workgroups: tuple[int, ...]
    waves: tuple[tuple[Folded, ...], ...]
    loop: int | None
    statistics: Statistics

    def first(self) -> Trace:
        """Keep only the first of several identical workgroups; statistics and amounts still cover all."""
        return replace(self, workgroups=self.workgroups[:1], waves=self.waves[:1])


class _Recorder(Monitor):
    """Monitor that records the pcs executed by each wavefront."""

    def __init__(self) -> None:
        self.instructions: dict[int, Instruction] = {}
        self.sequences: dict[tuple[int, int], list[int]] = {}
        self._here: list[list[int]] = []

    def begin(self, batch: BatchView) -> None:
        owners = [(number, wave) for number in batch.numbers.tolist() for wave in range(batch.wavefronts)]
        self._here = [self.sequences.setdefault(owner, []) for owner in owners]

    def instruction(self, waves: Wavefronts, instruction: Instruction) -> None:
        pc = instruction.pc
        self.instructions[pc] = instruction
        for slot in waves.slot.tolist():
            self._here[slot].append(pc)


def record(launch: Launch, memory: Memory, options: Options, workgroups: Sequence[int], machine: Machine) -> Trace:
    """Run some workgroups of a launch and return their trace.

    Raises:
        EmulationError: a kernel fails.
        UnsupportedInstructionError: an instruction has no cost; the error names it.
    """
    recorder, traffic = _Recorder(), Traffic(launch.kernel.program.arch.peaks)
    execution = execute(launch, memory, options, (recorder, traffic), workgroups)
    statistics = Statistics.of(execution, traffic)
    pcs = sorted(recorder.instructions)
    places = {pc: place for place, pc in enumerate(pcs)}
    found = [recorder.instructions[pc] for pc in pcs]
    costs = tuple(_cost(launch, instruction, machine) for instruction in found)
    header = _hot_loop(statistics)
    loop = None if header is None else places[header]
    waves = tuple(
        tuple(
            fold(np.array([places[pc] for pc in recorder.sequences[number, wave]], np.int32), loop)
            for wave in range(launch.wavefronts)
        )
        for number in workgroups
    )
    lines = tuple(
        Line(instruction.pc, instruction.mnemonic, disassemble(instruction), launch.kernel.source(instruction.pc))
        for instruction in found
    )
    return Trace(lines, costs, _amounts(statistics, costs), tuple(workgroups), waves, loop, statistics)


def _cost(launch: Launch, instruction: Instruction, machine: Machine) -> Cost:
    try:
        return cost_of(instruction, machine)
    except UnsupportedInstructionError as error:
        error.kernel, error.source = launch.kernel.symbol, launch.kernel.source(instruction.pc)
        raise


def _hot_loop(statistics: Statistics) -> int | None:
    loops = [loop for loop in statistics.loops if loop.own.kinds["matrix"] or loop.own.kinds["global_load"]]
    best = max(loops, key=lambda loop: (loop.own.kinds["matrix"], loop.own.instructions), default=None)
    return None if best is None else best.loop.header


def _amounts(statistics: Statistics, costs: Sequence[Cost]) -> Array:
    assert statistics.traffic is not None
    line_bytes = statistics.program.arch.peaks.line_bytes if statistics.program else 128
    found = np.zeros((len(costs), 4))
    for place, (count, cost) in enumerate(zip(statistics.by_instruction, costs, strict=True)):
        access = _total(count.accesses, "lds"), _total(count.accesses, "global"), _total(count.accesses, "scratch")
        asked = access[2].bytes + min(access[1].bytes, access[1].lines * line_bytes)
        row = (access[0].passes, *((0, asked) if cost.unit is Unit.STORE else (asked, 0)), access[1].lines)
        found[place] = np.array(row) / max(1, count.executions)
    return found


def _total(accesses: Mapping[tuple[Space, Action], AccessCount], space: Space) -> AccessCount:
    total = AccessCount()
    for (where, _), count in accesses.items():
        if where == space:
            total.add(count)
    return total
