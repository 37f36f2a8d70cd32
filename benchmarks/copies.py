"""Cost of copies between numpy arrays and device memory, on an idle device and behind other work.

    python benchmarks/copies.py
    python benchmarks/copies.py cuda:0 --sizes 4KiB 1MiB --rounds 51

Arrays are allocated beforehand; numpy's are not pinned. "host" is the time until the call returns on an idle device,
and "done" the time until the bytes have arrived, from which GB/s follow. "behind work" is the time until the call
returns if the stream has milliseconds of work: a call that need not wait returns as on an idle device. All candidates
take turns; medians are shown in microseconds. Copies to the device are checked by overwriting the source at once. torch
and cupy are included if they are installed, and so is hand-written code: the API's copy of unpinned memory, and a wait
for the stream.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from measure import interleaved, median, table
from on_gpu import heading, import_torch

from aot_runtime import AotError, Device, DeviceArray, get_device

SIZES = ("256B", "4KiB", "64KiB", "1MiB", "16MiB", "256MiB")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
WORK_FILLS = 20
"""Fills that are the work: of 1 GiB each, or of a 64th of the device's memory where that is less."""


@dataclass(frozen=True)
class Way:
    """A way to copy. `bring` and `take` copy from and to the numpy array that they were made for."""

    name: str
    bring: Callable[[], Any]
    take: Callable[[], Any]


@dataclass(frozen=True)
class Setting:
    """A device, its work, and the arrays of one size: `source` and `target` of numpy, `array` on the device."""

    device: Device
    work: DeviceArray
    source: np.ndarray
    target: np.ndarray
    array: DeviceArray

    @classmethod
    def of(cls, device: Device, nbytes: int) -> Setting:
        work = device.empty(min(1 << 30, device.properties.memory_bytes >> 6), np.uint8)
        return cls(device, work, np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8), device.empty(nbytes, np.uint8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", help="as in hip:0 (default: the first GPU)")
    parser.add_argument("--sizes", nargs="+", type=size, default=list(map(size, SIZES)), metavar="SIZE",
                        help=f"(default: {' '.join(SIZES)})")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=21, help="rounds of each way (default: %(default)s)")
    options = parser.parse_args()
    try:
        device = get_device(options.device)
        print(f"{heading(device)}\n")
        print(report(device, options.sizes, options.rounds))
    except AotError as error:
        sys.exit(f"copies.py: {error}")


def size(text: str) -> int:
    """Bytes: `4KiB` is 4096."""
    found = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB)", text)
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a number above 0 and a unit is, as in 4KiB")
    return int(found[1]) * UNITS[found[2]]


def size_text(nbytes: int) -> str:
    unit = max((unit for unit, factor in UNITS.items() if nbytes % factor == 0), key=UNITS.__getitem__)
    return f"{nbytes // UNITS[unit]} {unit}"


def report(device: Device, sizes: list[int], rounds: int) -> str:
    """Return the table of all sizes, ways and directions."""
    rows = [row for nbytes in sizes for row in measure(Setting.of(device, nbytes), rounds)]
    return table(("us per copy", "host", "done", "GB/s", "behind work"), rows)


def measure(setting: Setting, rounds: int) -> Iterator[list[str]]:
    """Return a row for each direction and way."""
    ways = list(available_ways(setting))
    for direction, copy_of in (("to device", lambda way: way.bring), ("to numpy", lambda way: way.take)):
        host: dict[str, list[float]] = {way.name: [] for way in ways}
        behind: dict[str, list[float]] = {way.name: [] for way in ways}
        done = interleaved(
            {way.name: partial(one_round, setting, copy_of(way), host[way.name], behind[way.name]) for way in ways},
            rounds,
        )
        for way in ways:
            taken = median(done[way.name])
            cells = [f"{1e6 * median(host[way.name][1:]):.1f}", f"{1e6 * taken:.1f}"]
            cells += [f"{setting.source.nbytes / taken / 1e9:.2f}"]
            # What comes to numpy has to wait.
            cells += [f"{1e6 * median(behind[way.name][1:]):.1f}" if direction == "to device" else "-"]
            yield [f"{size_text(setting.source.nbytes)} {direction}, {way.name}", *cells]


def one_round(setting: Setting, copy: Callable[[], Any], host: list[float], behind: list[float]) -> float:
    """Return the seconds until the bytes are there. `host` gets those until the call returns, and `behind` those with
    work before the copy."""
    for times, fills in ((behind, WORK_FILLS), (host, 0)):
        setting.device.synchronize()
        for _ in range(fills):
            setting.work.fill(0)
        start = time.perf_counter()
        copy()
        times.append(time.perf_counter() - start)
    setting.device.synchronize()
    return time.perf_counter() - start


def available_ways(setting: Setting) -> Iterator[Way]:
    """Return every way that works here and copies the right bytes; print why others do not."""
    for make in (with_aot_runtime, by_hand, with_torch, with_cupy):
        try:
            way = make(setting)
            if way is not None:
                check(setting, way)
                yield way
        except ImportError as error:
            print(f"left out: {make.__name__}: {error}")


def check(setting: Setting, way: Way) -> None:
    """Raise `SystemExit` unless the bytes arrive that were in the source when the copy was asked for."""
    for byte in (17, 18):
        setting.device.synchronize()
        setting.work.fill(0)
        setting.source[:] = byte
        way.bring()
        setting.source[:] = 0
        setting.target[:] = 0
        way.take()
        if not (setting.target == byte).all():
            sys.exit(f"copies.py: {way.name} brought the wrong bytes")


def with_aot_runtime(setting: Setting) -> Way:
    device, array, target = setting.device, setting.array, setting.target
    take = partial(device.read, target, array.ptr, 0)
    return Way("aot_runtime", partial(array.copy_from, setting.source), take)


def by_hand(setting: Setting) -> Way:
    """Copy memory that is not pinned by the API's function, and wait."""
    driver, stream = setting.device.driver, 0
    address, nbytes = setting.array.ptr, setting.source.nbytes
    source, target = setting.source.ctypes.data, setting.target.ctypes.data
    binding: Any = driver._binding
    prefix = {"hip": "hip", "cuda": "cu"}[driver.name]
    bring = getattr(binding, f"{prefix}MemcpyHtoDAsync")
    take, wait = getattr(binding, f"{prefix}MemcpyDtoHAsync"), getattr(binding, f"{prefix}StreamSynchronize")

    def call(copy: Callable[..., Any], *arguments: int) -> None:
        statuses = copy(*arguments, nbytes, stream)[0], wait(stream)[0]
        if any(map(int, statuses)):
            raise RuntimeError(f"the copy ended with statuses {statuses}")

    setting.device.driver.activate(setting.device.index)
    return Way("by hand, not pinned", partial(call, bring, address, source), partial(call, take, target, address))


def with_torch(setting: Setting) -> Way | None:
    torch = import_torch()
    if torch is None:
        return None
    tensor = torch.empty(setting.source.nbytes, dtype=torch.uint8, device=f"cuda:{setting.device.index}")
    source, target = torch.from_numpy(setting.source), torch.from_numpy(setting.target)
    return Way("torch, not pinned", partial(tensor.copy_, source), partial(target.copy_, tensor))


def with_cupy(setting: Setting) -> Way:
    import cupy

    array = cupy.empty(setting.source.nbytes, np.uint8)
    return Way("cupy", partial(array.set, setting.source), partial(array.get, out=setting.target))


if __name__ == "__main__":
    main()
