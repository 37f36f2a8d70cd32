"""From a contract to the variants that have to be compiled: the points of its axes that some call can reach."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aot.manifest.schema import OpSpec
from aot_runtime.call.rules import pick_value
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import UNKNOWN, parse, query_name

from .contract import innermost_of, presence_of


@dataclass(frozen=True)
class VariantSpec:
    """One variant to compile.

    Attributes:
        point: dtype variables and axes → value.
        constants: `point` and the config's constexprs, `arch`, and the answers of `given` and `elsize`.
        options: the config's compiler options, overrides applied.
    """

    op: str
    launch: int
    config: int
    aligned: bool
    point: tuple[tuple[str, records.Value], ...]
    constants: tuple[tuple[str, records.Value], ...]
    options: tuple[tuple[str, records.Value], ...]

    @property
    def label(self) -> str:
        """A readable name, e.g. `flash_attention[T=float16, HEAD_DIM=64, …] aligned`."""
        point = ", ".join(f"{name}={value}" for name, value in self.point)
        return f"{self.op}[{point}] {'aligned' if self.aligned else 'general'} config {self.config}"


@dataclass(frozen=True)
class Enumeration:
    """The variants of one op, and the axis values that none of them needs."""

    variants: tuple[VariantSpec, ...]
    unused: tuple[tuple[str, records.Value], ...]


def enumerate_variants(op: records.Op, spec: OpSpec, arch: str, full: bool = False) -> Enumeration:
    """Every variant that a call can reach and no `exclude`, `rare` or `deny` leaves out, in a stable order.

    Args:
        full: with those that `rare` leaves out.

    Raises `ExpressionError` where an expression has no value at some point (a division by zero).
    """
    variants: list[VariantSpec] = []
    used: set[tuple[str, records.Value]] = set()
    for aligned, point in _points(op, spec):
        known: dict[str, Any] = {**point, "aligned": aligned, **_answers(op, point)}
        if _any(spec.exclude, known) or not _reachable(op, known):
            continue
        used |= set(point.items())  # needed on some architecture and in a full build, if not in this one
        known["arch"] = arch
        if _any([*spec.exclude, *(() if full else spec.rare)], known) or not _reachable(op, known):
            continue
        variants += _launch_variants(op, spec, known, point, aligned)
    every = [(name, value) for name, values in _axes(op).items() for value in values]
    return Enumeration(tuple(variants), tuple(item for item in every if item not in used))


def _axes(op: records.Op) -> dict[str, tuple[records.Value, ...]]:
    return {**op.dtypes, **{axis.name: axis.values for axis in op.axes}}


def _points(op: records.Op, spec: OpSpec) -> Iterator[tuple[bool, dict[str, records.Value]]]:
    axes = _axes(op)
    for aligned in (True, False):
        if ("aligned" if aligned else "general") in spec.specialisations:
            for values in itertools.product(*axes.values()):
                yield aligned, dict(zip(axes, values, strict=True))


def _any(conditions: Iterable[Any], known: Mapping[str, Any]) -> bool:
    return any(parse(str(text)).partial(known) not in (UNKNOWN, False, 0) for text in conditions)


def _reachable(op: records.Op, known: Mapping[str, Any]) -> bool:
    """Whether `pick` can give this point: where the rest of the point decides a pick, it must agree."""
    for axis in op.axes:
        earlier = {name: value for name, value in known.items() if name != axis.name}
        picked = parse(axis.pick).partial(earlier)
        if picked is not UNKNOWN and pick_value(axis, picked) != known[axis.name]:
            return False
    return True


def _answers(op: records.Op, point: Mapping[str, records.Value]) -> dict[str, Any]:
    """What the point says to `given` and `innermost` (where an axis is picked by it) and `elsize`, by `query_name`."""
    decided = {axis.pick: bool(point[axis.name]) for axis in op.axes if axis.rule == "equal"}
    given = {
        query_name("given", tensor.name): decided[presence_of(tensor)]
        for tensor in op.tensors
        if presence_of(tensor) in decided
    }
    dtypes = {tensor.name: tensor.dtype for tensor in op.tensors} | {name: name for name in op.dtypes}
    sizes = {query_name("elsize", name): DTYPES[str(point.get(dtype, dtype))] for name, dtype in dtypes.items()}
    return given | sizes | _innermost_answers(op, decided)


def _innermost_answers(op: records.Op, decided: Mapping[str, bool]) -> dict[str, bool]:
    """Whether each dim is the innermost of its tensor: axes say it of all but the last that may be, by `query_name`."""
    answers = {}
    for tensor in op.tensors:
        for dim in tensor.innermost:
            others = [decided[innermost_of(tensor, other)] for other in tensor.innermost[:-1] if other != dim]
            chosen = decided.get(innermost_of(tensor, dim), not any(others))
            answers[query_name("innermost", tensor.name, str(dim))] = chosen
    return answers


def _launch_variants(
    op: records.Op, spec: OpSpec, known: dict[str, Any], point: dict[str, records.Value], aligned: bool
) -> Iterator[VariantSpec]:
    for index, launch in enumerate(op.launches):
        if launch.when and parse(launch.when).partial(known) is False:
            continue
        for number, config in enumerate(launch.configs):
            holds = parse(config.when).partial(known) if config.when else True
            if holds is False:
                continue
            constants = {**known, **config.values}
            effects = [
                item
                for item in spec.overrides
                if parse(str(item.when)).partial({**constants, "config": config.name}) not in (UNKNOWN, False, 0)
            ]
            if any(item.deny for item in effects):
                continue
            options = dict(config.options)
            for item in effects:
                options |= item.options
            yield VariantSpec(
                op.name,
                index,
                number,
                aligned,
                tuple(point.items()),
                tuple(constants.items()),
                tuple(sorted(options.items())),
            )
            if holds is True:
                break
