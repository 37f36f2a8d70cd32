"""The choice among a call's alternatives by cost."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import msgspec

from aot_runtime.contract.expressions import evaluator

from .choosing import Choosing, Layouts, Search, Tried, Way


def cheapest_way(choosing: Choosing, names: Mapping[str, Any], search: Search, layouts: Layouts) -> Way | None:
    """Return the way to make a call that costs least, over all combinations of its alternatives; of equal ones, the
    first.

    Return None if for each combination a variant is not built, or needs a map of an unmappable tensor. The reasons of
    the first combination go to `search`.

    Args:
        names: values of all names but alternatives and axes, including `aligned`.
    """
    best: Way | None = None
    tried: list[Tried] = []
    others = Search()
    for values in _combinations(choosing, names):
        way = choosing.way({**names, **values}, others if tried else search, layouts)
        tried.append((values, None if way is None else way.cost))
        if way is not None and (best is None or way.cost < best.cost):
            best = way
    return None if best is None else msgspec.structs.replace(best, tried=tuple(tried))


def _combinations(choosing: Choosing, names: Mapping[str, Any]) -> list[dict[str, int]]:
    known = [item.name for item in choosing.op.alternatives]
    lists = [
        dict.fromkeys(choosing.rules.derived(item.name, evaluator(value)(names)) for value in item.values)
        for item in choosing.op.alternatives
    ]
    return [dict(zip(known, values, strict=True)) for values in itertools.product(*lists)]
