"""What a call of a tiny kernel costs the host: softmax of [1, 256] through this runtime and through its peers.

    aotbuild --arch sm_90 manifests/rows.yaml && python benchmarks/launch.py dist/rows-sm_90

Each round enqueues a number of calls, takes the time, and only then waits for the device; the figures are the host's
time per call before that wait. The number is below the depth of a device's queue, so that no call waits for a slot.
Rounds of all ways are interleaved. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import ROOT, interleaved, machine, median, table, versions

from aot_runtime import AotError, Bundle, DeviceArray, open_bundle
from aot_runtime.calls import kernarg_image
from aot_runtime.planner import POINTER, LaunchDecision

COLS = 256

Way = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """What every way works on: the bundle, its arrays, and the launch that a call comes to, with all its kernargs."""

    bundle: Bundle
    x: DeviceArray
    out: DeviceArray
    launch: LaunchDecision
    kernargs: bytes

    @property
    def threads(self) -> int:
        return self.launch.variant.num_warps * self.launch.variant.warp_size

    @classmethod
    def of(cls, bundle: Bundle) -> Setting:
        device = bundle.device
        x = device.array(np.linspace(-1, 1, COLS, dtype=np.float32)[None])
        out = bundle.softmax(x)
        decision = bundle.softmax.decide({"x": x.layout, "out": out.layout}, {})
        (launch,) = decision.launches
        variant = launch.variant
        image = bytearray(kernarg_image(bundle.planner("softmax").op, variant, launch.values, frozenset()))
        for arg in variant.kernargs:
            if arg.type.startswith(POINTER) and arg.value:
                struct.pack_into("<Q", image, arg.offset, {"x": x.ptr, "out": out.ptr}[arg.value])
        return cls(bundle, x, out, launch, bytes(image))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/rows.yaml for this GPU")
    parser.add_argument("--calls", type=int, default=500, help="calls of a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each way (default: %(default)s)")
    options = parser.parse_args()
    try:
        bundle = open_bundle(options.bundle)
        print(machine())
        print(f"{bundle.device} {bundle.device.properties.name}, driver {bundle.device.properties.driver_version}; "
              f"{versions('numpy', 'torch', 'triton', 'cupy', 'cupy-cuda12x', 'cupy-cuda13x', 'cuda-bindings', 'hip-python')}")  # fmt: skip  # noqa: E501
        print(_report(Setting.of(bundle), options.calls, options.rounds))
    except AotError as error:
        sys.exit(f"launch.py: {error}")


def _report(setting: Setting, calls: int, rounds: int) -> str:
    ways = {name: way for name, way, _ in _available(setting)}
    checks = {name: result for name, _, result in _available(setting) if result is not None}
    _check(setting, ways, checks)
    host: dict[Way, list[float]] = {way: [] for way in ways.values()}

    def enqueue(way: Way) -> float:
        """Seconds per call until the device is done; the host's share of it goes to `host`."""
        setting.bundle.device.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            way()
        enqueued = time.perf_counter()
        setting.bundle.device.synchronize()
        host[way].append((enqueued - start) / calls)
        return (time.perf_counter() - start) / calls

    whole = interleaved(ways, rounds, enqueue)
    base = median(host[ways["cuLaunchKernel through ctypes" if _is_cuda(setting) else "hipModuleLaunchKernel through ctypes"]][1:])  # fmt: skip  # noqa: E501
    rows = []
    for name, way in ways.items():
        times = host[way][1:]  # the first round was a warm-up
        rows.append([name, f"{1e6 * median(times):.2f}", f"{1e6 * min(times):.2f}", f"{median(times) / base:.2f}",
                     f"{1e6 * median(whole[name]):.2f}"])  # fmt: skip
    return table(("", "host us per call", "least", "ratio", "us until done"), rows)
