"""Scores of predictions against published data: errors of times, and ranks of winners among configs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


def log_error(predicted: Sequence[float], published: Sequence[float]) -> float:
    """Return the mean of |log(predicted / published)|."""
    return float(np.abs(np.log(np.array(predicted) / np.array(published))).mean())


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    ranks = [np.argsort(np.argsort(np.array(values))).astype(float) for values in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])


def spearman_within(
    groups: Sequence[Hashable], predicted: Sequence[float], published: Sequence[float], least: int = 4
) -> tuple[float, int]:
    """Return (mean coefficient of the groups with at least `least` members, the number of their members)."""
    found: list[tuple[float, int]] = []
    for group in set(groups):
        mine = [place for place, other in enumerate(groups) if other == group]
        if len(mine) >= least:
            found.append((spearman([predicted[at] for at in mine], [published[at] for at in mine]), len(mine)))
    if not found:
        return float("nan"), 0
    return float(np.average([value for value, _ in found], weights=[count for _, count in found])), sum(
        n for _, n in found
    )


def percentile(costs: Mapping[Hashable, float], winner: Hashable) -> float:
    """Return the share of other candidates that are better than the winner; equal ones count half."""
    mine, others = costs[winner], [cost for config, cost in costs.items() if config != winner]
    better = sum(cost < mine for cost in others) + 0.5 * sum(cost == mine for cost in others)
    return better / max(1, len(others))


def rank(costs: Mapping[Hashable, float], winner: Hashable) -> float:
    """Return the rank of a candidate: the number of better ones; equal ones count half."""
    return percentile(costs, winner) * (len(costs) - 1)


@dataclass(frozen=True)
class Ranks:
    """Scores of a ranking of configs: the percentile and rank of each key's winner."""

    percentiles: tuple[float, ...]
    ranks: tuple[float, ...]

    def row(self) -> tuple[str, ...]:
        """Return a row of the table: keys; median; mean; winners in the first 10 %, the first 20 %, the first ten."""
        p, r = np.array(self.percentiles), np.array(self.ranks)
        return (f"{len(p)}", f"{np.median(p):.2f}", f"{p.mean():.2f}", f"{(p <= 0.1).mean():.2f}",
                f"{(p <= 0.2).mean():.2f}", f"{(r < 10).mean():.2f}")  # fmt: skip


HEADINGS = ("ORDERED BY", "KEYS", "MEDIAN", "MEAN", "FIRST 10 %", "FIRST 20 %", "WINNER IN TEN")
