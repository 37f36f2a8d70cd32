"""Ranges of the resources of a bundle's variants, by op, kernel and config: minimum, median and maximum."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aot_bundle.command.variants import VariantRow
from aot_runtime.formats import size_text

MOST_GROUPS = 24
"""Most groups by op, kernel and config. With more, variants are grouped by op."""


@dataclass(frozen=True)
class Spread:
    """The sorted numbers of a group of variants."""

    group: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median_low(self.values)


@dataclass(frozen=True)
class Measure:
    """A resource of variants, over all groups. `note` explains it."""

    key: str
    title: str
    note: str
    text: Callable[[float], str]
    spreads: tuple[Spread, ...]

    @property
    def nothing(self) -> bool:
        """True if it is 0 for every variant."""
        return not any(any(spread.values) for spread in self.spreads)


def measures(rows: Sequence[VariantRow]) -> list[Measure]:
    """Return the resources that the bundle's code objects record."""
    groups = _groups(rows)
    found = []
    for key, title, note, text, number in _MEASURES:
        numbers = {name: [n for row in group if (n := number(row)) is not None] for name, group in groups.items()}
        spreads = tuple(Spread(name, tuple(sorted(values))) for name, values in numbers.items() if values)
        if spreads:
            found.append(Measure(key, title, note, text, spreads))
    return found


def _groups(rows: Sequence[VariantRow]) -> dict[str, list[VariantRow]]:
    """Group variants by op, kernel (for ops with several) and config, or by op only if there are too many groups."""
    kernels: dict[str, set[str]] = {}
    for row in rows:
        kernels.setdefault(row.op, set()).add(row.symbol)
    found = _by(rows, lambda row: (row.op, *([row.symbol] if len(kernels[row.op]) > 1 else []), row.config))
    return found if len(found) <= MOST_GROUPS else _by(rows, lambda row: (row.op,))


def _by(rows: Sequence[VariantRow], key: Callable[[VariantRow], tuple[str, ...]]) -> dict[str, list[VariantRow]]:
    groups: dict[tuple[str, ...], list[VariantRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {", ".join(name): group for name, group in groups.items()}


def _spills(row: VariantRow) -> float | None:
    return None if row.vgpr_spills is None else row.vgpr_spills + (row.sgpr_spills or 0)


def _count(number: float) -> str:
    return f"{number:g}" if number < 1e6 else f"{number:.6g}"


def _size(number: float) -> str:
    return size_text(int(number))


_MEASURES: tuple[tuple[str, str, str, Callable[[float], str], Callable[[VariantRow], float | None]], ...] = (
    ("vgprs", "Vector registers per lane", "VGPRs, AGPRs included.", _count, lambda row: row.vgprs),
    ("sgprs", "Scalar registers per wave", "SGPRs.", _count, lambda row: row.sgprs),
    ("spills", "Spilled registers", "VGPRs and SGPRs that the compiler keeps in memory.", _count, _spills),
    ("lds", "LDS per workgroup", "Shared memory.", _size, lambda row: row.lds_bytes),
    ("waves", "Occupancy", "Waves per SIMD that registers and LDS leave room for.", _count,
     lambda row: row.waves_per_simd),
    ("code", "Code size", "Machine code of a variant.", _size, lambda row: row.code_bytes),
)  # fmt: skip
"""(key, title, note, function that formats a number, function that returns a variant's number or None)."""
