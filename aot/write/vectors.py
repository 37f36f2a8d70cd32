"""Golden vectors: the calls under an op's `selftest`, random inputs for them, and what its numpy reference gives.

The bound of each output is that by which results pass everywhere: twice the error of an honest computation in the
kernel's own dtypes, plus a floor. The same manifest gives the same bytes, as far as numpy computes the same: results
are rounded, to more than the output's dtype can hold, so that the last bit of a sum seldom matters.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import Any

import ml_dtypes
import numpy as np

from aot.compile.kernel_source import CompileError, Project, project
from aot.manifest.schema import Manifest, SelftestSpec
from aot.manifest.yamlfile import Key, ManifestError
from aot.plan.variants import VariantSpec
from aot.targets import Target
from aot_runtime.bundle.reading import MAX_VECTOR_BYTES
from aot_runtime.bundle.vectors import EXPECTED, INPUTS, Array, deviation, entry_name, storage_dtype
from aot_runtime.call.callspec import CallSpec, plan_call
from aot_runtime.call.decision import Decision
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import numpy_dtype
from aot_runtime.contract.expressions import nearest
from aot_runtime.contract.layout import Layout
from aot_runtime.contract.names import Scope
from aot_runtime.errors import ArgumentError, NoVariantError

SAME_DTYPE = "_same_dtype"
"""What the name of a reference's counterpart, which rounds as a kernel does, ends in."""
NUM_CUS = (1, 1024)
"""Fewer and more compute units than devices have. What a call needs may depend on them: it must be there for both."""
EXTRA_BITS = 8
"""Bits of a result that are kept beyond those of the output's dtype."""


@dataclass(frozen=True)
class GoldenCase:
    """A case as the index has it, and the content of its file."""

    case: records.Case
    content: bytes


def golden_cases(
    manifest: Manifest, op: records.Op, variants: Iterable[VariantSpec], target: Target
) -> tuple[GoldenCase, ...]:
    """The cases of an op that its variants serve; those that need a variant which is not built are left out.

    Raises `ManifestError`: a case breaks the op's contract, or the reference does not do what it should.
    """
    specs = manifest.spec.ops[op.name].selftest
    if not specs:
        return ()
    _check_names_differ(manifest, op, specs)
    index = _planning_index(op, variants, target)
    planner = op_planner(index, op.name)
    with project(manifest.root).active() as modules:
        references = _references(manifest, op, modules)
        cases = [_Case(manifest, op, i, references) for i in range(len(specs))]
        made = [case.make(index, planner) for case in cases]
    return tuple(case for case in made if case is not None)


def _check_names_differ(manifest: Manifest, op: records.Op, specs: list[SelftestSpec]) -> None:
    names = [_name(i, spec) for i, spec in enumerate(specs)]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise manifest.error(("ops", op.name, "selftest", i), f"op '{op.name}': another case is called '{name}'")


def _name(position: int, spec: SelftestSpec) -> str:
    return spec.name or f"case{position}"


def _planning_index(op: records.Op, variants: Iterable[VariantSpec], target: Target) -> records.Index:
    """An index whose variants have all that dispatch looks at, before any of them is compiled."""
    stubs = tuple(
        records.Variant(
            spec.op, spec.launch, dict(spec.point), spec.aligned, spec.config, "", "", (), 0, 0, 1, target.warp_size,
            records.Resources(), {}, "",
        )
        for spec in variants
    )  # fmt: skip
    where = records.Target(target.arch, target.backend, target.warp_size)
    return records.Index(records.FORMAT_VERSION, 1, "", op.name, where, {}, (op,), stubs, {})


@dataclass(frozen=True)
class _References:
    """The exact reference, and the one that rounds as a kernel does."""

    exact: Callable[..., Any]
    same_dtype: Callable[..., Any]


