"""`--for`: find the variants that the calls of a calls file get, with the runtime's planner."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from aot.manifest.calls import CallEntry, CallEntrySpec
from aot.manifest.yamlfile import Key, ManifestError, YamlFile
from aot.targets import Target
from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.contract import records
from aot_runtime.contract.expressions import nearest
from aot_runtime.contract.gpu_names import usual_cus
from aot_runtime.contract.names import Scope
from aot_runtime.errors import ArgumentError

from .cases import NUM_CUS, Maps, planning_index
from .existing_bundle import Present
from .variants import VariantSpec


@dataclass(frozen=True)
class WantedCalls:
    """Calls that a build is for.

    Attributes:
        neighbours: also build variants near those of the calls.
        present: folder name → existing bundle whose variants are kept; empty if there are none.
    """

    entries: tuple[CallEntry, ...]
    neighbours: bool
    present: Mapping[str, Present] = field(default_factory=dict)

    @property
    def files(self) -> tuple[YamlFile, ...]:
        """The calls files."""
        return tuple({entry.file.file.path: entry.file.file for entry in self.entries}.values())

    def of(self, bundle: str, op: str) -> list[CallEntry]:
        """Return the calls of an op of a bundle."""
        return [entry for entry in self.entries if entry.may_call(bundle) and entry.spec.op == op]


@dataclass(frozen=True)
class PlannedCall:
    """A call of a calls file, and the variants that it gets: one for each launch."""

    entry: CallEntry
    variants: tuple[VariantSpec, ...]

    @property
    def text(self) -> str:
        """Description of the call: its place in the file, and the variants that it gets."""
        labels = ", ".join(dict.fromkeys(variant.label for variant in self.variants)) or "nothing to launch"
        return f"{self.entry.locate()}: {self.entry.spec.op}, {self.entry.spec.count} times: {labels}"


def plan_calls(
    entries: Iterable[CallEntry],
    op: records.Op,
    variants: Collection[VariantSpec],
    target: Target,
    maps: Maps = MappingProxyType({}),
) -> tuple[PlannedCall, ...]:
    """Return the calls of an op with the variants that they get, out of all that could be built.

    A bundle that has these variants gives them to the call. `maps` are those of `planning_index`.

    Raises `ManifestError` with every call that breaks the contract, and every one that nothing can serve.
    """
    called = [entry for entry in entries if not entry.spec.arch or target.arch in entry.spec.arch]
    if not called:
        return ()
    index = planning_index(op, variants, target, maps)
    specs = {id(stub): spec for stub, spec in zip(index.variants, variants, strict=True)}
    planner = op_planner(index, op.name)
    planned, faults = [], []
    for entry in called:
        if wrong := [*_wrong_names(entry, op)]:
            faults += wrong
            continue
        try:
            taken = [specs[id(stub)] for stub in _taken(entry, index, planner)]
        except ArgumentError as error:
            faults.append(f"{entry.locate()}: for {target.arch} nothing serves this call: {'; '.join(error.args)}")
        else:
            planned.append(PlannedCall(entry, tuple(dict.fromkeys(taken))))
    if faults:
        raise ManifestError(faults)
    return tuple(planned)


def built_for(
    calls: Iterable[PlannedCall], variants: Iterable[VariantSpec], neighbours: bool
) -> tuple[VariantSpec, ...]:
    """Select the variants that calls get.

    With neighbours, also select variants that differ from one of these in one respect: the specialisation (aligned or
    general), the value of one axis, or the config.
    """
    taken = {variant for call in calls for variant in call.variants}
    if not neighbours:
        return tuple(variant for variant in variants if variant in taken)
    points = {(variant.launch, variant.aligned, variant.point) for variant in taken}
    return tuple(variant for variant in variants if any(_is_near(variant, *point) for point in points))


def _is_near(variant: VariantSpec, launch: int, aligned: bool, point: tuple[tuple[str, Any], ...]) -> bool:
    differing = sum(one != other for one, other in zip(variant.point, point, strict=True))
    return variant.launch == launch and differing + (variant.aligned != aligned) <= 1


# An entry as a call


def _taken(entry: CallEntry, index: records.Index, planner: Planner) -> Iterator[records.Variant]:
    """Return the variants of every launch; if the number of compute units is unknown, for few and for many."""
    count = entry.spec.num_cus or usual_cus(index.target.arch)
    call = call_spec(entry.spec, planner)
    for num_cus in (count,) if count else NUM_CUS:
        for launch in plan_call(index, planner, call, num_cus, entry.spec.num_xcds).launches:
            yield launch.variant


def call_spec(spec: CallEntrySpec, planner: Planner) -> CallSpec:
    """Return the call of an entry. A scalar that the entry lacks may have any value if no decision depends on it."""
    free = {scalar.name: "1" for scalar in planner.op.scalars if not scalar.default}
    free = {name: value for name, value in free.items() if name not in planner.static}
    return CallSpec(
        shapes={name: tuple(shape) for name, shape in spec.shapes.items()},
        dims=spec.dims,
        given=frozenset(spec.given),
        dtypes=spec.dtypes,
        strides={name: tuple(strides) for name, strides in spec.strides.items()},
        unaligned=frozenset(spec.unaligned),
        scalars=free | {name: str(value) for name, value in spec.scalars.items()},
        innermost=spec.innermost,
    )


def _wrong_names(entry: CallEntry, op: records.Op) -> Iterator[str]:
    spec, tensors = entry.spec, [tensor.name for tensor in op.tensors]
    optional = [tensor.name for tensor in op.tensors if tensor.optional]
    innermost = {tensor.name: tensor.innermost for tensor in op.tensors if tensor.innermost}
    groups: tuple[tuple[str, Iterable[str], Collection[str], str], ...] = (
        ("shapes", spec.shapes, tensors, "tensor"),
        ("dims", spec.dims, list(Scope.of(op).dims), "dim"),
        ("given", spec.given, optional, "optional tensor"),
        ("dtypes", spec.dtypes, [*op.dtypes, *tensors], "dtype variable or tensor"),
        ("strides", spec.strides, tensors, "tensor"),
        ("innermost", spec.innermost, innermost, "tensor with several dims that may be the innermost"),
        ("unaligned", spec.unaligned, tensors, "tensor"),
        ("scalars", spec.scalars, [scalar.name for scalar in op.scalars], "scalar"),
    )
    for group, names, known, what in groups:
        for at, name in enumerate(names):
            if name not in known:
                place: Key = at if isinstance(getattr(spec, group), list) else name
                yield f"{entry.locate(group, place)}: {op.name} has no {what} '{name}'{nearest(name, tuple(known))}"
    for name, dim in spec.innermost.items():
        if dim not in innermost.get(name, (dim,)):
            allowed = " or ".join(map(str, innermost[name]))
            yield f"{entry.locate('innermost', name)}: the innermost dim of '{name}' is {allowed} (given: {dim})"
