"""All ways to make a call among which costs choose: combinations of alternatives and of configs with a cost."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from aot_runtime.call.alternatives import combinations
from aot_runtime.call.choosing import ConfigChoice, Decision, Search
from aot_runtime.call.op import build_op
from aot_runtime.call.planner import Planner
from aot_runtime.opening import Bundle


@dataclass(frozen=True)
class PlannedWay:
    """A way to make a call. text: its alternatives and configs, which identify it among those of the call."""

    text: str
    decision: Decision


def ways_of(planner: Planner, decision: Decision) -> Iterator[PlannedWay]:
    """Yield all ways to make a call whose plan is `decision`, in its specialisation."""
    choosing = planner.choosing
    for values in combinations(choosing, decision.names):
        way = choosing.way({**decision.names, **values}, Search(), decision.layouts)
        if way is None:
            continue
        for chosen in itertools.product(*(_configs(tried) for _, tried in way.launches)):
            launches = tuple((item, (config,)) for (item, _), config in zip(way.launches, chosen, strict=True))
            found = choosing.decision(msgspec.structs.replace(way, launches=launches), (), decision.layouts)
            yield PlannedWay(way_text(values, found), found)


def way_text(values: dict[str, int], decision: Decision) -> str:
    """Identify a way: its alternatives, and the config of each launch."""
    parts = [f"{name}={value}" for name, value in values.items()]
    return " ".join([*parts, *(f"{item.index}:{item.tried[-1].config.name}" for item in decision.launches)])


def _configs(tried: tuple[ConfigChoice, ...]) -> list[ConfigChoice]:
    if tried[-1].cost is None:
        return [tried[-1]]
    return sorted((item for item in tried if item.cost is not None and item.variant), key=lambda item: item.number)


def run_of(bundle: Bundle, planner: Planner, decision: Decision) -> Callable[..., Any]:
    """Return a function like the bundle's op, all calls of which are made as a decision says."""
    fixed: Any = copy.copy(planner)
    fixed.decide = lambda *_: decision
    load: Any = partial(bundle.load)
    load.streams = set()
    return build_op(fixed, bundle.device, load)
