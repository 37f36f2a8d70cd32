"""Wavefront scheduler of a batch: executes the wavefronts at the same pc together, in the configured order."""

from __future__ import annotations

import time

import numpy as np

from aot_emulator.errors import EmulationError, InstructionBudgetError, MemoryAccessError, Thread
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.disassembly import disassemble
from aot_emulator.state.access import Access, Touch
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import Batch, Wavefronts

from .launch_options import Order
from .launch_records import RunningLaunch, coordinates
from .program import Program, Run

_TURN = 64
"""Straight-line runs per turn, after which other launches can make progress: a few milliseconds for small groups."""
_FAIRNESS = 512
"""Interval, in runs, at which the longest-waiting wavefronts are stepped instead, so that spin loops make progress."""


class Scheduler:
    """Scheduler of a batch's wavefronts, which are held in groups at the same pc.

    The public attributes are those of `BatchView`.
    """

    def __init__(self, running: RunningLaunch, batch: Batch, numbers: Array):
        launch, options = running.launch, running.options
        self.program: Program = launch.kernel.program
        self.batch, self.kernarg = batch, running.kernarg
        self._launch, self._execution, self._monitors = launch, running.execution, running.monitors
        count = len(batch.slot)
        workgroups = count // launch.wavefronts
        self.numbers, self.workgroups, self.wavefronts = numbers, workgroups, launch.wavefronts
        scratch, shape = launch.scratch_bytes, (count, batch.lanes)
        observer = self._report if running.monitors else None
        self.access = Access(
            running.memory, launch.lds_bytes, workgroups, scratch, shape, observer, options.lds_is_bounded
        )
        self._live = np.full(workgroups, launch.wavefronts)
        self._limit = self._execution.instructions + options.budget * count
        if options.launch_budget is not None:
            self._limit = min(self._limit, options.launch_budget)
        self._deadline = running.deadline
        entry = launch.kernel.entry(options.preload)
        ranks = launch.wavefronts if options.order is Order.SERIAL else 1
        self._groups = [
            Wavefronts(batch, rank * count // ranks, (rank + 1) * count // ranks, entry, rank, self.access)
            for rank in range(ranks)
        ]
        self._runs = 0
        for monitor in self._monitors:
            monitor.begin(self)

    def _report(self, waves: Wavefronts, touch: Touch) -> None:
        for monitor in self._monitors:
            monitor.access(waves, touch)

    def thread(self, waves: Wavefronts, wave: int, lane: int | None) -> Thread:
        workgroup = self.place(int(self.numbers[waves.workgroup[wave]]))
        return Thread(workgroup, int(waves.slot[wave]) % self.wavefronts, lane)

    def place(self, workgroup: int) -> tuple[int, int, int]:
        x, y, z = coordinates(self._launch.grid, np.array([workgroup]))[0].tolist()
        return x, y, z

    def advance(self) -> bool:
        """Run one turn of the batch. Returns True if work is left."""
        with np.errstate(all="ignore"):
            for _ in range(_TURN):
                if not self._groups:
                    return False
                self._release_barriers()
                group = self._choose()
                run = self.program.run_at(group.pc)
                self._execute(group, run)
                self._leave(group, run)
        return True

    def _choose(self) -> Wavefronts:
        if len(self._groups) == 1:
            return self._groups[0]
        self._merge()
        ready = [group for group in self._groups if not group.waiting]
        self._runs += 1
        if self._runs % _FAIRNESS == 0:
            chosen = min(ready, key=lambda group: group.last_run)
        else:
            chosen = min(ready, key=lambda group: (group.rank, group.pc))
        chosen.last_run = self._runs
        return chosen

    def _merge(self) -> None:
        self._groups.sort(key=lambda group: group.start)
        merged = self._groups[:1]
        for group in self._groups[1:]:
            last = merged[-1]
            if (
                last.stop == group.start
                and (last.pc, last.rank, last.waiting) == (group.pc, group.rank, group.waiting)
                and last.mode_register[0] == group.mode_register[0]
            ):
                merged[-1] = self._joined(last, group)
            else:
                merged.append(group)
        self._groups = merged

    def _joined(self, first: Wavefronts, second: Wavefronts) -> Wavefronts:
        joined = self._like(first, first.start, second.stop)
        for monitor in self._monitors:
            monitor.join(first, second, joined)
        return joined

    def _part(self, group: Wavefronts, start: int, stop: int) -> Wavefronts:
        part = self._like(group, start, stop)
        for monitor in self._monitors:
            monitor.divide(group, part)
        return part

    def _like(self, group: Wavefronts, start: int, stop: int) -> Wavefronts:
        found = Wavefronts(self.batch, start, stop, group.pc, group.rank, self.access)
        found.waiting, found.last_run = group.waiting, group.last_run
        return found

    def _execute(self, group: Wavefronts, run: Run) -> None:
        self._execution.instructions += len(run.instructions) * group.count
        self._execution.runs[group.pc] += group.count
        if self._execution.instructions > self._limit:
            used_up = InstructionBudgetError("instruction budget exhausted: endless loop?")
            raise self._at(group, run, 0, used_up)
        if self._deadline is not None and time.monotonic() - self._execution.paused_s > self._deadline:
            late = InstructionBudgetError("the launch exceeds its time limit: endless loop?")
            raise self._at(group, run, 0, late)
        index = 0
        try:
            for index, step in run.steps if not self._monitors else run.every_step:
                for monitor in self._monitors:
                    monitor.instruction(group, run.instructions[index])
                if step is not None:
                    step(group)
        except EmulationError as error:
            raise self._at(group, run, index, error) from None
        except MemoryError as error:
            raise self._at(group, run, index, EmulationError(f"out of memory: {error}")) from error

    def _at(self, group: Wavefronts, run: Run, index: int, error: EmulationError) -> EmulationError:
        self.locate(error, run.instructions[index])
        if isinstance(error, MemoryAccessError) and error.member is not None:
            error.thread = self.thread(group, *error.member)
        return error

    def locate(self, error: EmulationError, instruction: Instruction) -> None:
        kernel, text = self._launch.kernel, disassemble(instruction)
        source = kernel.source(instruction.pc)
        error.locate(kernel.symbol, instruction.pc, instruction.mnemonic, text, kernel.module.name, source)

    # Control transfer

    def _leave(self, group: Wavefronts, run: Run) -> None:
        way = run.exit
        if way.kind in ("next", "jump"):
            group.pc = way.target
        elif way.kind == "branch":
            assert way.condition is not None
            taken = way.condition(group)
            self._execution.taken[group.pc] += int(np.count_nonzero(taken))
            self._split(group, taken, way.target, way.other)
        elif way.kind == "barrier":
            group.pc, group.waiting = way.target, True
        elif way.kind == "end":
            np.subtract.at(self._live, group.workgroup, 1)
            self._groups.remove(group)
        else:
            assert way.address is not None
            self._jump_to(group, way.address(group), run)

    def _split(self, group: Wavefronts, taken: Array, target: int, other: int) -> None:
        count = int(np.count_nonzero(taken))
        if count in (0, group.count):
            group.pc = target if count else other
            return
        first_taken = bool(taken[0])
        parts = self._partition(group, taken == first_taken)
        for part, pc in zip(parts, (target, other) if first_taken else (other, target), strict=True):
            part.pc = pc

    def _partition(self, group: Wavefronts, first: Array) -> tuple[Wavefronts, Wavefronts]:
        """Split a group in two: the wavefronts in the mask, which are moved to the front, and the others."""
        count = int(np.count_nonzero(first))
        if not first[:count].all():
            self.batch.reorder(group.start, np.argsort(~first, kind="stable"))
        middle = group.start + count
        parts = (self._part(group, group.start, middle), self._part(group, middle, group.stop))
        self._groups.remove(group)
        self._groups += parts
        return parts

    def _jump_to(self, group: Wavefronts, addresses: Array, run: Run) -> None:
        rest: Wavefronts | None = group
        while rest is not None:
            where = np.broadcast_to(addresses, (rest.count,))
            here = where == where[0]
            part, rest, addresses = (rest, None, where) if here.all() else (*self._partition(rest, here), where[~here])
            part.pc = int(where[0]) - self.program.address
            if part.pc not in self.program.instructions:
                raise self._at(part, run, -1, EmulationError(f"jump to {int(where[0]):#x}, outside the kernel"))

    # Barriers

    def _release_barriers(self) -> None:
        waiting = [group for group in self._groups if group.waiting]
        if not waiting:
            return
        if len(waiting) == len(self._groups):  # all live wavefronts
            self._release(waiting)
            return
        if self._runs % _FAIRNESS:
            return  # wait for the other wavefronts, so that all continue together
        arrived = np.bincount(np.concatenate([group.workgroup for group in waiting]), minlength=len(self._live))
        complete = arrived == self._live
        leaving = []
        for group in waiting:
            released = complete[group.workgroup]
            if released.all():
                leaving.append(group)
            elif released.any():
                first = bool(released[0])
                leaving.append(self._partition(group, released if first else ~released)[0 if first else 1])
        if leaving:
            self._release(leaving)

    def _release(self, groups: list[Wavefronts]) -> None:
        for monitor in self._monitors:
            monitor.barrier(groups)
        for group in groups:
            group.waiting = False
