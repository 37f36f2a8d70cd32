"""What the variants of a bundle take, by op, kernel and config: least, median and most."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aot_bundle.command.variants import VariantRow
from aot_runtime.texts import size_text

MOST_GROUPS = 24
"""Variants are grouped by op, kernel and config where there are no more groups than this, else by op."""


@dataclass(frozen=True)
class Spread:
    """The numbers of a group of variants, in ascending order."""

    group: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median_low(self.values)


@dataclass(frozen=True)
class Measure:
    """One number that variants have, over all groups. `note`: what is to be known of it."""

    key: str
    title: str
    note: str
    text: Callable[[float], str]
    spreads: tuple[Spread, ...]

    @property
    def nothing(self) -> bool:
        """Whether it is 0 of every variant."""
        return not any(any(spread.values) for spread in self.spreads)


def measures(rows: Sequence[VariantRow]) -> list[Measure]:
    """Those that the code objects of the bundle record."""
    groups = _groups(rows)
    found = []
    for key, title, note, text, number in _MEASURES:
        numbers = {name: [n for row in group if (n := number(row)) is not None] for name, group in groups.items()}
        spreads = tuple(Spread(name, tuple(sorted(values))) for name, values in numbers.items() if values)
        if spreads:
            found.append(Measure(key, title, note, text, spreads))
    return found


def _groups(rows: Sequence[VariantRow]) -> dict[str, list[VariantRow]]:
    """By op, kernel (of an op with several) and config; or by op alone where these would be too many to look at."""
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
"""Key, title, note, a number as text, and the number of a variant; None: not recorded."""
