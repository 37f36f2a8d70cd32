"""Time of resident copies of a workgroup on a compute unit: prepares the arrays of `replay` and wraps its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from aot_emulator.state.arrays import Array

from . import replay as numbers
from .constants import Machine
from .trace import Trace

FEW, MANY = 6, 18
"""Iterations of a long loop in the two replays from which its total time is extrapolated. Workgroups that share a
compute unit take some iterations to reach a steady state."""
REASONS = ("scalar", "vector", "matrix", "lds", "memory", "latency", "barrier", "sleep")
"""Categories of wavefront cycles, in the order of `replay`."""
PIPES = ("vector", "matrix", "lds", "memory")
"""Resources whose use is tracked, in the order of `replay`."""


@dataclass(frozen=True)
class Conditions:
    """Memory performance of a compute unit, which depends on the load of the rest of the device.

    Attributes:
        memory_latency: latency in cycles.
        per_loaded, per_stored: cycles per byte, at this compute unit's share of the memory bandwidth.
        per_scratch: cycles per byte of scratch, which is served by L2: L1 is small and write-through.
    """

    memory_latency: float
    per_loaded: float
    per_stored: float
    per_scratch: float = 0.0


@dataclass(frozen=True, eq=False)
class Replayed:
    """Result of replaying workgroups on a compute unit.

    Attributes:
        cycles: cycles until the last workgroup ends.
        busy: float64 by `PIPES`, busy cycles; for vector and matrix pipes, summed over the four SIMDs.
        spent: float64 by `REASONS`, wavefront cycles.
        waited: float64 [instructions, `REASONS`], cycles that wavefronts waited before each instruction.
    """

    cycles: float
    busy: Array
    spent: Array
    waited: Array

    def beyond(self, shorter: Replayed) -> Replayed:
        """Return the difference to a shorter replay."""
        return Replayed(0.0, np.zeros(1), np.zeros(1), np.zeros(1)).extended(self, shorter, 1)

    def extended(self, longer: Replayed, shorter: Replayed, times: float) -> Replayed:
        """Add `times` the difference between two replays, clamping at zero."""
        return Replayed(
            max(0.0, self.cycles + times * (longer.cycles - shorter.cycles)),
            np.maximum(0, self.busy + times * (longer.busy - shorter.busy)),
            np.maximum(0, self.spent + times * (longer.spent - shorter.spent)),
            np.maximum(0, self.waited + times * (longer.waited - shorter.waited)),
        )


@dataclass(eq=False)
class Workgroup:
    """A traced workgroup, prepared for replay.

    Attributes:
        place: index in `Trace.workgroups`.
    """

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
        """Replay `count` copies of the workgroup on a compute unit, `resident` at a time; None: as many as resident.

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
        if len({tuple(count for _, count in wave.parts) for wave in waves}) > 1:
            # Fewer repetitions of a part would not leave the wavefronts as many barriers as each other.
            return self.replayed(conditions, resident, None, count=count)
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
        """Replay copies of the workgroup, limiting the repetitions of folded loops.

        Args:
            resident: maximum number of resident workgroups.
            most: maximum repetitions; None: all.
            events: float64 [any, `replay.EVENT_COLUMNS`], receives the first events.
            count: total workgroups; None: as many as resident.
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
    """Replay `count` workgroups, extrapolating later rounds from earlier ones."""
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
