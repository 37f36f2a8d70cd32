"""The self-test: make a bundle's recorded calls on this device and compare the results.

It verifies driver, device and code objects together, with nothing but a bundle. Every array lies between guard zones
and outputs are poisoned first, so missed elements, out-of-bounds stores and stores to inputs are all detected.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.vector_files import Array, Vectors, deviation, dtype_of, read_vectors
from aot_runtime.contract.layout import Shape, packing_order
from aot_runtime.contract.names import axis_names
from aot_runtime.contract.records import Case, Index, Op, Variant
from aot_runtime.device.array import DeviceArray
from aot_runtime.device.device import Device
from aot_runtime.errors import AotError, NoVectorsError
from aot_runtime.formats import axis_values_text
from aot_runtime.texts import ID_LENGTH

from .choosing import Decision
from .planner import op_planner

GUARD_BYTES = 256
"""Size of each guard zone; a multiple of the alignment that aligned variants need."""


class SelftestBundle(Protocol):
    """The interface that a self-test needs of an open bundle."""

    path: Path
    index: Index
    device: Device

    def __getitem__(self, op: str) -> Any:
        """Return an op by name."""


@dataclass(frozen=True)
class Output:
    """A tensor that a case writes to: its largest deviation from the expected result, and the bound on it.

    `fault` describes the failure, and is empty if the output passes.
    """

    name: str
    error: float
    bound: float
    fault: str = ""


@dataclass(frozen=True)
class Launched:
    """A variant that a case launches."""

    symbol: str
    file: str
    axis_values: dict[str, Any]
    aligned: bool
    config: str

    def __str__(self) -> str:
        values = axis_values_text(self.axis_values, none="")
        name = f"{self.symbol}[{values}]" if values else self.symbol
        return f"{name} {'aligned' if self.aligned else 'general'}, {self.config}"


@dataclass(frozen=True)
class Result:
    """The result of one case. `fault` describes a failed call, which has no outputs, or an altered input."""

    op: str
    case: str
    launches: tuple[Launched, ...]
    outputs: tuple[Output, ...]
    seconds: float
    fault: str = ""

    @property
    def passed(self) -> bool:
        return not self.fault and not any(output.fault for output in self.outputs)


@dataclass(frozen=True)
class Report:
    """The results of a self-test, with the bundle and device it ran on."""

    bundle: str
    id: str
    arch: str
    device: str
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)


@dataclass(frozen=True)
class Prepared:
    """A case with its vectors, checked against the index."""

    case: Case
    vectors: Vectors


def prepare(bundle: SelftestBundle, *ops: str) -> list[Prepared]:
    """Load cases and their vectors. Defaults to all ops.

    Raises:
        ArgumentError: an op does not exist.
        NoVectorsError: an op has no cases.
        BundleError: vectors are missing, altered or malformed.
    """
    index = bundle.index
    for op in ops:
        op_planner(index, op)  # raises for an unknown op
    contracts = {item.name: item for item in index.ops}
    cases = [case for case in index.selftest if not ops or case.op in ops]
    without = [f"op '{op}' of bundle '{index.name}'" for op in ops if op not in {case.op for case in cases}]
    if without or not cases:
        what = ", ".join(without) or f"bundle '{index.name}'"
        raise NoVectorsError(
            f"{what} has no selftest vectors: its manifest has no `selftest` cases, it was built by a version that did "
            "not write them, or a filter left them all out"
        )
    source = source_of(bundle.path)
    return [Prepared(case, read_vectors(source, contracts[case.op], case)) for case in cases]


def run_selftest(bundle: SelftestBundle, *ops: str) -> Report:
    """Run cases, by default of all ops. Raises as `prepare` does; a failed case is a `Result`, not an exception."""
    return make_report(bundle, [run_case(bundle, prepared) for prepared in prepare(bundle, *ops)])


def make_report(bundle: SelftestBundle, results: Iterable[Result]) -> Report:
    """Return the report of finished cases."""
    index, device = bundle.index, bundle.device
    return Report(index.name, index.id, index.target.arch, f"{device} ({device.properties.name})", tuple(results))


def run_case(bundle: SelftestBundle, prepared: Prepared) -> Result:
    """Make one call and compare its outputs."""
    case, started = prepared.case, time.monotonic()
    launches: tuple[Launched, ...] = ()
    outputs: tuple[Output, ...] = ()
    fault = ""
    try:
        function: Any = bundle[case.op]
        op: Op = function.planner.op
        arrays = _arrays(bundle.device, op, prepared)
        views = {name: array.view for name, array in arrays.items()}
        decision = function.decide({name: view.layout for name, view in views.items()}, case.scalars)
        launches = tuple(_launched(bundle, op, decision))
        function(**views, **case.scalars)
        expected = prepared.vectors.expected
        outputs = tuple(_compare(name, arrays[name], expected[name], case.bounds[name]) for name in expected)
        altered = [name for name, array in arrays.items() if name not in expected and array.altered(slice(None))]
        fault = f"inputs were written to: {', '.join(altered)}" if altered else ""
    except AotError as error:
        fault = f"{type(error).__name__}: {error}"
    return Result(case.op, case.name, launches, outputs, time.monotonic() - started, fault)


def _launched(bundle: SelftestBundle, op: Op, decision: Decision) -> Iterator[Launched]:
    for launch in decision.launches:
        variant: Variant = launch.variant
        config = op.launches[launch.index].configs[variant.config].name or str(variant.config)
        file = bundle.index.blobs[variant.code].file
        values = {name: variant.axis_values[name] for name in axis_names(op)}
        yield Launched(variant.symbol, file, values, variant.aligned, config)


# Arrays on the device


@dataclass(frozen=True)
class _Guarded:
    """An array between two guard zones: `view` is part of `whole`, which was copied from `host`."""

    whole: DeviceArray
    view: DeviceArray
    host: Array

    @property
    def zones(self) -> tuple[slice, slice]:
        count = GUARD_BYTES // self.host.itemsize
        return slice(count), slice(-count, None)

    def altered(self, *parts: slice) -> bool:
        now = self.whole.numpy()
        return any(now[part].tobytes() != self.host[part].tobytes() for part in parts)


def _arrays(device: Device, op: Op, prepared: Prepared) -> Mapping[str, _Guarded]:
    case, vectors = prepared.case, prepared.vectors
    arrays = {}
    for tensor in op.tensors:
        values = vectors.inputs.get(tensor.name)
        if values is None and tensor.name in vectors.expected:
            values = _poisoned(vectors.expected[tensor.name], dtype_of(tensor, case.dtypes))
        if values is not None:
            order = packing_order(tensor, values.ndim, innermost=case.innermost.get(tensor.name))
            # A NaN guard exposes out-of-bounds reads of inputs. Output guards are not NaN, as kernels may store NaN.
            guard = np.nan if tensor.role == "input" and values.dtype.kind not in "biu" else 85
            arrays[tensor.name] = _guarded(device, values, order or tuple(range(values.ndim)), guard)
    return arrays


def _poisoned(expected: Array, dtype: np.dtype[Any]) -> Array:
    """Return values that differ from the expected ones: NaN (1 if NaN is expected), or complements of integers."""
    if dtype.kind not in "biu":
        return np.where(np.isnan(expected), 1.0, np.nan).astype(dtype)
    with np.errstate(invalid="ignore"):
        return ~(expected if expected.dtype.kind in "biu" else np.rint(expected)).astype(dtype)


def _guarded(device: Device, values: Array, order: Shape, guard: float) -> _Guarded:
    """Copy values to the device between zones of `guard`, packed with dims in `order`, outermost first."""
    packed = np.asarray(values.transpose(order), order="C")
    zone = np.full(GUARD_BYTES // packed.itemsize, guard, packed.dtype)
    host = np.concatenate([zone, packed.reshape(-1), zone])
    whole = device.array(host)
    inner = whole[len(zone) : len(zone) + packed.size].reshape(*packed.shape)
    return _Guarded(whole, inner.transpose(*(order.index(dim) for dim in range(values.ndim))), host)


def _compare(name: str, array: _Guarded, expected: Array, bound: float) -> Output:
    actual = array.view.numpy()
    distance = deviation(actual, expected)
    far = distance > bound
    faults = []
    if far.any():
        at = tuple(int(i) for i in np.argwhere(far)[0])
        count = f"{np.count_nonzero(far)} of {far.size} elements"
        values = f"{float(actual[at]):.6g}, expected {float(expected[at]):.6g}"
        faults.append(f"{count} beyond the bound, first at {list(at)}: {values}")
    if array.altered(*array.zones):
        faults.append("something was written outside of the array")
    return Output(name, float(np.max(distance, initial=0.0)), bound, "; ".join(faults))


# Reports


def result_lines(result: Result) -> list[str]:
    """Describe a case: its launches, and the deviation of each output."""
    launches = " + ".join(map(str, result.launches)) or "nothing launched"
    lines = [f"{'ok' if result.passed else 'FAILED':<6}  {result.op} {result.case}: {launches}"]
    if result.fault:
        lines.append(f"{' ' * 8}{result.fault}")
    for output in result.outputs:
        line = f"{' ' * 8}{output.name}: error {output.error:.2e}, bound {output.bound:.2e}"
        lines.append(f"{line}: {output.fault}" if output.fault else line)
    return lines


def head_text(bundle: SelftestBundle) -> str:
    """Describe the bundle and device of a self-test."""
    report = make_report(bundle, ())
    return f"bundle {report.bundle} for {report.arch}, id {report.id[:ID_LENGTH]}, on {report.device}"


def report_data(report: Report) -> dict[str, Any]:
    """Return a report as JSON-ready data. Errors that are not finite become null."""
    data = asdict(report) | {"passed": report.passed}
    for item, result in zip(data["results"], report.results, strict=True):
        item["passed"] = result.passed
        for output in item["outputs"]:
            output["error"] = output["error"] if math.isfinite(output["error"]) else None
    return data
