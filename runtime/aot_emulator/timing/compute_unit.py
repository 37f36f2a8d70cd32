"""The time of a workgroup on a compute unit, beside others like it: what `replay` has to be given, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from aot_emulator.state.arrays import Array

from . import replay as numbers
from .constants import Machine
from .trace import Trace

FEW, MANY = 6, 18
"""Iterations that are replayed of a longer loop: the time of the others follows from the difference. Workgroups that
share a compute unit take some iterations to fall in step."""
REASONS = ("scalar", "vector", "matrix", "lds", "memory", "latency", "barrier", "sleep")
"""What cycles of wavefronts go to, in the order of `replay`."""
PIPES = ("vector", "matrix", "lds", "memory")
"""What is busy, in the order of `replay`."""


@dataclass(frozen=True)
class Conditions:
    """Under which a compute unit works: what depends on the rest of the device.

    Attributes:
        memory_latency: cycles.
        per_loaded, per_stored: cycles a byte, this compute unit's share of the way to memory.
        per_scratch: cycles a byte of scratch memory, which L2 holds: L1 is small, and what is stored passes through it.
    """

    memory_latency: float
    per_loaded: float
    per_stored: float
    per_scratch: float = 0.0


@dataclass(frozen=True, eq=False)
class Replayed:
    """What a compute unit did.

    Attributes:
        cycles: until the last workgroup's end.
        busy: float64 by `PIPES`: cycles, of the four SIMDs together for the pipes.
        spent: float64 by `REASONS`: cycles of wavefronts.
        waited: float64 [instructions, `REASONS`]: cycles that wavefronts waited before an instruction.
    """

    cycles: float
    busy: Array
    spent: Array
    waited: Array

    def beyond(self, shorter: Replayed) -> Replayed:
        """What this one did more."""
        return Replayed(0.0, np.zeros(1), np.zeros(1), np.zeros(1)).extended(self, shorter, 1)

    def extended(self, longer: Replayed, shorter: Replayed, times: float) -> Replayed:
        """With so many times more, or less, of what `longer` has beyond `shorter`; never less than nothing."""
        return Replayed(
            max(0.0, self.cycles + times * (longer.cycles - shorter.cycles)),
            np.maximum(0, self.busy + times * (longer.busy - shorter.busy)),
            np.maximum(0, self.spent + times * (longer.spent - shorter.spent)),
            np.maximum(0, self.waited + times * (longer.waited - shorter.waited)),
        )


@dataclass(eq=False)
class Workgroup:
    """A workgroup of a trace, made ready for the replay. place: in `Trace.workgroups`."""

    trace: Trace
    place: int
    machine: Machine
    _code: tuple[Array, Array, Array] = field(init=False)
    _found: dict[tuple[Conditions, int, int], Replayed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._code = _code(self.trace, self.machine)

    @property
    def number(self) -> int:
        return self.trace.workgroups[self.place]

    def on(self, conditions: Conditions, resident: int, count: int | None = None) -> Replayed:
        """So many workgroups like this one on a compute unit that holds `resident` at once; None: so many.

        Long loops are extrapolated.
        """
        return in_turn(lambda some: self._some(conditions, resident, some), resident, count or resident)

    def _some(self, conditions: Conditions, resident: int, count: int) -> Replayed:
        found = self._found.get((conditions, resident, count))
        if found is None:
            found = self._found[conditions, resident, count] = self._extrapolated(conditions, resident, count)
        return found

    def _extrapolated(self, conditions: Conditions, resident: int, count: int) -> Replayed:
        waves = self.trace.waves[self.place]
        counts = [sum(wave.repetitions(most) for wave in waves) for most in (FEW, MANY, None)]
        many = self.replayed(conditions, resident, MANY, count=count)
        if counts[2] == counts[1]:
            return many
        few = self.replayed(conditions, resident, FEW, count=count)
        return many.extended(many, few, (counts[2] - counts[1]) / (counts[1] - counts[0]))

    def replayed(
        self,
        conditions: Conditions,
        resident: int,
        most: int | None,
        events: Array | None = None,
        count: int | None = None,
    ) -> Replayed:
        """With at most so many repetitions of what is repeated.

        Args:
            most: None: all.
            events: float64 [any, `replay.EVENT_COLUMNS`], filled as far as it goes.
            count: workgroups; None: as many as are resident.
        """
        later = max(0, (count or resident) - resident)
        resident = min(resident, count or resident)
        sequences = [wave.unfolded(most) for wave in self.trace.waves[self.place]] * resident
        start = np.cumsum([0, *map(len, sequences)]).astype(np.int32)
        group = np.repeat(np.arange(resident), len(sequences) // resident).astype(np.int32)
        busy, spent = np.zeros(numbers.BUSIES), np.zeros(numbers.REASONS)
        waited = np.zeros((len(self.trace.costs), numbers.REASONS))
        if events is None:
            events = np.zeros((0, numbers.EVENT_COLUMNS))
        cycles, _ = numbers.replay(
            *self._code, np.concatenate(sequences).astype(np.int32), start, group, later,
            _parameters(self.machine, conditions), busy, spent, waited, events,
        )  # fmt: skip
        return Replayed(float(cycles), busy, spent, waited)


def in_turn(replay: Callable[[int], Replayed], resident: int, count: int) -> Replayed:
    """What `replay` gives for so many workgroups, of which those of later rounds follow from earlier ones."""
    first, last = (1, 2) if resident == 1 else (2 * resident, 4 * resident)
    if count <= last:
        return replay(count)
    times, more = divmod(count - first, last - first)
    return replay(first + more).extended(replay(last), replay(first), times)


def _code(trace: Trace, machine: Machine) -> tuple[Array, Array, Array]:
    code = np.zeros((len(trace.costs), numbers.CODE_COLUMNS), np.int32)
    registers: list[int] = []
    for row, cost in zip(code, trace.costs, strict=True):
        row[numbers.UNIT], row[numbers.VM], row[numbers.LGKM] = cost.unit, cost.vm, cost.lgkm
        row[numbers.COUNTS_VM], row[numbers.COUNTS_LGKM] = cost.counts_vm, cost.counts_lgkm
        row[numbers.NEAR], row[numbers.PRIORITY] = cost.near, cost.priority
        row[numbers.READS], row[numbers.READ_COUNT] = len(registers), len(cost.reads)
        registers += cost.reads
        row[numbers.WRITES], row[numbers.WRITE_COUNT] = len(registers), len(cost.writes)
        registers += cost.writes
    passes, loaded, stored, lines = trace.amounts.T
    amounts = np.zeros((len(code), numbers.AMOUNT_COLUMNS))
    amounts[:, numbers.CYCLES] = [cost.cycles for cost in trace.costs]
    amounts[:, numbers.LDS_CLOCKS] = passes * machine.lds_passes
    near = np.array([cost.near for cost in trace.costs])
    through = np.where(near, loaded / machine.l1_bytes, loaded / machine.missed_bytes) + stored / machine.l1_bytes
    amounts[:, numbers.L1_CLOCKS] = np.maximum(through, lines)
    amounts[:, numbers.LOADED] = loaded
    amounts[:, numbers.STORED] = np.where(stored > 0, np.maximum(stored, lines * machine.written), 0)
    return code, amounts, np.array(registers or [0], np.int32)


def _parameters(machine: Machine, conditions: Conditions) -> Array:
    found = np.zeros(numbers.PARAMETERS)
    found[numbers.LDS_LATENCY], found[numbers.CACHE_LATENCY] = machine.lds_latency, machine.cache_latency
    found[numbers.MEMORY_LATENCY] = conditions.memory_latency
    found[numbers.PER_LOADED], found[numbers.PER_STORED] = conditions.per_loaded, conditions.per_stored
    found[numbers.BARRIER_CYCLES], found[numbers.MFMA_RESULT] = machine.barrier, machine.mfma_result
    found[numbers.STAGGER] = machine.stagger
    found[numbers.PER_SCRATCH], found[numbers.MFMA_HOLDS] = conditions.per_scratch, machine.mfma_holds
    return found
