"""Time work on a device by events, in rounds in which all alternatives take turns.

A drift of clocks or load then meets all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from aot_runtime.device.device import Device

K = TypeVar("K")

ROUND_S = 0.02
"""Calls that take about this long are timed together."""
MAX_CALLS = 1000


def device_seconds(device: Device, work: Callable[[], object], calls: int = 1) -> float:
    """Time `calls` calls between two events, and return the seconds of one."""
    start = device.event()
    for _ in range(calls):
        work()
    return max(device.event().elapsed_ms(start), 1e-6) / 1e3 / calls


def calls_per_round(device: Device, work: Callable[[], object]) -> int:
    """Count the calls that fill a round. The first call, which loads code, is not timed."""
    work()
    return max(1, min(MAX_CALLS, int(ROUND_S / device_seconds(device, work, 3))))


def take_turns(measurements: Mapping[K, Callable[[], float]], rounds: int) -> dict[K, list[float]]:
    """Take each measurement `rounds` times, in turns, after one more round that is thrown away."""
    found: dict[K, list[float]] = {name: [] for name in measurements}
    for turn in range(rounds + 1):
        for name, measure in measurements.items():
            value = measure()
            if turn:
                found[name].append(value)
    return found


def device_rounds(device: Device, alternatives: Mapping[K, Callable[[], object]], rounds: int) -> dict[K, list[float]]:
    """Return the device seconds of a call of each alternative, in each of `rounds` rounds."""

    def measurement(work: Callable[[], object]) -> Callable[[], float]:
        calls = calls_per_round(device, work)
        return lambda: device_seconds(device, work, calls)

    return take_turns({name: measurement(work) for name, work in alternatives.items()}, rounds)
