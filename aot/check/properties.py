"""Run planned calls on the emulator, and check the properties that every call must have.

Strict mode finds invalid operations while a kernel runs. These properties are checked in addition:

- every element of an output is written, and no byte between or beside elements;
- inputs keep their content;
- results are the same bytes for any layout of the tensors and any order of wavefronts;
- results agree with the op's reference.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from aot.plan.cases import Recipe
from aot.write.vectors import CaseError, Expectation, NoBoundError, draw_input
from aot_bundle.callspec import parse_scalar
from aot_emulator.driver import EmulatorDriver
from aot_emulator.errors import EmulationError, InstructionBudgetError, SanitizerError
from aot_emulator.machine.launch_options import Options, Order
from aot_runtime.bundle.vector_files import deviation
from aot_runtime.call.choosing import Decision
from aot_runtime.contract.dtypes import numpy_dtype
from aot_runtime.contract.layout import Layout, make_layout
from aot_runtime.contract.records import Op
from aot_runtime.errors import AotError
from aot_runtime.opening import Bundle

from .call_selection import PlannedCheck
from .findings import ENDLESS, PACKED, STRIDED, Finding, layouts_text
from .guarded_memory import Array, GuardedTensor, allocate_tensor, spot_of

Refer = Callable[[Recipe], Expectation]
"""Computes the references of a recipe."""
SLACK, ULPS, MOST = 4.0, 8.0, 0.1
"""Tolerance of results: `SLACK` times the bound of selftest vectors (whose calls are larger, so that it is known
better),
plus `ULPS` units in the last place of the coarsest dtype relative to the largest result, at most `MOST` of it.
"""
QUICK_S = 3.0
"""Calls that take longer are repeated in the same order of wavefronts, since the serial order is slow."""
SUM_ULPS = 64.0
"""Tolerance between two orders of wavefronts, in which atomics may add in a different order."""


@dataclass(frozen=True)
class _Run:
    """A call that was made: its tensors afterwards, and its findings."""

    placed: Mapping[str, GuardedTensor]
    findings: list[Finding]

    def results(self, op: Op) -> dict[str, Array]:
        written = {tensor.name for tensor in op.tensors if tensor.role != "input"}
        return {name: item.values() for name, item in self.placed.items() if name in written}


@dataclass(frozen=True)
class _Call:
    """A planned call of an op, with the values of its inputs."""

    op: Op
    planned: PlannedCheck
    inputs: Mapping[str, Array]

    @property
    def scalars(self) -> dict[str, Any]:
        texts = self.planned.drawn.packed.scalars
        values = {item.name: parse_scalar(self.op, item, texts.get(item.name)) for item in self.op.scalars}
        return {name: value for name, value in values.items() if value is not None}


class Runner:
    """Runs the calls of a bundle on an emulator of its own."""

    def __init__(self, bundle: Bundle, driver: EmulatorDriver, time_limit_s: float):
        self.bundle, self.driver, self.time_limit_s = bundle, driver, time_limit_s

    def check(self, op: Op, planned: PlannedCheck, refer: Refer) -> list[Finding]:
        """Return the findings of one call."""
        call = _Call(op, planned, {tensor.name: draw_input(planned.recipe, tensor) for tensor in planned.recipe.inputs})
        decision = planned.drawn.decision
        started = time.monotonic()
        packed = self._run(call, decision)
        order = Order.SERIAL if time.monotonic() - started < QUICK_S else Order.LOCKSTEP
        if packed.findings:
            return _told(packed.findings, PACKED, decision)
        results = packed.results(op)
        held = self._refer(call, results, refer) if planned.is_referred else _not_finite(call, results)
        findings = _told(held, PACKED, decision)
        strided = self._run(call, planned.strided, order)
        if strided.findings or not planned.same_launches:
            findings += _told(strided.findings, STRIDED, planned.strided)
        else:
            findings += self._compare(call, results, strided.results(op), order)
        return [*findings, *self._in_place(call, results)]

    # One call

    @property
    def _limit_s(self) -> float:
        """Time limit of a launch, extended on a busy machine."""
        return self.time_limit_s * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))

    def _run(
        self, call: _Call, decision: Decision, order: Order = Order.LOCKSTEP, one: Mapping[str, str] | None = None
    ) -> _Run:
        """Make a call with the layouts of a decision. one: output → the input whose memory it shares."""
        op, device, memory = call.op, self.bundle.device, self.driver.memory(self.bundle.device.index)
        self.driver.options = Options(order=order, strict=True, time_limit_s=self._limit_s)
        device.trim()  # so that no workspace has what an earlier call left there
        placed = {
            name: allocate_tensor(device, memory, name, layout, call.inputs.get(name))
            for name, layout in decision.layouts.items()
        }
        shared = {output: placed[name] for output, name in (one or {}).items()}
        arrays = {name: item.array for name, item in {**placed, **shared}.items()}
        try:
            self.bundle[op.name](**arrays, **call.scalars)
        except AotError as error:
            return _Run({**placed, **shared}, [self._failure(op, error, placed)])
        kept = {name: item for name, item in placed.items() if name not in shared and item not in shared.values()}
        return _Run({**placed, **shared}, list(_left_behind(op, kept)))

    def _failure(self, op: Op, error: AotError, placed: Mapping[str, GuardedTensor]) -> Finding:
        if not isinstance(error, EmulationError):
            return Finding("failed", f"{type(error).__name__}: {error}")
        source, kernel = error.source, error.kernel or ""
        if isinstance(error, InstructionBudgetError):
            seconds = self.driver.options.time_limit_s or 0
            text = f"a launch did not end in {seconds:.3g} s: an endless loop, or a short --time-limit"
            return Finding(ENDLESS, text, source=source, kernel=kernel)
        if not isinstance(error, SanitizerError):
            return Finding("failed", str(error), source=source, kernel=kernel)
        spot = spot_of(placed, error)
        text = f"{spot.text}: {error.message}" if spot.text else error.message
        hint = _hint(op, placed) if error.kind in ("bounds", "uninitialised", "race") else ""
        if "several wavefronts" in error.message:
            hint += "; a tile of fewer elements than lanes: see 'Tiles in several wavefronts' in docs/emulator.md"
        text = f"{text}; {error.thread}, `{error.instruction}`{hint}"
        return Finding(error.kind, text, spot.tensor, spot.index, source, kernel)

    # Results

    def _refer(self, call: _Call, results: Mapping[str, Array], refer: Refer) -> Iterator[Finding]:
        try:
            known = refer(call.planned.recipe)
        except NoBoundError:
            return  # of these numbers nothing can be said
        except CaseError as error:
            yield Finding("reference", error.message)
            return
        except AotError as error:
            yield Finding("reference", f"{call.op.reference}: {error}")
            return
        floats = [layout.dtype for layout in call.planned.drawn.decision.layouts.values() if "float" in layout.dtype]
        eps = max((float(ml_dtypes.finfo(numpy_dtype(dtype)).eps) for dtype in floats), default=0.0)
        for name, expected in known.expected.items():
            allowed = SLACK * known.bounds[name] + min(ULPS * eps, MOST) * _largest(expected)
            if results[name].dtype.kind in "iu" and results[name].itemsize == 1:
                allowed += 1  # a tie may be rounded either way
            yield from _differing(name, results[name], expected, allowed)

    def _compare(
        self, call: _Call, packed: Mapping[str, Array], strided: Mapping[str, Array], order: Order
    ) -> Iterator[Finding]:
        """Yield differences of results with other strides, or with another order of wavefronts."""
        if not any(True for _ in _changed(packed, strided)):
            return
        planned = call.planned
        same_order = self._run(call, planned.drawn.decision, order).results(call.op)
        changes = list(_changed(packed, same_order))
        if changes:
            for name, index, values in changes:
                text = f"'{name}' at {list(index)} depends on the order in which wavefronts run: {values}"
                yield from _told([Finding("order", text, name, index)], PACKED, planned.drawn.decision)
            return
        cause = self._cause(call, same_order, order)
        for name, index, values in _changed(same_order, strided):
            text = f"'{name}' at {list(index)} changes {cause}: {values}"
            yield from _told([Finding("strides", text, name, index)], STRIDED, planned.strided)

    def _cause(self, call: _Call, packed: Mapping[str, Array], order: Order) -> str:
        base = call.planned.drawn.decision
        for name, layout in call.planned.strided.layouts.items():
            if layout.strides != base.layouts[name].strides:
                run = self._run(call, _with_layout(base, name, layout), order)
                if run.findings or any(True for _ in _changed(packed, run.results(call.op))):
                    return f"with the strides of '{name}', {list(layout.strides)}"
        return "with strides"

    def _in_place(self, call: _Call, packed: Mapping[str, Array]) -> Iterator[Finding]:
        decision = call.planned.drawn.decision
        for tensor in call.op.tensors:
            output = decision.layouts.get(tensor.name)
            for other in tensor.in_place if tensor.role == "output" else ():
                layout = decision.layouts.get(other)
                if output is None or layout is None or not output.size or not _alike(output, layout):
                    continue
                # The one array lies at an address that keeps the call where it is: with the same variants.
                aligned = layout.aligned and output.aligned
                shared = make_layout(layout.device, layout.dtype, layout.shape, layout.strides, aligned)
                one = _with_layout(_with_layout(decision, other, shared), tensor.name, shared)
                run = self._run(call, one, one={tensor.name: other})
                yield from _told(run.findings, f"'{tensor.name}' is '{other}' itself", one)
                for name, index, values in () if run.findings else _changed(packed, run.results(call.op)):
                    text = f"'{name}' at {list(index)} changes where '{tensor.name}' is '{other}' itself: {values}"
                    yield from _told([Finding("in_place", text, name, index)], PACKED, one)


def _alike(one: Layout, other: Layout) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape)


def _with_layout(decision: Decision, name: str, layout: Layout) -> Decision:
    return msgspec.structs.replace(decision, layouts={**decision.layouts, name: layout})


def _hint(op: Op, placed: Mapping[str, GuardedTensor]) -> str:
    """Name the integer tensors that may be indices and have no declared `range`."""
    free = [
        f"'{tensor.name}'"
        for tensor in op.tensors
        if tensor.name in placed and tensor.role != "output" and not (tensor.range or tensor.offsets)
        if placed[tensor.name].array.dtype.kind in "iu" and placed[tensor.name].array.dtype.itemsize >= 4
    ]
    return f"; the contract allows any values in {', '.join(free)}, `range` restricts them" if free else ""


def _told(findings: Iterable[Finding], memory: str, decision: Decision) -> list[Finding]:
    return [replace(item, memory=memory, layouts=layouts_text(decision)) for item in findings]


def _left_behind(op: Op, placed: Mapping[str, GuardedTensor]) -> Iterator[Finding]:
    roles = {tensor.name: tensor.role for tensor in op.tensors}
    for name, item in placed.items():
        if not item.nbytes:
            continue
        if roles[name] == "output" and (missing := item.unwritten_elements()).any():
            index = _first(missing)
            count = f"{np.count_nonzero(missing)} of {missing.size} elements"
            text = f"output '{name}' has no value at {list(index)}: {count} were not written"
            yield Finding("unwritten", text, name, index)
        outside = np.flatnonzero(item.written() & ~item.is_element)
        if outside.size:
            where = item.spot(int(outside[0])).text
            yield Finding("outside", f"{outside.size} bytes outside of all elements were written, first {where}", name)
        if roles[name] == "input":
            altered = np.flatnonzero(item.content() != item.before)
            if altered.size:
                spot = item.spot(int(altered[0]))
                yield Finding("altered", f"input {spot.text} was written to", name, spot.index)


def _changed(one: Mapping[str, Array], other: Mapping[str, Array]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    for name, values in one.items():
        raw = [np.ascontiguousarray(array).view(f"u{array.itemsize}") for array in (values, other[name])]
        wrong = raw[0] != raw[1]
        if wrong.any() and values.dtype.kind not in "biu":
            eps = float(ml_dtypes.finfo(values.dtype).eps)
            wrong &= deviation(values, other[name]) > SUM_ULPS * eps * _largest(values)
        if wrong.any():
            index = _first(wrong)
            yield name, index, f"{_shown(values[index])} and {_shown(other[name][index])}"


def _differing(name: str, actual: Array, expected: Array, allowed: float) -> Iterator[Finding]:
    wrong = deviation(actual, expected) > allowed
    if wrong.any():
        index = _first(wrong)
        count = f"{np.count_nonzero(wrong)} of {wrong.size} elements differ by more than {allowed:.2g}"
        values = f"{_shown(actual[index])}, the reference gives {_shown(expected[index])}"
        text = f"'{name}' at {list(index)} is {values}: {count}"
        yield Finding("reference", text, name, index)


def _not_finite(call: _Call, results: Mapping[str, Array]) -> Iterator[Finding]:
    """Yield outputs without any finite element, if all inputs are finite. Calls with a fraction of 0 or less are left
    out: it may be under a root."""
    passed = [value for value in call.scalars.values() if isinstance(value, float)]
    if not all(_is_finite(values).all() for values in call.inputs.values()) or any(value <= 0 for value in passed):
        return
    outputs = {tensor.name for tensor in call.op.tensors if tensor.role == "output"}
    for name in outputs & results.keys():
        values = results[name]
        if values.size and not _is_finite(values).any():
            what = "NaN" if np.isnan(values.astype(np.float64)).all() else "infinite or NaN"
            text = f"'{name}' is {what} in all of its {values.size} elements"
            yield Finding("not_finite", text, name, (0,) * values.ndim)


def _is_finite(values: Array) -> Array:
    return np.asarray(np.isfinite(values.astype(np.float64)))


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def _largest(values: Array) -> float:
    finite = np.abs(values.astype(np.float64))
    return float(np.max(finite, initial=0.0, where=np.isfinite(finite)))


def _shown(value: Any) -> str:
    return f"{float(value):.6g}"


def run_case(runner: Runner, op: Op, planned: PlannedCheck, refer: Refer) -> tuple[list[Finding], float]:
    """Return the findings of a call, and the seconds that it took."""
    started = time.monotonic()
    return runner.check(op, planned, refer), time.monotonic() - started
