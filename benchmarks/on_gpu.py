"""Helpers of the benchmarks on a GPU: device times of calls, the heading, and torch as the baseline."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine, median, no_collections, versions

from aot_bundle.event_timing import device_rounds
from aot_bundle.gpu_settings import gpu_settings
from aot_runtime import Bundle, Device, DeviceArray

PACKAGES = ("numpy", "torch", "triton", "transformers", "cupy", "cupy-cuda12x", "cupy-cuda13x", "cuda-bindings",
            "hip-python")  # fmt: skip


def heading(device: Device) -> str:
    """Describe the machine, its GPU, the versions of installed packages, and the GPU's clocks and power."""
    found = device.properties
    lines = [machine(), f"{found.name}, {found.arch}, driver {found.driver_version}; {versions(*PACKAGES)}"]
    return "\n".join(filter(None, [*lines, gpu_settings(device.driver.name, found.pci).summary()]))


def import_torch() -> Any:
    """Import torch; if it is missing or sees no GPU, print so and return None."""
    try:
        import torch
    except ImportError as error:
        print(f"left out: torch: {error}")
        return None
    if not torch.cuda.is_available():
        print("left out: torch: it sees no GPU")
        return None
    return torch


def require_torch() -> Any:
    """Import torch, or exit."""
    torch = import_torch()
    if torch is None:
        sys.exit(f"{Path(sys.argv[0]).name}: torch is needed, for inputs and as the peer")
    return torch


def working(shape: object, ways: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Return the ways that run, and print why the others do not. shape: describes the arguments."""
    taken = {}
    for name, way in ways.items():
        try:
            way()
            taken[name] = way
        except RuntimeError as error:
            print(f"left out: {name} for {shape}: {str(error).splitlines()[0]}")
    return taken


def max_difference(out: DeviceArray, tensor: Any) -> str:
    """Format the largest difference from torch's result; a dash if there is none."""
    if tensor is None:
        return "-"
    theirs = tensor.float().cpu().numpy()
    return f"{np.abs(out.numpy().astype(np.float32) - theirs).max():.1e}"


def device_times(bundle: Bundle, ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the device seconds of a call of each way: medians of rounds in which all take turns."""
    with no_collections():
        return {name: median(taken) for name, taken in device_rounds(bundle.device, ways, rounds).items()}


def our_graph(bundle: Bundle, calls: Sequence[Callable[..., Any]]) -> tuple[Callable[[], Any], int]:
    """Capture our calls, which take a `stream`, in a graph. Returns a function that replays it, and their number."""
    stream = bundle.device.stream()
    for call in calls:  # loads code and makes workspaces
        call(stream=stream)
    stream.synchronize()
    with bundle.device.capture(stream) as graph:
        for call in calls:
            call(stream=stream)
    return partial(_replay, partial(graph.launch, None), calls), len(calls)


def peer_graph(torch: Any, calls: Sequence[Callable[[], Any]]) -> tuple[Callable[[], Any], int]:
    """Capture torch's calls in a graph. Returns a function that replays it, and their number."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    return partial(_replay, graph.replay, [calls, kept]), len(calls)


def _replay(launch: Callable[[], Any], kept: Sequence[Any]) -> None:
    launch()
