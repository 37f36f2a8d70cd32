"""A launch, what runs it, and what was executed of it."""

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
    """A dispatch packet of a queue in device memory, as far as a launch needs it (HSA's "Kernel dispatch packet").

    Attributes:
        address, index: of the packet: where it lies, and its number in the queue.
        queue: address of the queue's `amd_queue_t`; 0 where it is not known.
        kernarg: address of the kernarg segment, which is complete.
        shape: work-items of a workgroup in x, y and z.
        threads: work-items of the grid; the last workgroups of an axis may have fewer than `shape`.
        scratch_bytes: of a work-item.
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
        block: work-items of a workgroup.
        lds_bytes: of a workgroup, dynamic ones included.
        kernargs: the explicit arguments; of a packet the whole kernarg segment.
        packet: where the launch comes from, if that is a queue in device memory.
    """

    kernel: Kernel
    grid: Triple
    block: int
    lds_bytes: int
    kernargs: bytes
    packet: Packet | None = None

    @property
    def wavefronts(self) -> int:
        """Of a workgroup."""
        return -(-self.block // self.kernel.program.arch.lanes)

    @property
    def workgroups(self) -> int:
        return math.prod(self.grid)

    @property
    def shape(self) -> Triple:
        """Work-items of a workgroup in x, y and z."""
        return (self.block, 1, 1) if self.packet is None else self.packet.shape

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch of a work-item."""
        return self.kernel.metadata.scratch_bytes if self.packet is None else self.packet.scratch_bytes

    def parts(self, numbers: Array) -> Iterator[tuple[Launch, Array]]:
        """The launch as launches of workgroups of one size each, with their numbers, of those in `numbers`.

        The hardware numbers the work-items of a smaller workgroup at the end of an axis by that workgroup's own size.
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
    """Workgroups' places in the grid, [n, 3], from their numbers."""
    x, y = grid[0], grid[1]
    return np.stack([workgroups % x, workgroups // x % y, workgroups // (x * y)], axis=1)


@dataclass
class Execution:
    """What was executed of a launch.

    Attributes:
        program: the kernel's code; None before the first launch.
        workgroups, wavefronts: of the whole launch.
        instructions: by wavefront, of every kind.
        runs: how often a wavefront entered each straight run, by pc.
        taken: how often a wavefront took the branch at the end of a run, by the run's pc.
        paused_s: seconds for which other launches had their turns.
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
    """A launch with all that its batches share.

    Attributes:
        memory: global memory.
        kernarg: addresses of the kernarg segment in it.
        monitors: what is told of each batch.
        execution: where is counted what is executed.
        deadline: when the launch has to be done, on `time.monotonic`'s clock without its pauses; None: whenever.
    """

    launch: Launch
    memory: Memory
    kernarg: range
    options: Options
    monitors: tuple[Monitor, ...]
    execution: Execution
    deadline: float | None
