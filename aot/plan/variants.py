"""Enumerate the variants of a contract: the points of its axes that some call can reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aot.manifest.schema import OpSpec
from aot_runtime.call.rules import pick_value
from aot_runtime.contract import records
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import parse, query_name
from aot_runtime.contract.partial_evaluation import UNKNOWN, partial_value
from aot_runtime.errors import AotError, ExpressionError

from .contract import innermost_of, presence_of

MAX_STEPS = 20_000
"""Maximum number of points, and parts of points, that are examined for an op. The largest shipped op has 642."""


class TooManyPointsError(AotError):
    """The axes of an op have too many combinations to enumerate."""


@dataclass(frozen=True)
class VariantSpec:
    """A variant to compile.

    Attributes:
        point: dtype variables and axes → value.
        constants: `point`, the config's constexprs, properties of the architecture, and the answers of `given` and
            `elsize`.
        options: the config's compiler options, with overrides applied.
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
        """Readable name, such as `flash_attention[T=float16, HEAD_DIM=64, …] aligned`."""
        point = ", ".join(f"{name}={value}" for name, value in self.point)
        return f"{self.op}[{point}] {'aligned' if self.aligned else 'general'} config {self.config}"


@dataclass(frozen=True)
class Enumeration:
    """The variants of one op, and the axis values that none of them needs."""

    variants: tuple[VariantSpec, ...]
    unused: tuple[tuple[str, records.Value], ...]


def enumerate_variants(op: records.Op, spec: OpSpec, arch: str) -> Enumeration:
    """Return every variant that a call can reach and that no `exclude` or `deny` removes, in a stable order.

    Raises `ExpressionError` if an expression has no value at some point (a division by zero), and `TooManyPointsError`.
    """
    search = _Search(op, spec)
    launches = _Launches(op, spec)
    variants: list[VariantSpec] = []
    used: set[tuple[str, records.Value]] = set()
    for aligned, known in search.points():
        point = {name: known[name] for name in search.axes}
        used |= point.items()  # needed on some architecture, if not on this one
        # What a call decides, it decides by what its device has: a partition of a GPU gets its variants, too.
        decided = known | ARCHITECTURES[arch].device_constants
        known |= ARCHITECTURES[arch].constants
        if not any(map(_truth, (item.value(known) for item in search.excluded))) and search.reachable(decided):
            variants += launches.variants(known, decided, point, aligned)
    every = [(name, value) for name, values in search.axes.items() for value in values]
    return Enumeration(tuple(variants), tuple(item for item in every if item not in used))


class _Condition:
    """An expression that caches its values by the few names that it depends on."""

    def __init__(self, text: str):
        self._expression = parse(text)
        self.reads = tuple(sorted(self._expression.reads))
        self._values: dict[tuple[Any, ...], Any] = {}

    def value(self, known: Mapping[str, Any]) -> Any:
        """Return the value if `known` decides it, else `UNKNOWN`. Raises `ExpressionError`."""
        key = tuple([known.get(name, UNKNOWN) for name in self.reads])
        if key not in self._values:
            self._values[key] = partial_value(self._expression, known)
        return self._values[key]


@dataclass(frozen=True)
class _Answer:
    """The answer of a point to `given`, `innermost` or `elsize`, which needs the values of `needs`."""

    name: str
    needs: frozenset[str]
    value: Callable[[Mapping[str, Any]], Any]


