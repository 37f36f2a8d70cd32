"""`--filter`: which of a manifest's variants are built."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from aot.manifest.loading import Manifest
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import nearest

from .variants import VariantSpec

Filters = Mapping[str, frozenset[str]]
"""Axis, dtype variable, `dtype` (any dtype variable) or `op` → the values that are built; all in lower case."""


def parse_filters(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """`a=1|2,b=x` → {a: {1, 2}, b: {x}}, lower case. Raises ValueError."""
    filters: dict[str, frozenset[str]] = {}
    for text in texts:
        for item in text.split(","):
            axis, equals, values = item.partition("=")
            name, wanted = axis.strip().lower(), frozenset(value.strip().lower() for value in values.split("|"))
            if not equals or not name or "" in wanted:
                raise ValueError(f"'{item}' is not axis=value; write e.g. 'head_dim=64|128,dtype=float16'")
            filters[name] = filters.get(name, frozenset()) | wanted
    return filters


@dataclass(frozen=True)
class _Known:
    """What a filter may name: each axis with its values, in lower case; and which axes are of dtypes."""

    values: Mapping[str, frozenset[str]]
    dtypes: frozenset[str]


def resolve_filters(manifests: Iterable[Manifest], filters: Filters) -> tuple[dict[str, frozenset[str]], list[str]]:
    """(the filters with each dtype under its own name, what is wrong with them). `half` and `fp16` are `float16`."""
    known = _known(manifests)
    resolved: dict[str, frozenset[str]] = {}
    faults = []
    for name, wanted in filters.items():
        values = known.values.get(name)
        if values is None:
            faults.append(f"--filter: no manifest has an axis '{name}'{nearest(name, known.values)}")
            continue
        resolved[name] = frozenset(_dtype_name(value) if name in known.dtypes else value for value in wanted)
        for value in sorted(resolved[name] - values):
            faults.append(f"--filter: {name} is never '{value}'{nearest(value, values)}")
    return resolved, faults


def passes(op: records.Op, variant: VariantSpec, filters: Filters) -> bool:
    """Whether a variant has one of the wanted values on each axis of a filter; an axis that its op lacks is no bar."""
    point = {name.lower(): {str(value).lower()} for name, value in (*variant.point, ("op", variant.op))}
    point["dtype"] = {str(value).lower() for name, value in variant.point if name in op.dtypes}
    return all(name not in point or point[name] & wanted for name, wanted in filters.items())


def _known(manifests: Iterable[Manifest]) -> _Known:
    values: defaultdict[str, set[str]] = defaultdict(set)
    dtypes = {"dtype"}
    for manifest in manifests:
        for source in manifest.sources:
            values["op"].add(source.name.lower())
            for variable, names in source.spec.dtypes.items():
                dtypes.add(variable.lower())
                values[variable.lower()].update(names)
                values["dtype"].update(names)
            for axis, spec in source.spec.constexprs.items():
                values[axis.lower()].update(str(value).lower() for value in spec.values)
    return _Known({name: frozenset(items) for name, items in values.items()}, frozenset(dtypes))


def _dtype_name(text: str) -> str:
    """A dtype's name by any that numpy has for it, or `fp16`, `bf16`; any other text as it is."""
    name = re.sub(r"^(b?)fp?(?=\d\d)", r"\1float", text)
    if name in DTYPES:
        return name
    try:
        return np.dtype(text).name
    except TypeError:
        return text
