"""Helpers of all benchmarks: rounds of interleaved measurements, the machine's description, and tables."""

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

from aot_bundle.event_timing import take_turns

ROOT = Path(__file__).resolve().parents[1]


def machine() -> str:
    """Describe the processor, the cores that this process may use, and Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {platform.system()}, Python {platform.python_version()}"


def versions(*packages: str) -> str:
    """List the versions of the packages that are installed."""
    found = []
    for name in packages:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format rows under their headings; the first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = []
    for first, *rest in (headings, *rows):
        cells = [text.rjust(width) for text, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def line(first: str, others: Sequence[str], width: int = 24) -> str:
    """Format a row of a table that is printed during the measurement. width: of the first column."""
    return first.ljust(width) + "".join(text.rjust(13) for text in others)


@contextmanager
def no_collections():
    """Disable the garbage collector, as `timeit` does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def interleaved(measurements: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Take each measurement `rounds` times, in turns, with no garbage collection in between."""
    with no_collections():
        return take_turns(measurements, rounds)


def seconds(work: Callable[[], object]) -> float:
    """Time a call of `work` on the host."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def distribution(ratios: Sequence[float]) -> str:
    """Return the number, median, lowest tenth and minimum of ratios."""
    ordered = sorted(ratios)
    tenth = ordered[len(ordered) // 10]
    return f"{len(ordered)} products, median {median(ordered):.2f}, lowest tenth {tenth:.2f}, worst {ordered[0]:.2f}"
