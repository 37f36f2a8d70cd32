"""Which cache lines the workgroups that are resident together load in common, from the start of each of them.

Workgroups that work side by side ask for the same data: the rows of a product's tiles, the keys of a head. How much of
what they load a die, and the device, has to fetch is seen by running all of them, as far as the first iteration of the
loop. Matrix instructions are left out of these runs, as nothing of addresses and control flow depends on them in the
kernels that this is for; what workgroups do in full is recorded with them (`trace`).
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

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
from aot_runtime.errors import EmulationError

from .constants import compute_units
from .costs import Unit
from .trace import Trace

MOST_WAVEFRONTS = 4096
"""That are run: of the workgroups of a larger round, the first."""
SECTOR = 64
"""Bytes that are counted together: half a cache line, as the other half may be of the next iteration."""


@dataclass(frozen=True)
class Sharing:
    """Of the loads of a round of workgroups, in units of what one compute unit's workgroups load.

    Attributes:
        units: compute units with any workgroup.
        fullest: compute units of the die that has most.
        die: what the die that fetches most has to fetch.
        dies: what all dies fetch, together.
        distinct: what the device has to read, once.
    """

    units: float
    fullest: float
    die: float
    dies: float
    distinct: float


def unshared(units: int, dies: int) -> Sharing:
    """Of workgroups that have nothing in common."""
    fullest = -(-units // dies)
    return Sharing(units, fullest, fullest, units, units)


class _SeenEnough(EmulationError):
    """A batch has come to the end of what is looked at."""


class _Lines(Monitor):
    """Keeps what each workgroup loads, in sectors.

    Args:
        instructions: of each wavefront, that are executed on average.
        pcs: of the loads that are looked at.
        header: pc of the loop's first instruction, after whose second execution a wavefront is not looked at any more.

    Attributes:
        asked: sectors that the loads ask for, all together; those of several loads count for each.
        found: (workgroups, sectors), each pair at least once.
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
            raise _SeenEnough("enough is seen")
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
    """A program whose matrix instructions do nothing."""

    def _find_step(self, instruction: Instruction) -> Step | None:
        return None if kind_of(instruction) == "matrix" else super()._find_step(instruction)


def _stripped(launch: Launch) -> Launch:
    kernel, program = copy(launch.kernel), launch.kernel.program
    kernel.program = _WithoutMatrix(program.kernel, program.arch, program.address, program.instructions, program.layout)
    return replace(launch, kernel=kernel)


def shared_loads(
    launch: Launch, memory: Memory, options: Options, trace: Trace, resident: int, device: tuple[int, int] | None = None
) -> Sharing:
    """The sharing of loads among the workgroups of the first round.

    Args:
        resident: workgroups of a compute unit.
        device: its compute units and dies; None: those of the architecture's product.
    """
    num_cus, dies = device or compute_units(launch.kernel.program.arch.name)
    count = min(launch.workgroups, num_cus * resident, max(1, MOST_WAVEFRONTS // launch.wavefronts))
    units = min(count, num_cus)
    monitor = _Lines(*_start(trace))
    stripped = _stripped(launch)
    step = max(1, options.batch_wavefronts // launch.wavefronts)
    for first in range(0, count, step):
        with suppress(_SeenEnough):
            execute(stripped, memory, options, (monitor,), range(first, min(first + step, count)))
    if not monitor.asked:
        return unshared(units, dies)
    owners, sectors = (np.concatenate(part) for part in zip(*monitor.found, strict=True))
    unit = monitor.asked / units
    by_die = [_count(sectors[owners % dies == die]) / unit for die in range(dies)]
    return Sharing(units, -(-units // dies), max(by_die), sum(by_die), _count(sectors) / unit)


def _start(trace: Trace) -> tuple[int, frozenset[int], int | None]:
    """What `_Lines` is made with: until wavefronts have executed the loop twice, the loads of the loop, its header."""
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