class _Search:
    """A search for the points of an op's axes, axis by axis, which prunes combinations as early as possible."""

    def __init__(self, op: records.Op, spec: OpSpec):
        self.axes: dict[str, tuple[records.Value, ...]] = {**op.dtypes, **{axis.name: axis.values for axis in op.axes}}
        self.excluded = [_Condition(str(text)) for text in spec.exclude]
        self._picks = [(axis, _Condition(axis.pick)) for axis in op.axes]
        self._specialisations = [name for name in ("aligned", "general") if name in spec.specialisations]
        self._levels = self._make_levels(_answers(op))
        self._steps = 0

    def points(self) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Yield (aligned, known values) of each point that a call can reach on some architecture."""
        for specialisation in self._specialisations:
            aligned = specialisation == "aligned"
            for known in self._below(0, {"aligned": aligned}):
                if not any(_truth(item.value(known)) for item in self.excluded) and self.reachable(known):
                    yield aligned, known

    def reachable(self, known: Mapping[str, Any]) -> bool:
        """Return True if `pick` can give this point: a pick that the rest of the point decides must agree."""
        return all(_agrees(axis, pick, known) for axis, pick in self._picks)

    def _below(self, depth: int, known: dict[str, Any]) -> Iterator[dict[str, Any]]:
        level = self._levels[depth]
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooManyPointsError(
                f"its axes have more than {MAX_STEPS} combinations; use fewer values, or more `exclude`"
            )
        known |= {answer.name: answer.value(known) for answer in level.answers}
        if not level.possible(known):
            return
        if depth == len(self.axes):
            yield known
            return
        name = list(self.axes)[depth]
        for value in self.axes[name]:
            yield from self._below(depth + 1, {**known, name: value})

    def _make_levels(self, answers: list[_Answer]) -> list[_Level]:
        """Make the level reached when the first 0, 1, 2, … axes have a value."""
        levels = []
        assigned: set[str] = set()
        for depth in range(len(self.axes) + 1):
            fresh = {"aligned"} if depth == 0 else {list(self.axes)[depth - 1]}
            assigned |= fresh
            new = [answer for answer in answers if answer.needs <= assigned and (depth == 0 or answer.needs & fresh)]
            fresh |= {answer.name for answer in new}
            levels.append(
                _Level(
                    new,
                    [item for item in self.excluded if fresh & {*item.reads}],
                    [
                        item
                        for item in self._picks
                        if item[0].name in assigned and fresh & {item[0].name, *item[1].reads}
                    ],
                )
            )
        return levels


@dataclass(frozen=True)
class _Level:
    """The answers and conditions that become known with one more axis."""

    answers: list[_Answer]
    excluded: list[_Condition]
    picks: list[tuple[records.Axis, _Condition]]

    def possible(self, known: Mapping[str, Any]) -> bool:
        """Return True unless a known condition excludes the points below. A condition without a value may get one
        later, or be guarded by another condition; it is decided for whole points.
        """
        try:
            return not any(_truth(item.value(known)) for item in self.excluded) and all(
                _agrees(axis, pick, known) for axis, pick in self.picks
            )
        except ExpressionError:
            return True


def _truth(value: Any) -> bool:
    return value is not UNKNOWN and value not in (False, 0)


def _agrees(axis: records.Axis, pick: _Condition, known: Mapping[str, Any]) -> bool:
    picked = pick.value(known)
    return picked is UNKNOWN or pick_value(axis, picked) == known[axis.name]


def _answers(op: records.Op) -> list[_Answer]:
    """Return the answers to `given` and `innermost` for tensors that pick axes, and to `elsize`."""
    decides = {axis.pick: axis.name for axis in op.axes if axis.rule == "equal"}
    return [
        *(
            _yes(query_name("given", tensor.name), decides[presence_of(tensor)])
            for tensor in op.tensors
            if presence_of(tensor) in decides
        ),
        *(_size(tensor.name, tensor.dtype, op) for tensor in op.tensors),
        *(_size(name, name, op) for name in op.dtypes),
        *(_innermost(tensor, dim, decides) for tensor in op.tensors for dim in tensor.innermost),
    ]


def _yes(name: str, axis: str) -> _Answer:
    return _Answer(name, frozenset({axis}), lambda known: bool(known[axis]))


def _size(name: str, dtype: str, op: records.Op) -> _Answer:
    needs = frozenset({dtype} & op.dtypes.keys())
    return _Answer(query_name("elsize", name), needs, lambda known: DTYPES[str(known.get(dtype, dtype))].size)


def _innermost(tensor: records.Tensor, dim: int, decides: Mapping[str, str]) -> _Answer:
    """Return the answer to `innermost`: axes decide it for every candidate dim except the last."""
    name = query_name("innermost", tensor.name, str(dim))
    if innermost_of(tensor, dim) in decides:
        return _yes(name, decides[innermost_of(tensor, dim)])
    others = [decides[innermost_of(tensor, other)] for other in tensor.innermost[:-1] if other != dim]
    return _Answer(name, frozenset(others), lambda known: not any(known[axis] for axis in others))


class _Launches:
    """The launches of an op at its points."""

    def __init__(self, op: records.Op, spec: OpSpec):
        self.op = op
        self._whens = [_when(launch.when) for launch in op.launches]
        self._configs = [[(config, _when(config.when)) for config in launch.configs] for launch in op.launches]
        self._overrides = [(item, _Condition(str(item.when))) for item in spec.overrides]

    def variants(
        self, known: dict[str, Any], decided: dict[str, Any], point: dict[str, records.Value], aligned: bool
    ) -> Iterator[VariantSpec]:
        """Return the variants of a point: one for each launch and each of its configs that a call may get.

        decided: values that are the same in every call. known: these, and values that are compiled in.
        """
        for index, (launched, configs) in enumerate(zip(self._whens, self._configs, strict=True)):
            if launched.value(decided) is False:
                continue
            costed = False
            for number, (config, when) in enumerate(configs):
                holds = when.value(decided)
                if holds is False or (costed and not config.cost):
                    continue
                constants = {**known, **config.values}
                options = self._options(config, constants)
                if options is None:
                    continue
                yield VariantSpec(
                    self.op.name, index, number, aligned, tuple(point.items()), tuple(constants.items()), options
                )
                if holds is True:
                    if not config.cost:
                        break
                    costed = True

    def _options(self, config: records.Config, constants: Mapping[str, Any]) -> tuple[tuple[str, Any], ...] | None:
        """Return the compiler options of a config at a point, with overrides applied; None if one denies it."""
        known = {**constants, "config": config.name}
        effects = [item for item, when in self._overrides if _truth(when.value(known))]
        if any(item.deny for item in effects):
            return None
        options = dict(config.options)
        for item in effects:
            options |= item.options
        return tuple(sorted(options.items()))


def _when(text: str) -> _Condition:
    return _Condition(text or "True")
