"""Which candidate of a group is the best, over all calls of the group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .candidates import Candidate, Group
from .results import Timed
from .trials import PlannedTuning


@dataclass(frozen=True)
class Ranked:
    """A candidate that all calls of its group were timed with.

    Attributes:
        score: its time as a part of that of the configs as they are: the geometric mean over the calls, each as often
            as it counts.
        seconds: of each call.
    """

    candidate: Candidate
    score: float
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Choice:
    """What came of a group.

    Attributes:
        calls: positions of its calls; now: seconds of each as it is.
        ranking: its candidates, the best first; of equal ones that which the space has first.
        taken: whether the best is so much better that it becomes the config.
        dropped: candidate → why it is not in the ranking.
    """

    group: Group
    calls: tuple[int, ...]
    now: tuple[float, ...]
    ranking: tuple[Ranked, ...]
    taken: bool
    dropped: Mapping[int, str]

    @property
    def best(self) -> Ranked | None:
        return self.ranking[0] if self.ranking else None


def choose(
    planned: PlannedTuning,
    place: int,
    times: Mapping[tuple[int, int], Timed],
    dropped: Mapping[int, str],
    margin: float,
) -> Choice:
    """Rank the candidates of a group.

    Args:
        times: (call, candidate) → what came of it; candidate 0 is the config as it is.
        margin: the part of the time that the best one has to save.
    """
    group, calls = planned.groups[place], planned.calls_of(place)
    weights = [planned.calls[call].spec.count for call in calls]
    now = [times[call, 0].seconds or math.nan for call in calls]
    ranking = []
    why = dict(dropped)
    for candidate in group.candidates:
        if candidate.number in why:
            continue
        found = [times[call, candidate.number] for call in calls]
        if fault := next((timed.fault for timed in found if timed.seconds is None), ""):
            why[candidate.number] = fault
            continue
        seconds = tuple(timed.seconds or 0.0 for timed in found)
        ranking.append(Ranked(candidate, _mean_part(seconds, now, weights), seconds))
    ranking.sort(key=lambda item: (item.score, item.candidate.number))
    taken = bool(ranking) and ranking[0].score < 1 - margin
    return Choice(group, calls, tuple(now), tuple(ranking), taken, why)


def _mean_part(seconds: Sequence[float], now: Sequence[float], weights: Sequence[int]) -> float:
    logs = sum(weight * math.log(one / other) for one, other, weight in zip(seconds, now, weights, strict=True))
    return math.exp(logs / sum(weights))


def shortlisted(choice: Choice, count: int) -> list[Candidate]:
    """The best candidates of a group: by turns the next of each call, and of the mean over all calls."""
    orders = [[item.candidate for item in choice.ranking]]
    orders += [
        [item.candidate for item in sorted(choice.ranking, key=lambda item: (item.seconds[i], item.candidate.number))]
        for i in range(len(choice.calls))
    ]
    found: dict[int, Candidate] = {}
    for turn in zip(*orders, strict=True):
        for candidate in turn:
            if len(found) < count:
                found.setdefault(candidate.number, candidate)
    return list(found.values())
