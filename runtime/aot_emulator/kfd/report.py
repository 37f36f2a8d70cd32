"""Summary table of a program's kernels, for `aotbundle emulate --profile`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aot_emulator.profile.counters import Statistics
from aot_runtime.formats import cut, size_text

_HEADINGS = ("kernel", "launches", "workgroups", "wave-instructions", "matrix flops", "bytes read", "written")


@dataclass
class _Sum:
    launches: int = 0
    workgroups: int = 0
    instructions: int = 0
    flops: Counter[str] = field(default_factory=Counter)
    read: int = 0
    written: int = 0


class Report:
    """Launch statistics, summed by kernel."""

    def __init__(self) -> None:
        self._kernels: dict[str, _Sum] = {}

    def add(self, kernel: str, done: Statistics) -> None:
        found = self._kernels.setdefault(kernel, _Sum())
        found.launches += 1
        found.workgroups += done.workgroups
        found.instructions += done.instructions
        found.flops.update(done.summary.flops)
        if done.traffic is not None:
            read, written = done.traffic.reached()
            found.read += read
            found.written += written

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table, sorted by instructions; none if nothing was launched."""
        if not self._kernels:
            return iter(())
        kernels = sorted(self._kernels.items(), key=lambda item: -item[1].instructions)
        rows = [_HEADINGS, *(_row(name, found) for name, found in kernels)]
        return _aligned(rows)


def _row(name: str, found: _Sum) -> tuple[str, ...]:
    flops = ", ".join(f"{kind} {count:,}" for kind, count in found.flops.items()) or "none"
    counts = (f"{count:,}" for count in (found.launches, found.workgroups, found.instructions))
    return (cut(name, 160), *counts, flops, size_text(found.read), size_text(found.written))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        yield "  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])])
