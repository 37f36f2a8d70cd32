"""Advice on a call without a variant: the changes to its arguments that would lead to a built one.

Arguments that decide the axes are changed singly, in pairs and in triples. Each changed call is planned, so all
advice given is known to work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import combinations, islice
from math import comb, prod
from typing import Any

import msgspec

from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import parse, query_name
from aot_runtime.contract.names import Scope, axis_names, stride_position
from aot_runtime.contract.records import Op, Scalar, Variant

from .changes import Change

_MOST = 3
"""Maximum number of suggestions in an error."""
_TRIED = 1500
"""Maximum number of calls to try for each number of changed arguments.
"""

Fits = Callable[[Mapping[str, Any], bool], bool]
"""Quick test of (names, may be aligned): False if no variant is built for these values."""
Serves = Callable[[Iterable[Change]], bool]
"""Exact but slower test: True if the call with these changes can be planned."""


class Asked(msgspec.Struct, frozen=True):
    """A call that no variant fits.

    Attributes:
        names: the value of every name.
        given: the tensors passed.
        misaligned: the reasons why the call is not aligned.
    """

    names: Mapping[str, Any]
    given: Collection[str]
    misaligned: tuple[str, ...]


def advice(op: Op, variants: Iterable[Variant], asked: Asked, fits: Fits, serves: Serves) -> list[str]:
    """Return the advice for a call's error, line by line."""
    built = list(variants)
    if asked.misaligned and fits(asked.names, True) and serves([Change("", "", {}, aligns=True)]):
        return [f"it is built for aligned calls only: {reason}" for reason in asked.misaligned]
    changes = list(islice(_changes(op, built, asked), _TRIED))
    tried = (_ways(changes, count, asked, fits, serves) for count in (1, 2, 3) if comb(len(changes), count) <= _TRIED)
    ways = next(filter(None, tried), [])
    lines = [f"it is built for the same call with {way}" for way in ways[:_MOST]]
    lines += [f"and for {len(ways) - _MOST} others that are as near"] if len(ways) > _MOST else []
    if not ways and (deciding := _deciding(op, asked.given)):
        lines = [f"built variants differ in {deciding}"]
    return [*lines, *_float8(op, built, asked.names, serves)]


def _ways(changes: list[Change], count: int, asked: Asked, fits: Fits, serves: Serves) -> list[str]:
    found: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for group in combinations(changes, count):
        subjects = tuple(change.subject for change in group)
        names = {name: value for change in group for name, value in change.names.items()}
        aligned = not asked.misaligned or any(change.aligns for change in group)
        if len({*subjects}) == count and fits({**asked.names, **names}, aligned) and serves(group):
            found.setdefault(subjects, []).append(tuple(change.value for change in group))
    return [way for subjects, values in found.items() for way in _told(subjects, values)]


def _told(subjects: tuple[str, ...], found: list[tuple[str, ...]]) -> Iterator[str]:
    values = [tuple(dict.fromkeys(column)) for column in zip(*found, strict=True)]
    together = [tuple((value,) for value in row) for row in found]
    for row in [values] if prod(map(len, values)) == len(found) else together:
        yield " and ".join(subject + " or ".join(words) for subject, words in zip(subjects, row, strict=True))


# Candidate changes


def _changes(op: Op, built: list[Variant], asked: Asked) -> Iterator[Change]:
    read = _read(op, [name for name in axis_names(op) if name not in op.dtypes])
    if asked.misaligned:
        yield Change("aligned arguments", f" ({'; '.join(asked.misaligned)})", {}, aligns=True)
    for variable in op.dtypes:
        yield from _dtypes(op, variable, built, asked)
    for scalar in op.scalars:
        if scalar.name in read:
            for value in _values(op, scalar, built, asked.names[scalar.name]):
                yield Change(f"{scalar.name}=", str(value), {scalar.name: value})
    yield from _optional(op, read, asked)
    yield from _innermost(op, asked)
    limits = {limit.name: (limit.min, limit.max) for limit in op.dims}
    for name, source in Scope.of(op).dims.items():
        low, high = limits.get(name, (1, 2**31 - 1))
        if name in read and source.tensor in asked.given:
            for value in _numbers(op, name, built):
                if value != asked.names[name] and low <= value <= high:
                    yield Change(f"{name} (dim {source.position} of {source.tensor}) of ", str(value), {name: value})


