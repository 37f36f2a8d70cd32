"""Execute launches, batch by batch.

A batch consists of whole workgroups, up to `Options.batch_wavefronts` wavefronts; the registers of a larger batch would
not fit the CPU's cache. Batches run sequentially, so a workgroup must not wait for a later one. Launches that wait for
each other are interleaved (`execute_in_turns`).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from aot_emulator.state.device_memory import Memory
from aot_emulator.state.wavefronts import Batch

from .launch_options import Options, Order
from .launch_records import Execution, Launch, RunningLaunch, coordinates
from .monitor import Monitor
from .scheduler import Scheduler

Result = TypeVar("Result")
Turns = Generator[None, None, Result]
"""Computation that can be interleaved with others: each `next` does a part, and the generator returns the result."""


def finish(turns: Turns[Result]) -> Result:
    """Run a generator to completion and return its result."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            result: Result = end.value
            return result


def execute(
    launch: Launch,
    memory: Memory,
    options: Options,
    monitors: Sequence[Monitor] = (),
    workgroups: Sequence[int] | None = None,
) -> Execution:
    """Run a launch to completion, observed by monitors. Raises `EmulationError`.

    Args:
        workgroups: numbers of the workgroups to run; None: all.
    """
    return finish(execute_in_turns(launch, memory, options, monitors, workgroups))


def execute_in_turns(
    launch: Launch,
    memory: Memory,
    options: Options,
    monitors: Sequence[Monitor] = (),
    workgroups: Sequence[int] | None = None,
) -> Turns[Execution]:
    """Run a launch like `execute`, as a generator that yields so that other launches can make progress."""
    numbers = np.arange(launch.workgroups) if workgroups is None else np.array(workgroups, np.int64)
    parts = list(launch.parts(numbers))
    wavefronts = sum(part.wavefronts * len(own) for part, own in parts)
    execution = Execution(launch.kernel.program, len(numbers), wavefronts)
    deadline = None if options.time_limit_s is None else time.monotonic() + options.time_limit_s
    done = 0
    with _kernarg_segment(launch, memory) as (kernarg, segment):
        addresses = range(kernarg, kernarg + len(segment))
        for part, own in parts:
            running = RunningLaunch(part, memory, addresses, options, tuple(monitors), execution, deadline)
            step = max(1, options.batch_wavefronts // part.wavefronts)
            for first in range(0, len(own), step):
                mine = own[first : first + step]
                batch = _make_batch(part, len(mine), options)
                places = coordinates(part.grid, mine[batch.workgroup])
                part.kernel.start(batch, places, part, kernarg, segment, options.preload)
                scheduler = Scheduler(running, batch, mine)
                while scheduler.advance():
                    paused = time.monotonic()
                    yield
                    execution.paused_s += time.monotonic() - paused
                done += len(mine)
                if options.progress is not None:
                    options.progress(done, len(numbers))
    return execution


@contextmanager
def _kernarg_segment(launch: Launch, memory: Memory) -> Iterator[tuple[int, bytes]]:
    """Yield address and content of the kernarg segment, allocated for the duration of the block."""
    if launch.packet is not None:
        yield launch.packet.kernarg, launch.kernargs
        return
    segment = launch.kernel.kernarg_segment(launch.kernargs, launch.grid, launch.block, launch.lds_bytes)
    kernarg = memory.allocate(len(segment))
    memory.write(kernarg, len(segment), np.frombuffer(segment, np.uint8))
    try:
        yield kernarg, segment
    finally:
        memory.free(kernarg)


def _make_batch(launch: Launch, workgroups: int, options: Options) -> Batch:
    """Allocate the registers of some workgroups, with wavefronts that run together adjacent to each other."""
    program = launch.kernel.program
    batch = Batch(program.layout.total, workgroups * launch.wavefronts, program.arch.lanes, options.numerics)
    if options.order is Order.SERIAL:
        batch.slot[:] = batch.slot.reshape(workgroups, launch.wavefronts).T.ravel()
    batch.workgroup[:] = batch.slot // launch.wavefronts
    return batch
