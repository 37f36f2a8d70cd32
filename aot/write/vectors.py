"""Selftest vectors: random inputs of a bundle's cases, and the results of the numpy references.

The tolerance of an output is twice the error of a careful computation in the kernel's dtypes, plus a floor. Equal
manifests give equal bytes if numpy computes equal results. So results are rounded, with a few bits more than the
output's dtype, which makes them almost independent of the last bit of a sum.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import io
import json
import math
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from pathlib import Path
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np

import aot_runtime.bundle.vector_files
import aot_runtime.contract.dtypes
from aot.cache.layered_cache import NOT_ITS_NAME, VECTORS, Cache
from aot.cache.shared_cache import SharedCache
from aot.errors import CompileError, described, is_interrupt
from aot.forked_process import TimeLimitError, WorkerDiedError
from aot.manifest.schema import InputSpec
from aot.manifest.yamlfile import Key, ManifestError
from aot.plan.cases import SAME_DTYPE, PlannedCase, PlannedScalar, PlannedTensor, Recipe
from aot.source.project import Project
from aot.source.python_source import Closure, closure, python_source
from aot_runtime.bundle.reading import MAX_VECTOR_BYTES
from aot_runtime.bundle.vector_files import (
    EXPECTED,
    INPUTS,
    Array,
    deviation,
    entry_name,
    storage_dtype,
    stored_arrays,
)
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import FLOAT_TYPES, SCALAR_TYPES, numpy_dtype
from aot_runtime.errors import AotError, BundleError

EXTRA_BITS = 8
"""Bits of a result's significand beyond those of the output's dtype."""


@dataclass(frozen=True)
class CaseVectors:
    """A case's record in the index, and the content of its file."""

    case: records.Case
    content: bytes


class VectorCache(Cache[CaseVectors]):
    """A cache of vectors. Keys cover the case's recipe, the sources of its reference and the packages that run it."""

    def __init__(self, path: Path | str | None = None, shared: SharedCache | None = None):
        super().__init__(path, VECTORS, CaseVectors, shared)

    def fault(self, key: str, value: CaseVectors) -> str:
        return "" if value.case.vectors == blob_of(value.content) else NOT_ITS_NAME


class CaseError(AotError):
    """Vectors cannot be computed. `path`: the key of the faulty case."""

    def __init__(self, message: str, *path: Key):
        super().__init__(message)
        self.message, self.path = message, path


class NoBoundError(CaseError):
    """The references give no error bound for these values."""


@dataclass(frozen=True)
class Computed:
    """Vectors, and file → SHA-256 of the project's files that were imported to compute them."""

    vectors: CaseVectors
    digests: Mapping[str, str]


@dataclass(frozen=True)
class Expectation:
    """The inputs of a call, its exact results by tensor, and the largest |result - expected| that passes."""

    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    bounds: Mapping[str, float]


Compute = Callable[[str, Recipe], Computed]
"""Computes the vectors of a recipe, given the project's root."""


def compute(root: str, recipe: Recipe) -> Computed:
    """Run the references of a recipe. Raises `CompileError` if there are none, or `CaseError`."""
    modules = Project(Path(root).resolve())  # with modules of its own: these show which files were imported for it
    with modules.active():
        vectors = _Computation(recipe, _references(recipe, modules), modules.place).run()
    return Computed(vectors, modules.digests)


def case_vectors(cases: Sequence[PlannedCase], cache: VectorCache, compute: Compute = compute) -> Iterator[CaseVectors]:
    """Return the vectors of each case, from the cache or computed. Raises `ManifestError` for a faulty reference.

    Args:
        compute: runs references, which are arbitrary code, in another process.
    """
    read = functools.cache(closure)
    sources = [read(case.manifest.root, case.recipe.reference.rpartition(":")[0]) for case in cases]
    keys = [vectors_key(case.recipe, known) for case, known in zip(cases, sources, strict=True)]
    recipes = {key: case.recipe for case, key in zip(cases, keys, strict=True)}
    found = cache.get_many(keys, lambda key, vectors: vectors_fault(vectors, recipes[key]))
    for case, key, source in zip(cases, keys, sources, strict=True):
        vectors = found.get(key)
        if vectors is None:
            computed = _computed(case, compute)
            vectors = found[key] = computed.vectors
            known = dict(source.files)
            for name, digest in computed.digests.items():
                if known.get(name, digest) != digest:
                    raise _reference_error(case, f"file {name} changed during the build; build again")
            # The key does not cover modules that are imported by a computed name.
            if computed.digests.keys() <= known.keys():
                cache.put(key, vectors)
        yield vectors


