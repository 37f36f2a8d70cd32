"""Rank the candidates of a group over all its calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .candidates import Candidate, Group
from .results import Timed
from .trials import PlannedTuning


@dataclass(frozen=True)
class Ranked:
    """A candidate with the times of all calls of its group.

    Attributes:
        score: its time relative to the present configs': the geometric mean over the calls, weighted by their counts.
        seconds: time of each call.
    """

    candidate: Candidate
    score: float
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Choice:
    """The outcome of a group.

    Attributes:
        calls: positions of its calls.
        now: seconds of each call with the present config.
        ranking: its candidates, best first; equal ones in the order of the space.
        taken: the best is enough better to become the config.
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
        times: (call, candidate) → outcome; candidate 0 is the present config.
        margin: the part of the time that the best has to save.
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
    """Return the best candidates of a group: in turns, the next best of each call and of the mean."""
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
