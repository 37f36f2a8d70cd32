"""Times of a launch and of a copy through the emulated driver, on the host:

    aotbundle emulate -- python -m tests.rocm run FOLDER python benchmarks/emulated_driver.py dist/first-gfx942

where `python -m tests.rocm install FOLDER` has fetched AMD's HIP. A launch is attention with a single tile, including
the wait for it. For comparison, the emulator's own driver runs the same code object in this process.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from aot_runtime import AotError, get_device, open_bundle

_MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--runs", type=int, default=100, help="of each, of which the fastest counts [default: 100]")
    given = parser.parse_args()
    launches = {device: launch(given.bundle, device, given.runs) for device in ("hip", "emulator")}
    for device, seconds in launches.items():
        print(f"{device}: a launch and its synchronization {seconds * 1e3:.2f} ms")
    print(f"the driver adds {(launches['hip'] - launches['emulator']) * 1e3:.2f} ms")
    for name, seconds in copies(given.runs).items():
        print(f"hip: a copy of 1 MiB {name} {seconds * 1e3:.2f} ms")


def launch(bundle: Path, device: str, runs: int) -> float:
    """Return the time of a launch in seconds."""
    opened = open_bundle(bundle, device)
    rng = np.random.default_rng(0)
    given = [opened.device.array(rng.standard_normal((1, 1, 16, 64)).astype(np.float16)) for _ in range(3)]

    def run() -> None:
        opened.flash_attention(*given, causal=True)
        opened.device.synchronize()

    return fastest(run, runs)


def copies(runs: int) -> dict[str, float]:
    """Return the times of copies to and from the device in seconds."""
    driver, host = get_device("hip").driver, np.zeros(_MIB, np.uint8)
    address = driver.allocate_now(0, _MIB)
    return {
        "to the device": fastest(lambda: driver.copy_to_device(0, address, host.ctypes.data, _MIB, 0), runs),
        "to the host": fastest(lambda: driver.copy_to_host(0, host.ctypes.data, address, _MIB, 0), runs),
    }


def fastest(run: Callable[[], None], runs: int) -> float:
    """Return the shortest time of some runs in seconds."""
    run()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    try:
        main()
    except AotError as error:
        sys.exit(f"emulated_driver.py: {error}")
