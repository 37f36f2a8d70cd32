"""What to do about a call that nothing was built for: the nearest that is built, and which arguments decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aot_runtime.contract.dtypes import OTHER_FLOAT8
from aot_runtime.contract.expressions import parse
from aot_runtime.contract.names import Scope, axis_names
from aot_runtime.contract.records import Op, Value, Variant

_MOST = 3
"""Neighbours that are told."""


def advice(
    op: Op,
    variants: Iterable[Variant],
    asked: Iterable[tuple[int, Mapping[str, Value]]],
    misaligned: Iterable[str],
    names: Mapping[str, Any],
) -> list[str]:
    """Lines for the error of a call.

    Args:
        asked: (launch, the values of its axes) of what is not built.
        misaligned: why the aligned specialisation does not serve it.
        names: dims, scalars and dtype variables of the call.
    """
    built = list(variants)
    lines: list[str] = []
    for launch, values in asked:
        points = {tuple(v.axis_values[name] for name in values): None for v in built if v.launch == launch}
        if tuple(values.values()) in points:
            lines += (f"it is built for aligned calls only: {reason}" for reason in misaligned)
        lines += _nearest(op, tuple(values.items()), points)
    return [*dict.fromkeys(lines), *_float8(op, built, names)]


def _nearest(op: Op, asked: tuple[tuple[str, Value], ...], points: Iterable[tuple[Value, ...]]) -> Iterator[str]:
    """Of each point that differs from what is asked in the fewest axes: where, and what decides there."""
    changes = [
        {name: there for (name, value), there in zip(asked, point, strict=True) if there != value} for point in points
    ]
    fewest = min((len(change) for change in changes if change), default=0)
    nearest = [change for change in changes if len(change) == fewest > 0]
    for change in nearest[:_MOST]:
        told = ", ".join(f"{name}={value} ({_source(op, name)})" for name, value in change.items())
        yield f"built is the same with {told}"
    if len(nearest) > _MOST:
        yield f"and {len(nearest) - _MOST} others that are as near"


def _source(op: Op, name: str) -> str:
    """What of a call decides the value of an axis or dtype variable."""
    if name in op.dtypes:
        return f"the dtype of {' and '.join(tensor.name for tensor in op.tensors if tensor.dtype == name)}"
    axis = next(axis for axis in op.axes if axis.name == name)
    rule = axis.pick if axis.rule == "equal" else f"the {_WORDS[axis.rule]} {axis.pick}"
    return "; ".join([f"picked by {rule}", *_meanings(op, axis.pick)])


_WORDS = {">=": "smallest >=", ">": "smallest >", "<=": "largest <=", "<": "largest <"}


def _meanings(op: Op, text: str) -> Iterator[str]:
    """Where each dim of an expression comes from."""
    dims = Scope.of(op).dims
    for name in sorted(parse(text).names & dims.keys()):
        yield f"{name} is dim {dims[name].position} of {dims[name].tensor}"


def _float8(op: Op, built: list[Variant], names: Mapping[str, Any]) -> Iterator[str]:
    """How to go on where float8 is built in the other flavour only."""
    for variable in (name for name in axis_names(op) if name in op.dtypes):
        dtype, there = names[variable], {variant.axis_values[variable] for variant in built}
        other = OTHER_FLOAT8.get(dtype, "")
        if dtype not in there and other in there:
            yield f"{variable} is {dtype}: aot_runtime.float8.cast makes it {other}, which is built"
