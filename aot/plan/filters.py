"""`--filter`: select variants of a manifest."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from aot.manifest.loading import Manifest
from aot.manifest.optional_tensor_axes import op_axes
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import nearest

from .variants import VariantSpec

Filters = Mapping[str, frozenset[str]]
"""Axis, dtype variable, `dtype` (any dtype variable) or `op` → the values that are built. Case does not matter."""


def parse_filters(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """`A=1|2,b=X` → {A: {1, 2}, b: {X}}. Raises ValueError."""
    filters: dict[str, frozenset[str]] = {}
    for text in texts:
        for item in text.split(","):
            axis, equals, values = item.partition("=")
            name, wanted = axis.strip(), frozenset(value.strip() for value in values.split("|"))
            if not equals or not name or "" in wanted:
                raise ValueError(f"'{item}' is not axis=value; write, for example, 'head_dim=64|128,dtype=float16'")
            filters[name] = filters.get(name, frozenset()) | wanted
    return filters


@dataclass(frozen=True)
class _Known:
    """The names that a filter may use, in lower case.

    Attributes:
        axes: axes as manifests spell them.
        values: values of each axis as manifests spell them.
        dtypes: axes of dtypes.
    """

    axes: Mapping[str, str]
    values: Mapping[str, Mapping[str, str]]
    dtypes: frozenset[str]


def resolve_filters(manifests: Iterable[Manifest], filters: Filters) -> tuple[dict[str, frozenset[str]], list[str]]:
    """Return (filters with canonical names of dtypes, their faults). `half` and `fp16` are `float16`."""
    known = _known(manifests)
    resolved: dict[str, frozenset[str]] = {}
    faults = []
    for name, wanted in filters.items():
        axis = name.lower()
        values = known.values.get(axis)
        if values is None:
            faults.append(f"--filter: no manifest has an axis '{name}'{_nearest(axis, known.axes)}")
            continue
        written = {text.lower(): text for text in wanted}
        if axis in known.dtypes:
            written = {name: name for name in map(_dtype_name, written)}
        resolved[axis] = resolved.get(axis, frozenset()) | written.keys()
        for value in sorted(written.keys() - values.keys()):
            faults.append(f"--filter: {known.axes[axis]} is never '{written[value]}'{_nearest(value, values)}")
    return resolved, faults


def passes(op: records.Op, variant: VariantSpec, filters: Filters) -> bool:
    """Return True if a variant has a wanted value on each axis of a filter. Axes that its op lacks are ignored."""
    point = {name.lower(): {str(value).lower()} for name, value in (*variant.point, ("op", variant.op))}
    point["dtype"] = {str(value).lower() for name, value in variant.point if name in op.dtypes}
    return all(
        name.lower() not in point or point[name.lower()] & {value.lower() for value in wanted}
        for name, wanted in filters.items()
    )


def _known(manifests: Iterable[Manifest]) -> _Known:
    spelled: defaultdict[str, dict[str, str]] = defaultdict(dict)  # axis, as it is spelled → its values
    dtypes = {"dtype"}
    for manifest in manifests:
        for source in manifest.sources:
            spelled["op"][source.name.lower()] = source.name
            for variable, names in source.spec.dtypes.items():
                dtypes.add(variable.lower())
                for axis in (variable, "dtype"):
                    spelled[axis].update((name, name) for name in names)
            for axis, spec in op_axes(source.spec).items():
                spelled[axis].update((str(value).lower(), str(value)) for value in spec.values)
    axes = {axis.lower(): axis for axis in spelled}
    values: dict[str, dict[str, str]] = {}
    for axis, items in spelled.items():
        values.setdefault(axis.lower(), {}).update(items)
    return _Known(axes, values, frozenset(dtypes))


def _nearest(name: str, spelled: Mapping[str, str]) -> str:
    """Suggest the nearest name, compared in lower case and shown as spelled."""
    close = difflib.get_close_matches(name, spelled, n=1)
    return f"; did you mean '{spelled[close[0]]}'?" if close else nearest("", sorted(spelled.values()))


def _dtype_name(text: str) -> str:
    """Return a dtype's name, given any of numpy's names for it, `fp16` or `bf16`; other text is returned unchanged."""
    name = re.sub(r"^(b?)fp?(?=\d\d)", r"\1float", text)
    if name in DTYPES:
        return name
    try:
        return np.dtype(text).name
    except TypeError:
        return text
