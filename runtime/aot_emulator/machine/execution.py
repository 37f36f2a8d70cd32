"""Runs a launch, batch by batch.

A batch is whole workgroups, as many as fit `Options.batch_wavefronts`: registers of more would leave the processor's
cache. Batches are run one after another, so a workgroup must not wait for a later one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from aot_emulator.state.device_memory import Memory
from aot_emulator.state.wavefronts import Batch

from .launch_options import Options, Order
from .launch_records import Execution, Launch, RunningLaunch
from .monitor import Monitor
from .scheduler import Scheduler, coordinates


def execute(
    launch: Launch,
    memory: Memory,
    options: Options,
    monitors: Sequence[Monitor] = (),
    workgroups: Sequence[int] | None = None,
) -> Execution:
    """Run a launch to its end, watched by monitors. Raises `EmulationError`.

    Args:
        workgroups: numbers of those that are run; None: all of the launch.
    """
    numbers = np.arange(launch.workgroups) if workgroups is None else np.array(workgroups, np.int64)
    execution = Execution(launch.kernel.program, len(numbers), len(numbers) * launch.wavefronts)
    segment = launch.kernel.kernarg_segment(launch.kernargs, launch.grid, launch.block, launch.lds_bytes)
    kernarg = memory.allocate(len(segment))
    memory.write(kernarg, len(segment), np.frombuffer(segment, np.uint8))
    deadline = None if options.time_limit_s is None else time.monotonic() + options.time_limit_s
    running = RunningLaunch(launch, memory, kernarg, options, tuple(monitors), execution, deadline)
    try:
        step = max(1, options.batch_wavefronts // launch.wavefronts)
        with np.errstate(all="ignore"):
            for first in range(0, len(numbers), step):
                mine = numbers[first : first + step]
                batch = _make_batch(launch, len(mine), options)
                places = coordinates(launch.grid, mine[batch.workgroup])
                launch.kernel.start(batch, places, launch.block, kernarg, segment, options.preload)
                Scheduler(running, batch, mine).run()
                if options.progress is not None:
                    options.progress(min(first + step, len(numbers)), len(numbers))
    finally:
        memory.free(kernarg)
    return execution


def _make_batch(launch: Launch, workgroups: int, options: Options) -> Batch:
    """Registers of some workgroups' wavefronts, those that are run together next to each other."""
    program = launch.kernel.program
    batch = Batch(program.layout.total, workgroups * launch.wavefronts, program.arch.lanes, options.numerics)
    if options.order is Order.SERIAL:
        batch.slot[:] = batch.slot.reshape(workgroups, launch.wavefronts).T.ravel()
    batch.workgroup[:] = batch.slot // launch.wavefronts
    return batch
