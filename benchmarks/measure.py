"""What the benchmarks have in common: rounds of interleaved measurements, and how results are printed."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def machine() -> str:
    """The processor, its cores that this process may use, and Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {platform.system()}, Python {platform.python_version()}"


def versions(*packages: str) -> str:
    """The versions of those packages that are installed."""
    found = []
    for name in packages:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their headings; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = []
    for first, *rest in (headings, *rows):
        cells = [text.rjust(width) for text, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def line(first: str, others: Sequence[str], width: int = 24) -> str:
    """A row of a table that is printed while it is measured; width: of its first column."""
    return first.ljust(width) + "".join(text.rjust(13) for text in others)


@contextmanager
def no_collections():
    """Without the garbage collector's pauses, as `timeit` has it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def interleaved(measurements: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each measurement gives, `rounds` times, in turn: a drift of clocks or load meets them all.

    One more round beforehand is thrown away.
    """
    found: dict[str, list[float]] = {name: [] for name in measurements}
    with no_collections():
        for number in range(rounds + 1):
            for name, measure in measurements.items():
                value = measure()
                if number:
                    found[name].append(value)
            gc.collect()
    return found


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
