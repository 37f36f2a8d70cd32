"""Runs a launch: wavefronts in batches, each batch's wavefronts together as far as they stand at the same pc.

**Order.** `Order.LOCKSTEP` starts all wavefronts of a batch together and always steps those at the lowest pc, which
lets the ones behind catch up: after a loop that some leave early they all go on together again. `Order.SERIAL` lets the
first wavefront of each workgroup go as far as the next barrier or the end, then the second, and so on: a missing
barrier that lockstep hides shows. Both give the same result for a kernel without races.

A batch is whole workgroups, as many as fit `Options.batch_wavefronts`: registers of more would leave the processor's
cache. Batches are run one after another, so a workgroup must not wait for a later one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.disassembly import disassemble
from aot_emulator.isa.memory.transfers import Access
from aot_emulator.profile.counters import Statistics
from aot_emulator.profile.peaks import peaks_of
from aot_emulator.profile.traffic import Traffic
from aot_emulator.sanitizer.strict_mode import Sanitizer
from aot_emulator.state.device_memory import Memory
from aot_emulator.state.monitor import Monitor
from aot_emulator.state.wavefronts import Array, Batch, Wavefronts
from aot_runtime.errors import EmulationError, InstructionBudgetError, MemoryAccessError, Thread

from .loader import Kernel
from .program import Program, Run

_FAIRNESS = 512
"""Every so many runs the wavefronts that have waited longest are stepped instead, so that a spinning one ends."""


class Order(Enum):
    """In which order wavefronts are run; see the module."""

    LOCKSTEP = "lockstep"
    SERIAL = "serial"


@dataclass(frozen=True)
class Options:
    """How launches are run.

    Attributes:
        order: of the wavefronts.
        batch_wavefronts: wavefronts at a time, at least one workgroup.
        budget: instructions that one wavefront may execute on average, before a launch is taken for endless.
        launch_budget: instructions that all wavefronts of a launch may execute together; None: no such limit.
        preload: start where hardware that preloads kernel arguments does.
        strict: watch for faults (`sanitizer`). Memory that was allocated while the driver was not strict counts as
            written.
        profile: count accesses of memory too, in `Statistics.traffic`.
        progress: called after each batch with the workgroups that are done, and all of the launch.
    """

    order: Order = Order.LOCKSTEP
    batch_wavefronts: int = 256
    budget: int = 50_000_000
    launch_budget: int | None = None
    preload: bool = True
    strict: bool = False
    profile: bool = False
    progress: Callable[[int, int], None] | None = None

    def monitors(self, launch: Launch) -> tuple[Monitor, ...]:
        """What is to watch a launch for faults."""
        return (Sanitizer(launch),) if self.strict else ()


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel. lds_bytes: of a workgroup, dynamic ones included."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: int
    lds_bytes: int
    kernargs: bytes

    @property
    def wavefronts(self) -> int:
        """Of a workgroup."""
        return -(-self.block // self.kernel.program.arch.lanes)


def execute(launch: Launch, memory: Memory, options: Options) -> Statistics:
    """Run a launch to its end. Raises `EmulationError`."""
    program, workgroups = launch.kernel.program, math.prod(launch.grid)
    statistics = Statistics(program, workgroups, workgroups * launch.wavefronts)
    segment = launch.kernel.kernarg_segment(launch.kernargs, launch.grid, launch.block, launch.lds_bytes)
    if not options.strict:
        memory.stop_tracking()  # what this launch writes is not noted
    kernarg = memory.allocate(len(segment))
    memory.write(kernarg, len(segment), np.frombuffer(segment, np.uint8))
    monitors = options.monitors(launch)
    if options.profile:
        statistics.traffic = Traffic(peaks_of(program.arch), kernarg)
        monitors = (*monitors, statistics.traffic)
    try:
        step = max(1, options.batch_wavefronts // launch.wavefronts)
        with np.errstate(all="ignore"):
            for first in range(0, workgroups, step):
                batch = _make_batch(launch, range(first, min(first + step, workgroups)), options)
                places = coordinates(launch.grid, first + batch.workgroup)
                launch.kernel.start(batch, places, launch.block, kernarg, segment, options.preload)
                Scheduler(launch, batch, first, memory, options, monitors, statistics).run()
                if options.progress is not None:
                    options.progress(min(first + step, workgroups), workgroups)
    finally:
        memory.free(kernarg)
    return statistics


def _make_batch(launch: Launch, workgroups: range, options: Options) -> Batch:
    """Registers of some workgroups' wavefronts, those that are run together next to each other."""
    program = launch.kernel.program
    batch = Batch(program.layout.total, len(workgroups) * launch.wavefronts, program.arch.lanes)
    if options.order is Order.SERIAL:
        batch.slot[:] = batch.slot.reshape(len(workgroups), launch.wavefronts).T.ravel()
    batch.workgroup[:] = batch.slot // launch.wavefronts
    return batch


