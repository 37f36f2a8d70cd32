"""Speed of the emulator: wave-instructions per second in each mode, and its start-up time.

    aotbuild --arch gfx942 manifests/attention.yaml benchmarks/emulated/manifest.yaml
    python benchmarks/emulator.py dist/attention-gfx942 dist/emulated-gfx942

Each mode runs the same calls: a matrix product of float16 and causal attention of float16 [1, 4, 1024, 64]. All modes
take turns after a warm-up round; medians are shown. Every result is compared with lockstep's. The start-up time is
measured in a separate process, from before it opens the bundle to the end of its first launch of one or a few
workgroups. It does not include starting Python and importing numpy.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from measure import interleaved, machine, median, seconds, table, versions

from aot_emulator import EmulatorDriver, Options, Order
from aot_runtime import AotError, Bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.device.device import Device
from aot_runtime.device.drivers import device_for_arch

MODES = {
    "lockstep": Options(),
    "serial": Options(order=Order.SERIAL),
    "strict": Options(strict=True),
    "profile": Options(profile=True),
}
BASE = "lockstep"
SEQLEN = 1024
START = """
import sys, time
import numpy as np
x = np.ones((1, 1, 16, 64), np.float16)
begin = time.perf_counter()
from aot_runtime import open_bundle
bundle = open_bundle(sys.argv[1], device="emulator")
opened = time.perf_counter()
bundle.flash_attention(x, x, x)
print(opened - begin, time.perf_counter() - opened)
"""


@dataclass(frozen=True)
class Workload:
    """A call in every mode. `calls` makes it and gives its result; `drivers` are those that they run on."""

    name: str
    drivers: dict[str, EmulatorDriver]
    calls: dict[str, Callable[[], np.ndarray]]


class WrongResultError(Exception):
    """Raised if a mode's result differs from lockstep's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attention", type=Path, help="the bundle of manifests/attention.yaml")
    parser.add_argument("emulated", type=Path, help="the bundle of benchmarks/emulated/manifest.yaml")
    parser.add_argument("--size", type=int, default=1024, help="extents of the matrices (default: %(default)s)")
    parser.add_argument("--seqlen", type=int, default=SEQLEN, help="of attention (default: %(default)s)")
    parser.add_argument("--modes", choices=MODES, nargs="+", default=list(MODES), help="(default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each mode (default: %(default)s)")
    options = parser.parse_args()
    modes = list(dict.fromkeys([BASE, *options.modes]))
    try:
        print(f"{machine()}; {versions('numpy', 'tinygrad')}\n")
        workloads = [matmul(options.emulated, modes, options.size), attention(options.attention, modes, options.seqlen)]
        print(report(workloads, options.rounds))
        print(f"\n{start(options.attention, options.rounds)}")
    except (AotError, WrongResultError) as error:
        sys.exit(f"emulator.py: {error}")


def report(workloads: list[Workload], rounds: int) -> str:
    """Return a table of every workload in every mode. Raises `WrongResultError`."""
    rows = []
    for workload in workloads:
        check(workload)
        times = interleaved({mode: partial(seconds, call) for mode, call in workload.calls.items()}, rounds)
        base = median(times[BASE])
        for mode, taken in times.items():
            instructions = workload.drivers[mode].last.instructions
            rows.append([f"{workload.name}, {mode}", f"{instructions:,}", f"{median(taken):.3f}",
                         f"{instructions / median(taken) / 1e6:.2f}", f"{median(taken) / base:.2f}"])  # fmt: skip
    return table(("", "instructions", "seconds", "M/s", "x lockstep"), rows)


def check(workload: Workload) -> None:
    expected = workload.calls[BASE]()
    for mode, call in workload.calls.items():
        if not np.array_equal(call(), expected):
            raise WrongResultError(f"{workload.name}: {mode} gives another result than {BASE}")


def matmul(folder: Path, modes: list[str], size: int) -> Workload:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (size, size)).astype(np.float16) for _ in range(2))
    bundles = {mode: on_emulator(folder, mode) for mode in modes}
    calls = {mode: partial(bundle.matmul, a, b) for mode, bundle in bundles.items()}
    return Workload(f"matmul {size}x{size}x{size}", drivers_of(bundles), calls)


def attention(folder: Path, modes: list[str], seqlen: int) -> Workload:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 4, seqlen, 64), np.float32).astype(np.float16) for _ in range(3))
    bundles = {mode: on_emulator(folder, mode) for mode in modes}
    calls = {mode: partial(bundle.flash_attention, q, k, v, causal=True) for mode, bundle in bundles.items()}
    return Workload(f"attention 1x4x{seqlen}x64 causal", drivers_of(bundles), calls)


def on_emulator(folder: Path, mode: str) -> Bundle:
    """Open a bundle on an emulator of its own."""
    index = read_index(folder)
    driver = EmulatorDriver(MODES[mode])
    return Bundle(folder, index, Device(driver, device_for_arch(driver, index.target.arch)))


def drivers_of(bundles: dict[str, Bundle]) -> dict[str, EmulatorDriver]:
    return {mode: bundle.device.driver for mode, bundle in bundles.items()}  # type: ignore[misc]


def start(folder: Path, rounds: int) -> str:
    """Return a table of the phases of a start, in milliseconds."""
    begun = time.perf_counter()
    found = [
        subprocess.run([sys.executable, "-c", START, str(folder)], capture_output=True, text=True, check=True).stdout
        for _ in range(rounds + 1)
    ][1:]
    opening, first = (median([float(text.split()[part]) for text in found]) for part in range(2))
    whole = (time.perf_counter() - begun) / (rounds + 1)
    rows = [["open_bundle, its import included", f"{1e3 * opening:.0f}"], ["first launch", f"{1e3 * first:.0f}"],
            ["both", f"{1e3 * (opening + first):.0f}"], ["the whole process", f"{1e3 * whole:.0f}"]]  # fmt: skip
    return table(("start", "ms"), rows)


if __name__ == "__main__":
    main()
