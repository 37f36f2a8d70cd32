"""Outcomes of inputs: the number of each kind, and the failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass
class Outcomes:
    """Counts by kind, and the faults of inputs that failed."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, kind: str, fault: str = "", label: str = "") -> None:
        """Add an input of a kind. With a fault it is a failure, and `label` names the input."""
        self.counts["FAILED" if fault else kind] += 1
        if fault:
            self.failures.append(f"{label}: {fault}")

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def table(counts: Mapping[str, int]) -> Iterator[str]:
    """Lines of kind, count and share, the most frequent first."""
    total = max(1, sum(counts.values()))
    for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{kind:<60}{count:>10}{100 * count / total:>8.2f} %"