def _dtypes(op: Op, variable: str, built: list[Variant], asked: Asked) -> Iterator[Change]:
    there = {variant.axis_values[variable] for variant in built}
    tensors = [item.name for item in op.tensors if item.dtype == variable]
    subject = ", ".join(item.name for item in op.tensors if item.name in asked.given and item.name in tensors)
    for dtype in op.dtypes[variable]:
        if dtype in there and dtype != asked.names[variable]:
            yield Change(f"{subject} of ", dtype, _typed(op, variable, dtype))


def _typed(op: Op, variable: str, dtype: str) -> dict[str, Any]:
    """Return the names that change if a dtype variable becomes `dtype`."""
    subjects = (variable, *(item.name for item in op.tensors if item.dtype == variable))
    return {variable: dtype, **{query_name("elsize", item): DTYPES[dtype].size for item in subjects}}


def _values(op: Op, scalar: Scalar, built: list[Variant], given: Any) -> Iterator[Any]:
    if scalar.type in ("flag", "i1"):
        yield not given
    elif scalar.type == "choice":
        yield from (choice for choice in scalar.choices if choice != given)
    else:
        for value in dict.fromkeys([*_literal(scalar.default), *_numbers(op, scalar.name, built), 0]):
            low, high = scalar.min, scalar.max
            if value != given and (low is None or value >= low) and (high is None or value <= high):
                yield value


def _literal(text: str) -> list[int]:
    try:
        return [int(text)]
    except ValueError:
        return []


def _numbers(op: Op, name: str, built: list[Variant]) -> list[int]:
    axes = [axis.name for axis in op.axes if name in _read(op, [axis.name])]
    found = {variant.axis_values[axis] for axis in axes for variant in built}
    return sorted(value for value in found if isinstance(value, int) and not isinstance(value, bool))


def _optional(op: Op, read: Collection[str], asked: Asked) -> Iterator[Change]:
    for tensor in op.tensors:
        if tensor.optional and query_name("given", tensor.name) in read:
            there = tensor.name in asked.given
            yield Change(f"{'no ' * there}{tensor.name}", "", {query_name("given", tensor.name): not there})


def _innermost(op: Op, asked: Asked) -> Iterator[Change]:
    for tensor in op.tensors:
        dims = [*map(str, range(len(tensor.shape))), *(dim.extent for dim in tensor.shape)]
        queries = {query_name("innermost", tensor.name, dim): dim for dim in dims}
        there = {name: stride_position(tensor, dim) for name, dim in queries.items() if name in asked.names}
        for position in tensor.innermost if there and tensor.name in asked.given else ():
            names = {name: place == position for name, place in there.items()}
            if any(asked.names[name] != value for name, value in names.items()):
                yield Change(
                    f"stride 1 in dim {position} of {tensor.name}", "", names, innermost={tensor.name: position}
                )


# Dependencies of axes


def _read(op: Op, names: Iterable[str]) -> set[str]:
    """Return everything that the named axes depend on: names of the call, and queries by their `query_name`."""
    texts = {axis.name: axis.pick for axis in op.axes} | {item.name: item.value for item in op.derived}
    texts |= {item.name: text for item in op.alternatives for text in item.values}
    todo, seen = list(names), set[str]()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            expression = parse(texts.get(name, "0"))
            todo += [*expression.names, *(query_name(*query) for query in expression.queries)]
    return seen


def _deciding(op: Op, given: Collection[str]) -> str:
    read = _read(op, axis_names(op))
    typed = [item.name for item in op.tensors if item.name in given and item.dtype in op.dtypes]
    dims = [
        f"{name} (dim {source.position} of {source.tensor})"
        for name, source in Scope.of(op).dims.items()
        if name in read
    ]
    scalars = [scalar.name for scalar in op.scalars if scalar.name in read]
    return ", ".join([*([f"the dtype of {', '.join(typed)}"] if typed else []), *scalars, *dims])


def _float8(op: Op, built: list[Variant], names: Mapping[str, Any], serves: Serves) -> Iterator[str]:
    for variable in (name for name in axis_names(op) if name in op.dtypes):
        dtype, there = names[variable], {variant.axis_values[variable] for variant in built}
        other = DTYPES[dtype].other_float8
        if dtype not in there and other in there and serves([Change("", "", _typed(op, variable, other))]):
            yield f"{variable} is {dtype}: aot_models.float8.cast makes it {other}, which is built"
