"""Plan the selftest cases of an op: check each call against the op's contract, without making arrays."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from aot.manifest.loading import Manifest
from aot.manifest.schema import InputSpec, SelftestSpec
from aot.manifest.yamlfile import Key, ManifestError
from aot.source.python_source import python_source
from aot.targets import Target
from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime.call.planner import Decision, Planner, op_planner
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import numpy_dtype
from aot_runtime.contract.expressions import nearest
from aot_runtime.contract.index_file import FORMAT_VERSION, OLDEST_FORMAT
from aot_runtime.contract.names import Scope
from aot_runtime.errors import ArgumentError, NoVariantError

from .variants import VariantSpec

SAME_DTYPE = "_same_dtype"
"""Suffix of a reference that rounds as the kernel does."""
NUM_CUS = (1, 1024)
"""Fewer and more compute units than devices have. The variants of a call may depend on them: both must be built."""

Maps = Mapping[int, Collection[str]]
"""Position of a launch → the tensors that its aligned variants take as tensor maps."""
USUAL_WARPS = 4
"""Wavefronts of a workgroup unless a config says otherwise: Triton's default on both backends."""


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of a planned call. `filled`: the rule for an input's values; None: normal random numbers."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    filled: InputSpec | None = None


@dataclass(frozen=True)
class PlannedScalar:
    """A scalar of a planned call. `stated`: the case gives its value; otherwise it is the default."""

    name: str
    type: str
    value: records.Value
    stated: bool


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the vectors of a case, except the reference's own source.

    Attributes:
        reference: `path.py:function` from the project's root.
        inputs, outputs: the tensors that the call reads and writes; an inout tensor is in both.
        dtypes: (dtype variable, dtype).
        innermost: (input, position of the dim with stride 1), for inputs with a choice.
    """

    op: str
    name: str
    reference: str
    inputs: tuple[PlannedTensor, ...]
    outputs: tuple[PlannedTensor, ...]
    scalars: tuple[PlannedScalar, ...]
    dtypes: tuple[tuple[str, str], ...]
    innermost: tuple[tuple[str, int], ...]
    floor: float
    seed: int


@dataclass(frozen=True)
class PlannedCase:
    """A case whose call the planned variants serve, with its place in the manifest."""

    manifest: Manifest
    position: int
    recipe: Recipe

    def error(self, message: str, *path: Key) -> ManifestError:
        """Return an error at a key of the case."""
        return _error(self.manifest, self.recipe.op, self.position, self.recipe.name, message, path)


def plan_cases(
    manifest: Manifest,
    op: records.Op,
    variants: Iterable[VariantSpec],
    target: Target,
    maps: Maps = MappingProxyType({}),
) -> tuple[PlannedCase, ...]:
    """Plan the cases of an op that its variants serve. Cases that need variants which are not built are left out.

    `maps` are those of `planning_index`. Raises `ManifestError` if a case breaks the op's contract, or has no
    reference.
    """
    specs = manifest.spec.ops[op.name].selftest
    if not specs:
        return ()
    _check_names_differ(manifest, op, specs)
    _check_reference(manifest, op)
    index = planning_index(op, variants, target, maps)
    planner = op_planner(index, op.name)
    planned = [_CasePlanner(manifest, op, i).plan(index, planner) for i in range(len(specs))]
    return tuple(case for case in planned if case is not None)


def _check_names_differ(manifest: Manifest, op: records.Op, specs: list[SelftestSpec]) -> None:
    names = [_name(i, spec) for i, spec in enumerate(specs)]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise manifest.error(("ops", op.name, "selftest", i), f"op '{op.name}': another case has the name '{name}'")


def _name(position: int, spec: SelftestSpec) -> str:
    return spec.name or f"case{position}"


def _error(manifest: Manifest, op: str, position: int, name: str, message: str, path: tuple[Key, ...]) -> ManifestError:
    return manifest.error(("ops", op, "selftest", position, *path), f"op '{op}', case '{name}': {message}")


def _check_reference(manifest: Manifest, op: records.Op) -> None:
    """Find the reference in its file's text, so that a wrong name is reported before anything is compiled."""
    path = ("ops", op.name, "reference")
    file, colon, function = op.reference.rpartition(":")
    if not colon:
        raise manifest.error(
            path if op.reference else ("ops", op.name, "selftest"),
            f"op '{op.name}': `selftest` needs `reference: path.py:function` (given: {op.reference or 'nothing'})",
        )
    source = python_source(manifest.root, file)
    if source is None:
        raise manifest.error(path, f"op '{op.name}': file {file} is not in {manifest.root}")
    for name in (function, function + SAME_DTYPE):
        if not source.may_define(name):
            raise manifest.error(path, f"op '{op.name}': {file} has no function '{name}'")