def vectors_fault(vectors: CaseVectors, recipe: Recipe) -> str:
    """Return the reason why vectors cannot be a recipe's, without computing them; empty if they can."""
    bounds = vectors.case.bounds
    shapes = {entry_name(INPUTS, tensor.name): tensor.shape for tensor in recipe.inputs}
    shapes |= {entry_name(EXPECTED, tensor.name): tensor.shape for tensor in recipe.outputs}
    dtypes = {entry_name(INPUTS, tensor.name): storage_dtype(numpy_dtype(tensor.dtype)) for tensor in recipe.inputs}
    try:
        arrays = stored_arrays(vectors.content)
    except BundleError as error:
        return f"is not what was asked for: {error}"
    for what, is_right in (
        ("a case", vectors.case == _case(recipe, vectors.content, bounds)),
        ("bounds", bounds.keys() == {tensor.name for tensor in recipe.outputs}),
        ("bounds", all(0 <= bound < math.inf for bound in bounds.values())),
        ("arrays", {name: array.shape for name, array in arrays.items()} == shapes),
        ("dtypes", {name: arrays[name].dtype for name in dtypes.keys() & arrays.keys()} == dtypes),
    ):
        if not is_right:
            return f"has {what} that its recipe does not have"
    return ""


def _case(recipe: Recipe, content: bytes, bounds: Mapping[str, float]) -> records.Case:
    return records.Case(
        op=recipe.op,
        name=recipe.name,
        vectors=blob_of(content),
        bounds=dict(bounds),
        dtypes=dict(recipe.dtypes),
        scalars={scalar.name: scalar.value for scalar in recipe.scalars if scalar.stated},
        innermost=dict(recipe.innermost),
    )


def blob_of(content: bytes) -> records.Blob:
    """Return the index's record of a file of vectors."""
    digest = hashlib.sha256(content).hexdigest()
    return records.Blob(f"{records.SELFTEST_FOLDER}/{digest[: records.HASH_LENGTH]}.npz", len(content), digest)


def _computed(case: PlannedCase, compute: Compute) -> Computed:
    try:
        return compute(str(case.manifest.root), case.recipe)
    except CaseError as error:
        raise case.error(error.message, *error.path) from error
    except CompileError as error:
        raise _reference_error(case, error.reason) from error
    except (TimeLimitError, WorkerDiedError) as error:
        raise case.error(f"reference {case.recipe.reference}: {error}") from error


def _reference_error(case: PlannedCase, reason: str) -> ManifestError:
    op = case.recipe.op
    return case.manifest.error(("ops", op, "reference"), f"op '{op}': {reason}")