def _references(manifest: Manifest, op: records.Op, modules: Project) -> _References:
    path = ("ops", op.name, "reference")
    source, colon, function = op.reference.rpartition(":")
    if not colon:
        raise manifest.error(
            path if op.reference else ("ops", op.name, "selftest"),
            f"op '{op.name}': `selftest` needs `reference: path.py:function` (given: {op.reference or 'nothing'})",
        )
    try:
        return _References(*(modules.attribute(source, name) for name in (function, function + SAME_DTYPE)))
    except CompileError as error:
        raise manifest.error(path, f"op '{op.name}': {error.reason}") from error


class _Case:
    """One entry of `selftest`."""

    def __init__(self, manifest: Manifest, op: records.Op, position: int, references: _References):
        self.manifest, self.op, self.references = manifest, op, references
        self.path: tuple[Key, ...] = ("ops", op.name, "selftest", position)
        self.spec = manifest.spec.ops[op.name].selftest[position]
        self.name = _name(position, self.spec)

    def error(self, message: str, *path: Key) -> ManifestError:
        return self.manifest.error((*self.path, *path), f"op '{self.op.name}', case '{self.name}': {message}")

    def make(self, index: records.Index, planner: Planner) -> GoldenCase | None:
        """The case with its vectors; None where the index has no variant for it."""
        call = self._call()
        try:
            decisions = [plan_call(index, planner, call, num_cus) for num_cus in NUM_CUS]
        except NoVariantError:
            return None
        except ArgumentError as error:
            raise self.error(str(error), "call") from None
        return self._golden(call, decisions[0])

    def _call(self) -> CallSpec:
        """What is called. Raises `ManifestError` for a name that the op does not have."""
        call = self.spec.call
        dims, scalars = list(Scope.of(self.op).dims), [scalar.name for scalar in self.op.scalars]
        inputs = [tensor for tensor in self.op.tensors if tensor.role != "output"]
        optional = [tensor.name for tensor in inputs if tensor.optional]
        passed = [tensor.name for tensor in inputs if not tensor.optional or tensor.name in self.spec.given]
        groups: tuple[tuple[str, Iterable[str], list[str], str], ...] = (
            ("call", call, [*dims, *self.op.dtypes, *scalars], "dim, dtype variable or scalar"),
            ("given", self.spec.given, optional, "optional tensor"),
            ("inputs", self.spec.inputs, passed, "input of this call"),
        )
        for group, names, known, what in groups:
            for at, name in enumerate(names):
                if name not in known:
                    place = at if group == "given" else name
                    raise self.error(f"'{name}' is no {what}{nearest(name, known)}", group, place)
        for name in dims:
            if name in call and type(call[name]) is not int:
                raise self.error(f"{name} is {call[name]!r}; an extent is a whole number", "call", name)
        return CallSpec(
            dims={name: int(call[name]) for name in dims if name in call},
            given=frozenset(self.spec.given),
            dtypes={name: str(call[name]) for name in self.op.dtypes if name in call},
            scalars={name: str(call[name]) for name in scalars if name in call},
            innermost=self._innermost(inputs),
        )

    def _innermost(self, inputs: Iterable[records.Tensor]) -> dict[str, int]:
        """Input → position of the dim that has stride 1."""
        found = {}
        known = {tensor.name: tensor for tensor in inputs if tensor.innermost}
        for name, dim in self.spec.innermost.items():
            if name not in known:
                raise self.error(f"'{name}' is no input with `innermost` dims{nearest(name, known)}", "innermost", name)
            extents = [known[name].shape[position].extent for position in known[name].innermost]
            positions = [p for p, extent in zip(known[name].innermost, extents, strict=True) if dim in (p, extent)]
            if len(positions) != 1:
                raise self.error(f"'{dim}' is not one of {', '.join(extents)}", "innermost", name)
            found[name] = positions[0]
        return found

    def _golden(self, call: CallSpec, decision: Decision) -> GoldenCase:
        inputs = {
            tensor.name: self._draw(tensor.name, decision.layouts[tensor.name])
            for tensor in self.op.tensors
            if tensor.role != "output" and tensor.name in decision.layouts
        }
        written = {
            tensor.name: decision.layouts[tensor.name]
            for tensor in self.op.tensors
            if tensor.role != "input" and tensor.name in decision.layouts
        }
        scalars = {scalar.name: _as_passed(scalar, decision.names[scalar.name]) for scalar in self.op.scalars}
        exact = self._refer(self.references.exact, inputs, scalars, written)
        same_dtype = self._refer(self.references.same_dtype, inputs, scalars, written)
        expected = {name: rounded(result, numpy_dtype(written[name].dtype)) for name, result in exact.items()}
        bounds = {name: self._bound(name, expected[name], same_dtype[name]) for name in written}
        content = encode_vectors(inputs, expected)
        if len(content) > MAX_VECTOR_BYTES:
            raise self.error(f"its vectors have {len(content)} bytes; at most {MAX_VECTOR_BYTES} are allowed", "call")
        digest = hashlib.sha256(content).hexdigest()
        case = records.Case(
            op=self.op.name,
            name=self.name,
            vectors=records.Blob(
                f"{records.SELFTEST_FOLDER}/{digest[: records.HASH_LENGTH]}.npz", len(content), digest
            ),
            bounds=bounds,
            dtypes={name: str(decision.names[name]) for name in self.op.dtypes},
            scalars={name: decision.names[name] for name in scalars if name in self.spec.call},
            innermost=dict(call.innermost),
        )
        return GoldenCase(case, content)

    # Inputs

    def _draw(self, name: str, layout: Layout) -> Array:
        """An input's values: from a generator of its own, so that one tensor does not depend on another."""
        spec, dtype = self.spec.inputs.get(name), numpy_dtype(layout.dtype)
        if spec and spec.values is not None:
            return self._as_stated(name, spec.values, layout)
        key = hashlib.sha256(f"{self.op.name} {name} {self.spec.seed}".encode()).digest()[:16]
        random = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        if spec and spec.range is not None:
            return self._uniform(name, random, spec.range, layout)
        if dtype.kind in "biu":
            ways = "say `{range: [low, high]}` or `{values: […]}`"
            raise self.error(f"'{name}' is {layout.dtype}, which has no normal random numbers: {ways}", "inputs", name)
        std = float(spec.std) if spec and spec.std is not None else 1.0
        return _read_only((random.standard_normal(layout.shape) * std).astype(dtype))

    def _uniform(self, name: str, random: np.random.Generator, limits: list[int | float], layout: Layout) -> Array:
        dtype, (low, high) = numpy_dtype(layout.dtype), limits
        if dtype.kind not in "biu":
            return _read_only(random.uniform(low, high, layout.shape).astype(dtype))
        self._check_integers(name, [low, high], layout, "range")
        return _read_only(random.integers(int(low), int(high), layout.shape, np.int64, endpoint=True).astype(dtype))

    def _as_stated(self, name: str, values: list[records.Value], layout: Layout) -> Array:
        if len(values) != layout.size:
            shape = f"{layout.dtype}{list(layout.shape)}"
            raise self.error(f"'{name}' is {shape}: {layout.size} values, not {len(values)}", "inputs", name, "values")
        if any(isinstance(value, str) for value in values):
            raise self.error(f"the values of '{name}' are not all numbers", "inputs", name, "values")
        dtype = numpy_dtype(layout.dtype)
        if dtype.kind in "biu":
            self._check_integers(name, values, layout, "values")
        return _read_only(np.array(values).astype(dtype).reshape(layout.shape))

    def _check_integers(self, name: str, values: Iterable[Any], layout: Layout, key: str) -> None:
        dtype = numpy_dtype(layout.dtype)
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        for value in values:
            fraction = isinstance(value, float) and not value.is_integer()
            if fraction or not low <= value <= min(high, 2**63 - 1):
                allowed = f"{layout.dtype} has whole numbers from {low} to {high}"
                raise self.error(f"'{name}' cannot be {value}: {allowed}", "inputs", name, key)

    # Results

    def _refer(
        self,
        reference: Callable[..., Any],
        inputs: Mapping[str, Array],
        scalars: Mapping[str, Any],
        written: Mapping[str, Layout],
    ) -> dict[str, Array]:
        """What a reference makes of a call, by the name of each tensor that is written to."""
        label = f"reference {reference.__name__}"
        arguments = {**inputs, **{name: value for name, value in scalars.items() if _takes(reference, name)}}
        try:
            inspect.signature(reference).bind(**arguments)
        except TypeError as error:
            raise self.error(f"{label} does not fit the call: {error}") from None
        try:
            found = reference(**arguments)
        except Exception as error:
            raise self.error(f"{label} raised {type(error).__name__}: {error}") from error
        results = found if isinstance(found, tuple) else (found,)
        shapes = [np.shape(result) for result in results]
        if shapes != [layout.shape for layout in written.values()]:
            wanted = ", ".join(f"{name} {list(layout.shape)}" for name, layout in written.items())
            raise self.error(f"{label} gave shapes {[list(shape) for shape in shapes]}; the call writes {wanted}")
        return {name: np.asarray(result) for name, result in zip(written, results, strict=True)}

    def _bound(self, name: str, expected: Array, same_dtype: Array) -> float:
        error = float(np.max(deviation(same_dtype, expected), initial=0.0))
        if error == np.inf:
            raise self.error(f"'{name}': the two references disagree on what is finite")
        bound = float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(2 * error + float(self.spec.floor)))
        finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
        if bound and finite.size and 0 < finite.max() <= bound:
            raise self.error(f"'{name}' could as well be 0: it is at most {finite.max():.2e}, the bound is {bound:.2e}")
        return bound


