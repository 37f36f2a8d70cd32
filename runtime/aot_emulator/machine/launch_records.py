"""Records of a launch: its parameters, its state while it runs, and its execution counts."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from aot_emulator.state.arrays import Array
from aot_emulator.state.device_memory import Memory

from .launch_options import Options
from .loader import Kernel
from .monitor import Monitor
from .program import Program

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Packet:
    """The fields of an HSA kernel dispatch packet that a launch uses.

    Attributes:
        address, index: address of the packet, and its index in the queue.
        queue: address of the queue's `amd_queue_t`; 0 if unknown.
        kernarg: address of the complete kernarg segment.
        shape: workgroup size in x, y and z.
        threads: grid size in work-items; the last workgroups of an axis may be smaller than `shape`.
        scratch_bytes: scratch per work-item.
    """

    address: int
    index: int
    queue: int
    kernarg: int
    shape: Triple
    threads: Triple
    scratch_bytes: int


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel.

    Attributes:
        grid: workgroups in x, y and z.
        block: work-items per workgroup.
        lds_bytes: static and dynamic LDS per workgroup.
        kernargs: the explicit arguments; with a packet, the whole kernarg segment.
        packet: the dispatch packet, if the launch comes from a queue in device memory.
    """

    kernel: Kernel
    grid: Triple
    block: int
    lds_bytes: int
    kernargs: bytes
    packet: Packet | None = None

    @property
    def wavefronts(self) -> int:
        """Wavefronts per workgroup."""
        return -(-self.block // self.kernel.program.arch.lanes)

    @property
    def workgroups(self) -> int:
        return math.prod(self.grid)

    @property
    def shape(self) -> Triple:
        """Workgroup size in x, y and z."""
        return (self.block, 1, 1) if self.packet is None else self.packet.shape

    @property
    def scratch_bytes(self) -> int:
        """Scratch bytes per work-item."""
        return self.kernel.metadata.scratch_bytes if self.packet is None else self.packet.scratch_bytes

    def parts(self, numbers: Array) -> Iterator[tuple[Launch, Array]]:
        """Split the workgroups in `numbers` into launches of equal workgroup size, yielding each with its numbers.

        The hardware numbers the work-items of a partial workgroup at the end of an axis by that workgroup's own size.
        """
        packet = self.packet
        last = (0, 0, 0) if packet is None else tuple(map(lambda n, size: n % size, packet.threads, packet.shape))
        if packet is None or not any(last):
            yield self, numbers
            return
        at_end = coordinates(self.grid, numbers) == np.array(self.grid) - 1
        for ends in itertools.product(*((False, True) if rest else (None,) for rest in last)):
            among = [at_end[:, axis] == end for axis, end in enumerate(ends) if end is not None]
            mine = numbers[np.logical_and.reduce(among)]
            x, y, z = (rest if end else size for rest, end, size in zip(last, ends, packet.shape, strict=True))
            if mine.size:
                yield replace(self, block=x * y * z, packet=replace(packet, shape=(x, y, z))), mine


def coordinates(grid: Triple, workgroups: Array) -> Array:
    """Convert workgroup numbers to grid coordinates, [n, 3]."""
    x, y = grid[0], grid[1]
    return np.stack([workgroups % x, workgroups // x % y, workgroups // (x * y)], axis=1)


@dataclass
class Execution:
    """Execution counts of a launch.

    Attributes:
        program: the kernel's code; None before the first launch.
        workgroups, wavefronts: totals of the launch.
        instructions: executed wavefront instructions.
        runs: number of wavefronts that entered each straight-line run, by pc.
        taken: number of wavefronts that took the branch at the end of a run, by the run's pc.
        paused_s: seconds spent in other, interleaved launches.
    """

    program: Program | None = None
    workgroups: int = 0
    wavefronts: int = 0
    instructions: int = 0
    runs: Counter[int] = field(default_factory=Counter)
    taken: Counter[int] = field(default_factory=Counter)
    paused_s: float = 0.0


@dataclass(frozen=True)
class RunningLaunch:
    """A launch in progress, with the state that its batches share.

    Attributes:
        memory: global memory.
        kernarg: address range of the kernarg segment.
        monitors: observers of each batch.
        execution: execution counts, updated by each batch.
        deadline: latest end of the launch on the `time.monotonic` clock, excluding pauses; None: unlimited.
    """

    launch: Launch
    memory: Memory
    kernarg: range
    options: Options
    monitors: tuple[Monitor, ...]
    execution: Execution
    deadline: float | None