def planning_index(
    op: records.Op, variants: Iterable[VariantSpec], target: Target, maps: Maps = MappingProxyType({})
) -> records.Index:
    """Make an index for dispatch before any variant is compiled.

    Args:
        maps: tensors that aligned variants take as tensor maps. They serve no call in which a map is impossible.
    """
    kernargs = {launch: tuple(map(_map, names)) for launch, names in maps.items()}
    stubs = tuple(
        records.Variant(
            spec.op, spec.launch, dict(spec.point), spec.aligned, spec.config, "", "",
            kernargs.get(spec.launch, ()) if spec.aligned else (), 0, 0, _warps(spec), target.warp_size,
            records.Resources(), {}, "",
        )
        for spec in variants
    )  # fmt: skip
    where = records.Target(target.arch, target.backend, target.warp_size)
    return records.Index(FORMAT_VERSION, OLDEST_FORMAT, "", op.name, where, {}, (op,), stubs, {})


def _warps(spec: VariantSpec) -> int:
    return int(dict(spec.options).get("num_warps", USUAL_WARPS))


def _map(tensor: str) -> records.Kernarg:
    size = records.TENSOR_MAP_BYTES
    return records.Kernarg(f"{tensor}.map", records.TENSOR_MAP, 0, size, tensor, records.TensorMap("", (), ()))


