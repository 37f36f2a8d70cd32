"""Sharing of cache lines among workgroups that are resident at the same time.

Concurrent workgroups load common data, such as the operand rows of neighbouring GEMM tiles, or the keys of a head. All
workgroups of a round are run up to the first loop iterations, to find how much each XCD and the device must fetch.
These runs skip matrix instructions, assuming that addresses and control flow do not depend on them. Full traces include
them (`trace`).
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from aot_emulator.errors import EmulationError
from aot_emulator.isa.classes import kind_of
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.operands import Step
from aot_emulator.machine.execution import execute
from aot_emulator.machine.launch_options import Options
from aot_emulator.machine.launch_records import Launch
from aot_emulator.machine.monitor import BatchView, Monitor
from aot_emulator.machine.program import Program
from aot_emulator.state.access import Touch
from aot_emulator.state.arrays import Array
from aot_emulator.state.device_memory import Memory
from aot_emulator.state.wavefronts import Wavefronts

from .constants import compute_units
from .costs import Unit
from .trace import Trace

MOST_WAVEFRONTS = 4096
"""Maximum number of wavefronts to run; in a larger round, only the first workgroups are run."""
SECTOR = 64
"""Granularity in bytes: half a cache line, as the other half may belong to the next iteration."""


@dataclass(frozen=True)
class Sharing:
    """Sharing of loads in a round of workgroups, relative to the loads of one compute unit's workgroups.

    Attributes:
        units: compute units with at least one workgroup.
        fullest: busy compute units on the busiest XCD.
        most_by_xcd: distinct data fetched by the XCD that fetches most.
        sum_by_xcd: distinct data fetched by each XCD, summed.
        distinct: distinct data read by the device.
    """

    units: float
    fullest: float
    most_by_xcd: float
    sum_by_xcd: float
    distinct: float


def unshared(units: int, num_xcds: int) -> Sharing:
    """Return the sharing of workgroups that load no common data."""
    fullest = -(-units // num_xcds)
    return Sharing(units, fullest, fullest, units, units)


class _SeenEnough(EmulationError):
    """Raised to stop a batch once enough loads have been observed."""


class _Lines(Monitor):
    """Monitor that collects the sectors loaded by each workgroup.

    Args:
        instructions: average number of instructions per wavefront after which a batch is stopped.
        pcs: pcs of the observed loads.
        header: pc of the loop header; a wavefront is ignored once it has executed it twice.

    Attributes:
        asked: total sectors requested; sectors requested by several loads count for each.
        found: (workgroups, sectors), pairs with duplicates.
    """

    def __init__(self, instructions: int, pcs: frozenset[int], header: int | None):
        self._most, self._pcs, self._header = instructions, pcs, header
        self._iterations = np.zeros(0, np.int64)
        self._left, self._looking = 0, False
        self._numbers = np.zeros(0, np.int64)
        self.asked = 0
        self.found: list[tuple[Array, Array]] = []

    def begin(self, batch: BatchView) -> None:
        wavefronts = batch.workgroups * batch.wavefronts
        self._numbers, self._left = batch.numbers, self._most * wavefronts
        self._iterations = np.zeros(wavefronts, np.int64)

    def instruction(self, waves: Wavefronts, instruction: Instruction) -> None:
        self._left -= waves.count
        if self._left < 0:
            raise _SeenEnough("enough loads observed")
        self._looking = instruction.pc in self._pcs
        if instruction.pc == self._header:
            self._iterations[waves.slot] += 1

    def access(self, waves: Wavefronts, touch: Touch) -> None:
        if not self._looking or touch.space != "global" or touch.action != "load":
            return
        sectors = (touch.addresses // np.uint64(SECTOR)).astype(np.int64)
        owners = np.broadcast_to(self._numbers[waves.workgroup][:, None], sectors.shape)
        by_wave = np.arange(len(sectors))[:, None] + np.zeros_like(sectors)
        lanes = np.broadcast_to((self._iterations[waves.slot] < 2)[:, None], sectors.shape)
        if touch.lanes is not None:
            lanes = lanes & touch.lanes
        sectors, owners, by_wave = (part[lanes] for part in (sectors, owners, by_wave))
        if not len(sectors):
            return
        self.asked += min(sectors.size * touch.nbytes // SECTOR, _count_pairs(by_wave, sectors))
        self.found.append((owners, sectors))


class _WithoutMatrix(Program):
    """A program that skips matrix instructions."""

    def _find_step(self, instruction: Instruction) -> Step | None:
        return None if kind_of(instruction) == "matrix" else super()._find_step(instruction)


def _stripped(launch: Launch) -> Launch:
    kernel, program = copy(launch.kernel), launch.kernel.program
    kernel.program = _WithoutMatrix(program.kernel, program.arch, program.address, program.instructions, program.layout)
    return replace(launch, kernel=kernel)


def shared_loads(
    launch: Launch, memory: Memory, options: Options, trace: Trace, resident: int, device: tuple[int, int] | None = None
) -> Sharing:
    """Measure the sharing of loads among the workgroups of the first round.

    Args:
        resident: resident workgroups per compute unit.
        device: numbers of compute units and XCDs; None: those of the architecture's product.
    """
    num_cus, num_xcds = device or compute_units(launch.kernel.program.arch.name)
    count = min(launch.workgroups, num_cus * resident, max(1, MOST_WAVEFRONTS // launch.wavefronts))
    units = min(count, num_cus)
    monitor = _Lines(*_start(trace))
    stripped = _stripped(launch)
    step = max(1, options.batch_wavefronts // launch.wavefronts)
    for first in range(0, count, step):
        with suppress(_SeenEnough):
            execute(stripped, memory, options, (monitor,), range(first, min(first + step, count)))
    if not monitor.asked:
        return unshared(units, num_xcds)
    owners, sectors = (np.concatenate(part) for part in zip(*monitor.found, strict=True))
    unit = monitor.asked / units
    by_xcd = [_count(sectors[owners % num_xcds == xcd]) / unit for xcd in range(num_xcds)]
    return Sharing(units, -(-units // num_xcds), max(by_xcd), sum(by_xcd), _count(sectors) / unit)


def _start(trace: Trace) -> tuple[int, frozenset[int], int | None]:
    """Return the arguments of `_Lines`: instructions up to the second loop iteration, the loop's loads, its header."""
    sequence = trace.waves[0][0].unfolded(2)
    heads = np.flatnonzero(sequence == trace.loop) if trace.loop is not None else np.zeros(0, np.int64)
    first, last = (int(heads[0]), int(heads[1])) if len(heads) > 1 else (0, len(sequence))
    for start in (first, 0):
        loads = {int(index) for index in sequence[start:last] if trace.costs[index].unit is Unit.LOAD}
        if loads:
            break
    header = None if trace.loop is None else trace.lines[trace.loop].pc
    return 2 * last - first, frozenset(trace.lines[index].pc for index in loads), header


def _count(values: Array) -> int:
    return len(np.unique(values))


def _count_pairs(first: Array, second: Array) -> int:
    low = int(second.min())
    width = int(second.max()) - low + 1
    return _count(first.astype(np.int64) * width + (second - low))