def _takes(function: Callable[..., Any], name: str) -> bool:
    """A scalar that no result depends on (a number of splits) need not be a reference's argument."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(item.kind is item.VAR_KEYWORD for item in parameters.values())


def _as_passed(scalar: records.Scalar, value: Any) -> Any:
    """A scalar as the kernel gets it."""
    return float(np.float32(value)) if scalar.type == "fp32" else value


def _read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array


def rounded(result: Array, dtype: np.dtype[Any]) -> Array:
    """A reference's result as it is stored for an output of a dtype.

    Of floats the significand keeps `EXTRA_BITS` more than the dtype's, in float32 where that holds them, else float64.
    """
    if result.dtype.kind in "biu":
        return result
    if dtype.kind in "biu":
        return result.astype(np.float64)
    bits = ml_dtypes.finfo(dtype).nmant + 1 + EXTRA_BITS
    fraction, exponent = np.frexp(result.astype(np.float64))
    kept = np.ldexp(np.rint(fraction * 2.0**bits) / 2.0**bits, exponent)
    return kept.astype(np.float32 if bits <= 24 else np.float64)


def encode_vectors(inputs: Mapping[str, Array], expected: Mapping[str, Array]) -> bytes:
    """The file of a case (see `aot_runtime.bundle.vectors`): a zip whose bytes depend on nothing but the arrays."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for group, arrays in ((INPUTS, inputs), (EXPECTED, expected)):
            for name, array in arrays.items():
                entry = zipfile.ZipInfo(entry_name(group, name))  # dated 1980-01-01
                entry.create_system = 3
                archive.writestr(entry, _npy(array))
    return file.getvalue()


def _npy(array: Array) -> bytes:
    stream = io.BytesIO()
    stored = np.ascontiguousarray(array).view(storage_dtype(array.dtype))
    np.lib.format.write_array(stream, stored, version=(1, 0), allow_pickle=False)
    return stream.getvalue()