class _CasePlanner:
    """Plans one entry of `selftest`."""

    def __init__(self, manifest: Manifest, op: records.Op, position: int):
        self.manifest, self.op, self.position = manifest, op, position
        self.spec = manifest.spec.ops[op.name].selftest[position]
        self.name = _name(position, self.spec)

    def plan(self, index: records.Index, planner: Planner) -> PlannedCase | None:
        """Plan the case; returns None if the index has no variant for it."""
        call = self._call()
        try:
            decisions = [plan_call(index, planner, call, num_cus) for num_cus in NUM_CUS]
        except NoVariantError:
            return None
        except ArgumentError as error:
            raise self._error(str(error), "call") from None
        return PlannedCase(self.manifest, self.position, self._recipe(call, decisions[0]))

    def _error(self, message: str, *path: Key) -> ManifestError:
        return _error(self.manifest, self.op.name, self.position, self.name, message, path)

    # The call

    def _call(self) -> CallSpec:
        """Return the arguments of the call. Raises `ManifestError` for a name that the op does not have."""
        call = self.spec.call
        dims, scalars = list(Scope.of(self.op).dims), [scalar.name for scalar in self.op.scalars]
        inputs = [tensor for tensor in self.op.tensors if tensor.role != "output"]
        optional = [tensor.name for tensor in inputs if tensor.optional]
        passed = [tensor.name for tensor in inputs if not tensor.optional or tensor.name in self.spec.given]
        groups: tuple[tuple[str, Iterable[str], list[str], str], ...] = (
            ("call", call, [*dims, *self.op.dtypes, *scalars], "a dim, dtype variable or scalar"),
            ("given", self.spec.given, optional, "an optional tensor"),
            ("inputs", self.spec.inputs, passed, "an input of this call"),
        )
        for group, names, known, what in groups:
            for at, name in enumerate(names):
                if name not in known:
                    place = at if group == "given" else name
                    raise self._error(f"'{name}' is not {what}{nearest(name, known)}", group, place)
        for name in dims:
            if name in call and type(call[name]) is not int:
                raise self._error(f"{name} is {call[name]!r}; an extent must be an integer", "call", name)
        return CallSpec(
            dims={name: int(call[name]) for name in dims if name in call},
            given=frozenset(self.spec.given),
            dtypes={name: str(call[name]) for name in self.op.dtypes if name in call},
            scalars={name: str(call[name]) for name in scalars if name in call},
            innermost=self._innermost(inputs),
        )

    def _innermost(self, inputs: Iterable[records.Tensor]) -> dict[str, int]:
        """Return input → position of the dim with stride 1."""
        found = {}
        known = {tensor.name: tensor for tensor in inputs if tensor.innermost}
        for name, dim in self.spec.innermost.items():
            if name not in known:
                raise self._error(
                    f"'{name}' is not an input with `innermost` dims{nearest(name, known)}", "innermost", name
                )
            extents = [known[name].shape[position].extent for position in known[name].innermost]
            positions = [p for p, extent in zip(known[name].innermost, extents, strict=True) if dim in (p, extent)]
            if len(positions) != 1:
                raise self._error(f"'{dim}' is not one of {', '.join(extents)}", "innermost", name)
            found[name] = positions[0]
        return found

    # What decides its vectors

    def _recipe(self, call: CallSpec, decision: Decision) -> Recipe:
        there = [tensor for tensor in self.op.tensors if tensor.name in decision.layouts]
        inputs = tuple(self._input(tensor.name, decision) for tensor in there if tensor.role != "output")
        return Recipe(
            op=self.op.name,
            name=self.name,
            reference=self.op.reference,
            inputs=inputs,
            outputs=tuple(_tensor(tensor.name, decision) for tensor in there if tensor.role != "input"),
            scalars=tuple(
                PlannedScalar(scalar.name, scalar.type, decision.names[scalar.name], scalar.name in self.spec.call)
                for scalar in self.op.scalars
            ),
            dtypes=tuple((name, str(decision.names[name])) for name in self.op.dtypes),
            innermost=tuple(call.innermost.items()),
            floor=float(self.spec.floor),
            seed=self.spec.seed,
        )

    def _input(self, name: str, decision: Decision) -> PlannedTensor:
        """Plan an input, after checking that its dtype and shape can be filled as the case says."""
        spec = self.spec.inputs.get(name)
        tensor = _tensor(name, decision, spec)
        integer = numpy_dtype(tensor.dtype).kind in "biu"
        if spec and spec.values is not None:
            self._check_values(tensor, spec.values)
        elif spec and spec.range is not None:
            if integer:
                self._check_integers(tensor, spec.range, "range")
        elif integer:
            ways = "say `{range: [low, high]}` or `{values: […]}`"
            raise self._error(f"'{name}' is {tensor.dtype}, which has no normal distribution: {ways}", "inputs", name)
        return tensor

    def _check_values(self, tensor: PlannedTensor, values: list[records.Value]) -> None:
        name, size = tensor.name, math.prod(tensor.shape)
        if len(values) != size:
            shape = f"{tensor.dtype}{list(tensor.shape)}"
            raise self._error(f"'{name}' is {shape}: {size} values, not {len(values)}", "inputs", name, "values")
        if any(isinstance(value, str) for value in values):
            raise self._error(f"the values of '{name}' are not all numbers", "inputs", name, "values")
        if numpy_dtype(tensor.dtype).kind in "biu":
            self._check_integers(tensor, values, "values")

    def _check_integers(self, tensor: PlannedTensor, values: Iterable[Any], key: str) -> None:
        dtype = numpy_dtype(tensor.dtype)
        low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        for value in values:
            fraction = isinstance(value, float) and not value.is_integer()
            if fraction or not low <= value <= min(high, 2**63 - 1):
                allowed = f"{tensor.dtype} has whole numbers from {low} to {high}"
                raise self._error(f"'{tensor.name}' cannot be {value}: {allowed}", "inputs", tensor.name, key)


def _tensor(name: str, decision: Decision, filled: InputSpec | None = None) -> PlannedTensor:
    layout = decision.layouts[name]
    return PlannedTensor(name, layout.dtype, tuple(layout.shape), filled)
