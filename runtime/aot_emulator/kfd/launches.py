"""Launches from dispatch packets.

`run_dispatch` runs a kernel whose descriptor and arguments are already in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aot_emulator.errors import EmulationError
from aot_emulator.machine.execution import Turns, finish
from aot_emulator.machine.launch_options import Options
from aot_emulator.machine.launch_records import Launch, Packet
from aot_emulator.machine.loader import Kernel
from aot_emulator.profile.counters import Statistics
from aot_emulator.state.device_memory import Memory
from aot_emulator.watched_launch import run_launch_in_turns

from .packets import DispatchPacket


@dataclass(frozen=True)
class Place:
    """Location of a packet: its address, its queue's `amd_queue_t` (0: unknown), and its index in the queue."""

    address: int = 0
    queue: int = 0
    index: int = 0


def run_dispatch(
    kernel: Kernel, dispatch: DispatchPacket, memory: Memory, options: Options, place: Place = Place()
) -> Statistics:
    """Run a dispatch. Raises `EmulationError` if the kernel fails or the packet exceeds the device's resources."""
    return finish(run_dispatch_in_turns(kernel, dispatch, memory, options, place))


def run_dispatch_in_turns(
    kernel: Kernel, dispatch: DispatchPacket, memory: Memory, options: Options, place: Place = Place()
) -> Turns[Statistics]:
    """Run a dispatch like `run_dispatch`, as a generator that yields so that others can make progress."""
    return (yield from run_launch_in_turns(launch_of(kernel, dispatch, memory, place), memory, options))


def launch_of(kernel: Kernel, dispatch: DispatchPacket, memory: Memory, place: Place = Place()) -> Launch:
    """Convert a packet to a launch. Raises `EmulationError` if it exceeds the device's resources."""
    arch = kernel.module.arch
    if dispatch.lds_bytes > arch.lds_bytes:
        raise EmulationError(
            f"{kernel.symbol} requests {dispatch.lds_bytes} bytes of LDS, a workgroup has {arch.lds_bytes}"
        )
    grid = tuple(-(-threads // size) for threads, size in zip(dispatch.threads, dispatch.shape, strict=True))
    allocation = memory.find(dispatch.kernarg) if dispatch.kernarg else None
    wanted = max(kernel.metadata.kernarg_bytes, 4 * sum(kernel.descriptor.preload))
    nbytes = min(wanted, allocation.end - dispatch.kernarg) if allocation else 0
    segment = memory.bytes_at(dispatch.kernarg, nbytes).tobytes() if nbytes else b""
    packet = Packet(
        place.address, place.index, place.queue, dispatch.kernarg, dispatch.shape, dispatch.threads,
        dispatch.scratch_bytes,
    )  # fmt: skip
    x, y, z = grid
    return Launch(kernel, (x, y, z), math.prod(dispatch.shape), dispatch.lds_bytes, segment, packet)