def vectors_key(recipe: Recipe, sources: Closure) -> str:
    """Return the cache key of a case's vectors: 64 hex digits, independent of the project's folder."""
    parts = {
        "recipe": dataclasses.asdict(recipe),
        "sources": dataclasses.asdict(sources),
        "code": _own_code(),
        "python": sys.version_info[:2],
        "packages": [np.__version__, ml_dtypes.__version__],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    assert isinstance(value, InputSpec)
    return value.model_dump()


@functools.cache
def _own_code() -> list[str]:
    modules = (sys.modules[__name__], aot_runtime.bundle.vector_files, aot_runtime.contract.dtypes)
    return [hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest() for module in modules]


@dataclass(frozen=True)
class _References:
    """The exact reference, and the one that rounds as a kernel does."""

    exact: Callable[..., Any]
    same_dtype: Callable[..., Any]


def _references(recipe: Recipe, modules: Project, counterpart: str = SAME_DTYPE) -> _References:
    source, _, function = recipe.reference.rpartition(":")
    return _References(*(modules.reference(source, name) for name in (function, function + counterpart)))


def expectation(root: str, recipe: Recipe) -> Expectation:
    """Compute the references of a recipe. Raises `CompileError` if there are none, or `CaseError`.

    If there is no rounding reference, only the exact one is used.
    """
    modules = Project(Path(root).resolve())
    file, _, function = recipe.reference.rpartition(":")
    source = python_source(Path(root), file)
    counterpart = SAME_DTYPE if source is None or source.may_define(function + SAME_DTYPE) else ""
    with modules.active(), np.errstate(all="ignore"):  # numbers are any that the contract allows
        return _Computation(recipe, _references(recipe, modules, counterpart), modules.place).expectation()


def draw_input(recipe: Recipe, tensor: PlannedTensor) -> Array:
    """Draw an input's values from a generator of its own, so that they do not depend on other tensors."""
    filled, dtype = tensor.filled, numpy_dtype(tensor.dtype)
    if filled and filled.values is not None:
        return _read_only(np.array(filled.values).astype(dtype).reshape(tensor.shape))
    key = hashlib.sha256(f"{recipe.op} {tensor.name} {recipe.seed}".encode()).digest()[:16]
    random = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
    if filled and filled.range is not None:
        low, high = filled.range
        if dtype.kind not in "biu":
            return _read_only(random.uniform(low, high, tensor.shape).astype(dtype))
        whole = random.integers(int(low), int(high), tensor.shape, np.int64, endpoint=True)
        return _read_only(whole.astype(dtype))
    std = float(filled.std) if filled and filled.std is not None else 1.0
    return _read_only((random.standard_normal(tensor.shape) * std).astype(dtype))


class _Computation:
    """The computation of the vectors of a case."""

    def __init__(self, recipe: Recipe, references: _References, place: Callable[[TracebackType | None], str]):
        self.recipe, self.references, self.place = recipe, references, place

    def run(self) -> CaseVectors:
        recipe, found = self.recipe, self.expectation()
        for name, expected in found.expected.items():
            finite, bound = np.abs(expected[np.isfinite(expected)].astype(np.float64)), found.bounds[name]
            if bound and finite.size and 0 < (most := finite.max()) <= bound:
                raise CaseError(
                    f"'{name}' is too small to test: its values are at most {most:.2e}, the error bound is {bound:.2e}"
                )
        content = encode_vectors(found.inputs, found.expected)
        if len(content) > MAX_VECTOR_BYTES:
            raise CaseError(f"its vectors have {len(content)} bytes; at most {MAX_VECTOR_BYTES} are allowed", "call")
        return CaseVectors(_case(recipe, content, found.bounds), content)

    def expectation(self) -> Expectation:
        """Return the inputs, the results of the exact reference and the tolerances."""
        recipe = self.recipe
        inputs = {tensor.name: draw_input(recipe, tensor) for tensor in recipe.inputs}
        exact = self._refer(self.references.exact, inputs)
        same_dtype = self._refer(self.references.same_dtype, inputs)
        expected = {tensor.name: rounded(exact[tensor.name], numpy_dtype(tensor.dtype)) for tensor in recipe.outputs}
        bounds = {name: self._bound(name, expected[name], same_dtype[name]) for name in expected}
        return Expectation(inputs, expected, bounds)

    # Results

    def _refer(self, reference: Callable[..., Any], inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Call a reference. Return the written tensors by name."""
        label = f"reference {reference.__name__}"
        scalars = {item.name: _as_passed(item) for item in self.recipe.scalars if _takes(reference, item.name)}
        arguments = {**inputs, **scalars}
        try:
            inspect.signature(reference).bind(**arguments)
        except TypeError as error:
            raise CaseError(f"{label} does not match the call: {error}") from None
        try:
            found = reference(**arguments)
        except BaseException as error:  # it may as well exit
            if is_interrupt(error):
                raise
            raise CaseError(f"{label} raised {described(error)}{self.place(error.__traceback__)}") from error
        results = found if isinstance(found, tuple) else (found,)
        shapes = [np.shape(result) for result in results]
        written = self.recipe.outputs
        if shapes != [tensor.shape for tensor in written]:
            wanted = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in written)
            raise CaseError(f"{label} gave shapes {[list(shape) for shape in shapes]}; the call needs {wanted}")
        return {tensor.name: np.asarray(result) for tensor, result in zip(written, results, strict=True)}

    def _bound(self, name: str, expected: Array, same_dtype: Array) -> float:
        error = float(np.max(deviation(same_dtype, expected), initial=0.0))
        if error == np.inf:
            raise NoBoundError(f"'{name}': the two references disagree on which values are finite")
        return float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(2 * error + self.recipe.floor))


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Return True if a reference has this parameter. It may omit scalars that have no effect on results."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(item.kind is item.VAR_KEYWORD for item in parameters.values())


def _as_passed(scalar: PlannedScalar) -> Any:
    if scalar.type not in FLOAT_TYPES:
        return scalar.value
    return float(numpy_dtype(SCALAR_TYPES[scalar.type].name).type(scalar.value))


def _read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array


def rounded(result: Array, dtype: np.dtype[Any]) -> Array:
    """Round a reference's result for storage.

    The significand of floats keeps `EXTRA_BITS` bits more than the dtype's, in float32 if they fit, else in float64.
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
    """Return the file of a case (`aot_runtime.bundle.vector_files`), a ZIP that depends on the arrays only."""
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
    stored = np.asarray(array, order="C").view(storage_dtype(array.dtype))
    np.lib.format.write_array(stream, stored, version=(1, 0), allow_pickle=False)
    return stream.getvalue()
