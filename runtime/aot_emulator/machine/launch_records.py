"""A launch, what runs it, and what was executed of it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from aot_emulator.state.device_memory import Memory

from .launch_options import Options
from .loader import Kernel
from .monitor import Monitor
from .program import Program


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

    @property
    def workgroups(self) -> int:
        return math.prod(self.grid)


@dataclass
class Execution:
    """What was executed of a launch.

    Attributes:
        program: the kernel's code; None before the first launch.
        workgroups, wavefronts: of the whole launch.
        instructions: by wavefront, of every kind.
        runs: how often a wavefront entered each straight run, by pc.
        taken: how often a wavefront took the branch at the end of a run, by the run's pc.
    """

    program: Program | None = None
    workgroups: int = 0
    wavefronts: int = 0
    instructions: int = 0
    runs: Counter[int] = field(default_factory=Counter)
    taken: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True)
class RunningLaunch:
    """A launch with all that its batches share.

    Attributes:
        memory: global memory.
        kernarg: address of the kernarg segment in it.
        monitors: what is told of each batch.
        execution: where is counted what is executed.
        deadline: when the launch has to be done, on `time.monotonic`'s clock; None: whenever.
    """

    launch: Launch
    memory: Memory
    kernarg: int
    options: Options
    monitors: tuple[Monitor, ...]
    execution: Execution
    deadline: float | None
