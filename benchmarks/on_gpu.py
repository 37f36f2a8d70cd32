"""What the benchmarks of kernels on a GPU have in common: the time of calls on the device, and torch beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from measure import interleaved, machine, median, versions

from aot_bundle.command.gpu_settings import gpu_settings
from aot_runtime import Bundle, Device, DeviceArray

ROUND_S = 0.02


def heading(device: Device, *packages: str) -> str:
    """The machine, its GPU with the versions of those packages that are installed, and the GPU's clocks and power."""
    found = device.properties
    lines = [machine(), f"{found.name}, {found.arch}, driver {found.driver_version}; {versions(*packages)}"]
    return "\n".join(filter(None, [*lines, gpu_settings(device.driver.name, found.pci).summary()]))


def import_torch() -> Any:
    """torch, if it is there and sees a GPU; says so if not."""
    try:
        import torch
    except ImportError as error:
        print(f"left out: torch: {error}")
        return None
    if not torch.cuda.is_available():
        print("left out: torch: it sees no GPU")
        return None
    return torch


def working(shape: object, ways: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """The ways that run; says why of those that do not. shape: what they are called with, in words."""
    taken = {}
    for name, way in ways.items():
        try:
            way()
            taken[name] = way
        except RuntimeError as error:
            print(f"left out: {name} for {shape}: {str(error).splitlines()[0]}")
    return taken


def max_difference(out: DeviceArray, tensor: Any) -> str:
    """The largest difference from torch's result; a dash where there is none."""
    if tensor is None:
        return "-"
    theirs = tensor.float().cpu().numpy()
    return f"{np.abs(out.numpy().astype(np.float32) - theirs).max():.1e}"


def device_seconds(bundle: Bundle, way: Callable[[], Any], calls: int) -> float:
    """Device time of one call: between two events around `calls` calls."""
    start = bundle.device.event()
    for _ in range(calls):
        way()
    return bundle.device.event().elapsed_ms(start) / 1e3 / calls


def calls_of(bundle: Bundle, way: Callable[[], Any]) -> int:
    """Calls that fill a round."""
    way()
    return max(1, min(1000, int(ROUND_S / max(device_seconds(bundle, way, 3), 1e-9))))


def device_times(bundle: Bundle, ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Device seconds of a call of each way: medians of rounds in which all take turns."""
    rounds_of = {name: partial(device_seconds, bundle, way, calls_of(bundle, way)) for name, way in ways.items()}
    return {name: median(taken) for name, taken in interleaved(rounds_of, rounds).items()}