def coordinates(grid: tuple[int, int, int], workgroups: Array) -> Array:
    """Workgroups' places in the grid, [n, 3], from their numbers."""
    x, y = grid[0], grid[1]
    return np.stack([workgroups % x, workgroups // x % y, workgroups // (x * y)], axis=1)


class Scheduler:
    """The wavefronts of a batch as groups at one pc each.

    Attributes:
        first: number of the batch's first workgroup.
        workgroups, wavefronts: workgroups of the batch; wavefronts of each.
        access: what they reach.
    """

    def __init__(
        self,
        launch: Launch,
        batch: Batch,
        first: int,
        memory: Memory,
        options: Options,
        monitors: tuple[Monitor, ...],
        statistics: Statistics,
    ):
        self.program: Program = launch.kernel.program
        self.launch = launch
        self.batch, self.statistics, self.monitors = batch, statistics, monitors
        count = len(batch.slot)
        workgroups = count // launch.wavefronts
        self.grid, self.first, self.workgroups, self.wavefronts = launch.grid, first, workgroups, launch.wavefronts
        access = Access(
            memory,
            launch.lds_bytes,
            workgroups,
            launch.kernel.metadata.scratch_bytes,
            (count, batch.lanes),
            self.monitors,
        )
        self.access, self.live = access, np.full(workgroups, launch.wavefronts)
        self.limit = statistics.instructions + options.budget * count
        if options.launch_budget is not None:
            self.limit = min(self.limit, options.launch_budget)
        entry = launch.kernel.entry(options.preload)
        ranks = launch.wavefronts if options.order is Order.SERIAL else 1
        self.groups = [
            Wavefronts(batch, rank * count // ranks, (rank + 1) * count // ranks, entry, rank, access)
            for rank in range(ranks)
        ]
        self.runs = 0
        for monitor in monitors:
            monitor.begin(self)

    def thread(self, waves: Wavefronts, wave: int, lane: int | None) -> Thread:
        """Where a lane of a group's wavefront is in the launch."""
        workgroup = self.place(self.first + int(waves.workgroup[wave]))
        return Thread(workgroup, int(waves.slot[wave]) % self.wavefronts, lane)

    def place(self, workgroup: int) -> tuple[int, int, int]:
        """Where a workgroup is in the grid, from its number."""
        x, y, z = coordinates(self.grid, np.array([workgroup]))[0].tolist()
        return x, y, z

    def run(self) -> None:
        while self.groups:
            self._release_barriers()
            group = self._choose()
            run = self.program.run_at(group.pc)
            self._execute(group, run)
            self._leave(group, run)

    def _choose(self) -> Wavefronts:
        """The next wavefronts to step, at the lowest pc of the lowest rank."""
        if len(self.groups) == 1:
            return self.groups[0]
        self._merge()
        ready = [group for group in self.groups if not group.waiting]
        self.runs += 1
        if self.runs % _FAIRNESS == 0:
            chosen = min(ready, key=lambda group: group.last_run)
        else:
            chosen = min(ready, key=lambda group: (group.rank, group.pc))
        chosen.last_run = self.runs
        return chosen

    def _merge(self) -> None:
        """Join neighbours that stand at the same place."""
        self.groups.sort(key=lambda group: group.start)
        merged = self.groups[:1]
        for group in self.groups[1:]:
            last = merged[-1]
            if (
                last.stop == group.start
                and (last.pc, last.rank, last.waiting) == (group.pc, group.rank, group.waiting)
                and last.mode_register[0] == group.mode_register[0]
            ):
                merged[-1] = self._joined(last, group)
            else:
                merged.append(group)
        self.groups = merged

    def _joined(self, first: Wavefronts, second: Wavefronts) -> Wavefronts:
        joined = self._like(first, first.start, second.stop)
        for monitor in self.monitors:
            monitor.join(first, second, joined)
        return joined

    def _part(self, group: Wavefronts, start: int, stop: int) -> Wavefronts:
        part = self._like(group, start, stop)
        for monitor in self.monitors:
            monitor.divide(group, part)
        return part

    def _like(self, group: Wavefronts, start: int, stop: int) -> Wavefronts:
        found = Wavefronts(self.batch, start, stop, group.pc, group.rank, self.access)
        found.waiting, found.last_run = group.waiting, group.last_run
        return found

    def _execute(self, group: Wavefronts, run: Run) -> None:
        self.statistics.instructions += len(run.instructions) * group.count
        self.statistics.runs[group.pc] += group.count
        if self.statistics.instructions > self.limit:
            used_up = InstructionBudgetError("the budget of instructions is used up: an endless loop?")
            raise self._at(group, run, 0, used_up)
        index = 0
        try:
            for index, step in run.steps if not self.monitors else run.every_step:
                for monitor in self.monitors:
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
        """Say that an error is of an instruction, unless it is known of which it is."""
        text, code = disassemble(instruction), self.launch.kernel.module.name
        error.locate(self.program.kernel, instruction.pc, instruction.mnemonic, text, code)

    # Ways out of a run

    def _leave(self, group: Wavefronts, run: Run) -> None:
        way = run.exit
        if way.kind in ("next", "jump"):
            group.pc = way.target
        elif way.kind == "branch":
            assert way.condition is not None
            taken = way.condition(group)
            self.statistics.taken[group.pc] += int(np.count_nonzero(taken))
            self._split(group, taken, way.target, way.other)
        elif way.kind == "barrier":
            group.pc, group.waiting = way.target, True
        elif way.kind == "end":
            np.subtract.at(self.live, group.workgroup, 1)
            self.groups.remove(group)
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
        """The group cut in two: those of a mask, which come to lie first, and the others."""
        count = int(np.count_nonzero(first))
        if not first[:count].all():
            self.batch.reorder(group.start, np.argsort(~first, kind="stable"))
        middle = group.start + count
        parts = (self._part(group, group.start, middle), self._part(group, middle, group.stop))
        self.groups.remove(group)
        self.groups += parts
        return parts

    def _jump_to(self, group: Wavefronts, addresses: Array, run: Run) -> None:
        """An indirect jump, of wavefronts that may go to different places."""
        rest: Wavefronts | None = group
        while rest is not None:
            where = np.broadcast_to(addresses, (rest.count,))
            here = where == where[0]
            part, rest, addresses = (rest, None, where) if here.all() else (*self._partition(rest, here), where[~here])
            part.pc = int(where[0]) - self.program.address
            if part.pc not in self.program.instructions:
                raise self._at(part, run, -1, EmulationError(f"a jump to {int(where[0]):#x}, outside the kernel"))

    # Barriers

    def _release_barriers(self) -> None:
        """Let workgroups go on whose living wavefronts all wait."""
        waiting = [group for group in self.groups if group.waiting]
        if not waiting:
            return
        if len(waiting) == len(self.groups):  # every wavefront that lives
            self._release(waiting)
            return
        if self.runs % _FAIRNESS:
            return  # the others come to the barrier too, and all go on together
        arrived = np.bincount(np.concatenate([group.workgroup for group in waiting]), minlength=len(self.live))
        complete = arrived == self.live
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
        for monitor in self.monitors:
            monitor.barrier(groups)
        for group in groups:
            group.waiting = False
