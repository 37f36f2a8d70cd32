"""Fit the constants of costs to times, by least squares of the logarithms of their ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aot_runtime.contract.expressions import Evaluator

Constant = tuple[int, str, str]
"""(position of a launch, name of a config, name of a constant)."""
ROUNDS = 60
STEP = 1e-4
HELD = 0.1
"""How strongly constants are held to their start: those that few times tell do not go far."""
_LEAST = 1e-6


def of_config(constants: Mapping[Constant, float], launch: int, config: str) -> dict[str, float]:
    """Return the constants of one config, by name."""
    return {name: value for (at, of, name), value in constants.items() if (at, of) == (launch, config)}


@dataclass(frozen=True)
class Term:
    """The cost of one launch of a way. names: values of the names that it reads besides constants."""

    launch: int
    config: str
    cost: Evaluator
    names: Mapping[str, object]

    def value(self, constants: Mapping[Constant, float]) -> float:
        return float(self.cost({**self.names, **of_config(constants, self.launch, self.config)}))


@dataclass(frozen=True)
class Sample:
    """A timed way of a call.

    Attributes:
        call: the call, by position.
        seconds: its time.
        terms: its launches that have a cost.
    """

    call: int
    way: str
    seconds: float
    terms: tuple[Term, ...]

    def cost(self, constants: Mapping[Constant, float]) -> float:
        return max(_LEAST, sum(term.value(constants) for term in self.terms))


def fitted(samples: Sequence[Sample], start: Mapping[Constant, float]) -> dict[Constant, float]:
    """Return the constants with which costs come closest to times, by the method of Levenberg and Marquardt.

    Constants stay positive. A way counts the more, the closer its time is to the best of its call: costs have to tell
    such ways apart, and not those that are far behind.
    """
    keys = list(start)
    places = {key: i for i, key in enumerate(keys)}
    best: dict[int, float] = {}
    for sample in samples:
        best[sample.call] = min(best.get(sample.call, math.inf), sample.seconds)
    weights = np.array([best[sample.call] / sample.seconds for sample in samples])
    first = logs = np.log([max(value, _LEAST * _LEAST) for value in start.values()])

    def linearised(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        residuals, slopes = _linearised(samples, keys, places, logs, weights)
        return np.append(residuals, HELD * (logs - first)), np.vstack([slopes, HELD * np.eye(len(keys))])

    damping = 1e-2
    residuals, slopes = linearised(logs)
    error = float(residuals @ residuals)
    for _ in range(ROUNDS):
        normal = slopes.T @ slopes
        step = np.linalg.solve(normal + damping * np.diag(normal.diagonal()), slopes.T @ residuals)
        tried = logs - np.clip(step, -1, 1)
        new, new_slopes = linearised(tried)
        if float(new @ new) < error:
            gain = 1 - float(new @ new) / error
            logs, residuals, slopes, error = tried, new, new_slopes, float(new @ new)
            damping = max(damping / 4, 1e-7)
            if gain < 1e-6:
                break
        else:
            damping *= 8
            if damping > 1e8:
                break
    return {key: float(np.exp(value)) for key, value in zip(keys, logs, strict=True)}


def _linearised(
    samples: Sequence[Sample], keys: list[Constant], places: Mapping[Constant, int], logs: np.ndarray,
    weights: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return the weighted residuals, log(cost / time), and their derivatives by the logarithms of the constants."""
    by_config: dict[tuple[int, str], dict[str, float]] = {}
    for (launch, config, name), place in places.items():
        by_config.setdefault((launch, config), {})[name] = float(np.exp(logs[place]))
    residuals = np.empty(len(samples))
    slopes = np.zeros((len(samples), len(keys)))
    for row, sample in enumerate(samples):
        values = [float(t.cost({**t.names, **by_config[t.launch, t.config]})) for t in sample.terms]
        total = max(_LEAST, sum(values))
        residuals[row] = math.log(total / (sample.seconds * 1e6))
        for term, value in zip(sample.terms, values, strict=True):
            own = by_config[term.launch, term.config]
            for name, constant in own.items():
                more = float(term.cost({**term.names, **own, name: constant * (1 + STEP)}))
                slopes[row, places[term.launch, term.config, name]] += (more - value) / STEP / total
    return residuals * weights, slopes * weights[:, None]


@dataclass(frozen=True)
class Regret:
    """How much longer chosen ways take than the best of their calls, as parts of these."""

    parts: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.parts) / len(self.parts)

    @property
    def percentile_95(self) -> float:
        return sorted(self.parts)[min(len(self.parts) - 1, math.ceil(0.95 * len(self.parts)) - 1)]

    def __str__(self) -> str:
        return f"mean {self.mean:.1%}, 95th percentile {self.percentile_95:.1%}, worst {max(self.parts):.1%}"


def regret(samples: Sequence[Sample], constants: Mapping[Constant, float]) -> Regret:
    """Return the regret of choosing by cost, over the calls of the samples."""
    calls: dict[int, list[Sample]] = {}
    for sample in samples:
        calls.setdefault(sample.call, []).append(sample)
    parts = []
    for ways in calls.values():
        chosen = min(ways, key=lambda way: way.cost(constants))
        parts.append(chosen.seconds / min(way.seconds for way in ways) - 1)
    return Regret(tuple(parts))
