"""Measure how fast a device copies, reads and writes its memory, with the bundle of memory.yaml; `bench memory`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aot_bundle.event_timing import device_rounds
from aot_runtime.call.selftests import head_text
from aot_runtime.contract.dtypes import INT32
from aot_runtime.errors import ArgumentError, DeviceMemoryError
from aot_runtime.formats import UNITS

if TYPE_CHECKING:
    from aot_runtime.opening import Bundle

MOVED = {"copy": 2, "read": 1, "write": 1}
"""How often each op moves an array's bytes: a copy reads and writes them."""
GPU_SIZES = tuple(1 << shift for shift in (26, 28, 30, 31))
EMULATOR_SIZES = (1 << 16, 1 << 18)
_WORD = 4


@dataclass(frozen=True)
class Bandwidth:
    """Measured bandwidth of an op on arrays of one size.

    Attributes:
        op: copy, read or write.
        nbytes: size of each array in bytes.
        gb_per_s: median bandwidth in 1e9 bytes per second.
        spread: ratio of the fastest to the slowest round.
        seconds: median duration of a call.
    """

    op: str
    nbytes: int
    gb_per_s: float
    spread: float
    seconds: float


@dataclass(frozen=True)
class Measured:
    """Results of a run. `meaningful` is False on the emulator. `skipped` has sizes in bytes."""

    head: str
    meaningful: bool
    rounds: int
    results: tuple[Bandwidth, ...]
    skipped: tuple[int, ...]


def default_sizes(bundle: Bundle) -> tuple[int, ...]:
    """Return array sizes in bytes: from within a GPU's last-level cache to far beyond it; small on the emulator."""
    return GPU_SIZES if _is_gpu(bundle) else EMULATOR_SIZES


def measure(bundle: Bundle, sizes: Sequence[int], rounds: int) -> Measured:
    """Measure each op on arrays of each size (bytes, rounded up to whole words), in `rounds` interleaved rounds.

    Sizes that do not fit in the device's memory are skipped. Raises `ArgumentError` if the bundle lacks an op.
    """
    for op in MOVED:
        if op not in bundle.ops:
            raise ArgumentError(
                f"bundle '{bundle.index.name}' has no op '{op}'; a bundle of manifests/memory.yaml is needed"
            )
    results: list[Bandwidth] = []
    skipped = []
    for nbytes in sizes:
        try:
            results += _measure_size(bundle, -(-nbytes // _WORD), rounds)
        except DeviceMemoryError:
            skipped.append(nbytes)
    return Measured(head_text(bundle), _is_gpu(bundle), rounds, tuple(results), tuple(skipped))


def _is_gpu(bundle: Bundle) -> bool:
    return not bundle.device.driver.is_emulated


def _measure_size(bundle: Bundle, words: int, rounds: int) -> Iterator[Bandwidth]:
    device = bundle.device
    x, out = (device.empty((words,), INT32.name) for _ in range(2))
    bundle.write(x, value=1)
    sums = bundle.read(x)
    ways: dict[str, Callable[[], Any]] = {
        "copy": lambda: bundle.copy(x, out=out),
        "read": lambda: bundle.read(x, sums=sums),
        "write": lambda: bundle.write(out, value=1),
    }
    for op, taken in device_rounds(device, ways, rounds).items():
        moved, seconds = MOVED[op] * words * _WORD, statistics.median(taken)
        yield Bandwidth(op, words * _WORD, moved / seconds / 1e9, max(taken) / min(taken), seconds)


def bandwidth_lines(measured: Measured) -> list[str]:
    """Format a table of bandwidths in GB/s, by size and op."""
    lines = [measured.head, "", f"{'GB/s':>12}" + "".join(f"{op:>10}" for op in MOVED)]
    rates = {(result.nbytes, result.op): result.gb_per_s for result in measured.results}
    for nbytes in dict.fromkeys(result.nbytes for result in measured.results):
        lines.append(f"{_size_text(nbytes):>12}" + "".join(f"{rates[nbytes, op]:>10.1f}" for op in MOVED))
    lines += [f"{_size_text(nbytes):>12}  does not fit in the device's memory" for nbytes in measured.skipped]
    lines += [
        "",
        f"By device events, medians of {measured.rounds} rounds. A copy counts its reads and its writes.",
    ]
    if not measured.meaningful:
        lines.append("The emulator ran them: these times mean nothing.")
    return lines


def _size_text(nbytes: int) -> str:
    return next((f"{nbytes // unit} {name}" for name, unit in UNITS.items() if nbytes % unit == 0), f"{nbytes} B")


def parse_size(text: str) -> int:
    """Parse a size such as `1GiB`, `64MiB` or `4096` to bytes, at least 1. Raises ValueError."""
    unit = next((name for name in UNITS if text.endswith(name)), "")
    number = int(text.removesuffix(unit))
    if number < 1:
        raise ValueError(f"a size of {number}")
    return number * UNITS.get(unit, 1)


def bandwidth_data(measured: Measured) -> dict[str, Any]:
    """Return results as JSON-ready data."""
    return asdict(measured)
