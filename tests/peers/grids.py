"""The parametrisations of the peers' test suites: `data/*.json`, one file a suite, read at its `commit` or version.

A suite's `tests` maps files to test functions to what they are called with:

    count   combinations of parameter values that run forward and that the test does not skip
    op      the op of ours that takes a combination that asks for nothing more
    asks    requests (keys of `rules.RULES`) beyond that; each with a condition in the names of `axes`, or with the
            number of combinations, if no condition on `axes` tells them; a string alone is asked for by all
    skip    condition of the combinations that the test skips
    axes    values by parameter; those of parameters that vary together are lists, under their names joined by commas

Parameters with one value, and with very many, are left out of `axes`.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any

DATA = Path(__file__).parent / "data"
Combination = dict[str, Any]


@dataclass(frozen=True)
class Condition:
    """A Python expression over parameters of a test function."""

    text: str

    @cached_property
    def _code(self) -> CodeType:
        return compile(self.text, "<condition>", "eval")

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(node.id for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Name))

    def holds(self, combination: Combination) -> bool:
        return bool(eval(self._code, {"__builtins__": {}}, combination))


@dataclass(frozen=True)
class Function:
    """A test function of a suite."""

    suite: str
    file: str
    name: str
    count: int
    op: str = ""
    asks: Mapping[str, Condition] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)
    skip: Condition = Condition("False")
    axes: Mapping[str, list[Any]] = field(default_factory=dict)

    def combinations(self, names: frozenset[str]) -> Iterator[Combination]:
        """Yield the combinations of the axes that have these names and that are not skipped."""
        axes = {key: values for key, values in self.axes.items() if names & set(key.split(","))}
        for values in itertools.product(*axes.values()):
            found = combination(axes, values)
            if not self.skip.holds(found):
                yield found

    def requests(self, given: Combination) -> tuple[str, ...]:
        """Return what a combination asks for beyond a plain call."""
        return tuple(request for request, condition in self.asks.items() if condition.holds(given))

    def classes(self) -> Counter[tuple[str, ...]]:
        """Count the combinations by their requests."""
        if self.counted:
            found = Counter({(request,): count for request, count in self.counted.items()})
            found[()] = self.count - found.total()
            return +found
        names = self.skip.names.union(*(condition.names for condition in self.asks.values()))
        found = Counter(self.requests(given) for given in self.combinations(names))
        each, rest = divmod(self.count, found.total())
        if rest:
            raise ValueError(f"{self.file}::{self.name}: {self.count} is not a multiple of {found.total()}")
        return Counter({requests: count * each for requests, count in found.items()})


def combination(axes: Mapping[str, Any], values: tuple[Any, ...]) -> Combination:
    """Name the values of axes, whose keys may be several names."""
    found: Combination = {}
    for key, value in zip(axes, values, strict=True):
        names = key.split(",")
        found |= zip(names, value, strict=True) if len(names) > 1 else [(key, value)]
    return found


def read_suites() -> dict[str, list[Function]]:
    """Return the test functions by suite."""
    suites = {}
    for path in sorted(DATA.glob("*.json")):
        data = json.loads(path.read_text())
        suites[data["suite"]] = [
            _function(data["suite"], file, name, dict(entry))
            for file, entries in data["tests"].items()
            for name, entry in entries.items()
        ]
    return suites


def _function(suite: str, file: str, name: str, entry: dict[str, Any]) -> Function:
    asks = entry.pop("asks", {})
    given = {asks: "True"} if isinstance(asks, str) else asks
    return Function(
        suite, file, name, **entry | ({"skip": Condition(entry["skip"])} if "skip" in entry else {}),
        asks={request: Condition(text) for request, text in given.items() if isinstance(text, str)},
        counted={request: count for request, count in given.items() if isinstance(count, int)},
    )  # fmt: skip
