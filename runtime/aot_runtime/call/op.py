"""Expose an op of an open bundle as a Python function that plans new calls and runs known plans."""

from __future__ import annotations

import struct
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from aot_runtime.contract.layout import packing_order
from aot_runtime.contract.records import Op, Tensor
from aot_runtime.device.array import DeviceArray
from aot_runtime.device.device import Device
from aot_runtime.device.uncopyable import Shared
from aot_runtime.errors import ArgumentError, CaptureError
from aot_runtime.logs import log

from .arguments import alias, parameter_texts
from .choosing import Decision
from .documentation import Built, built_dtypes, call_signature, docstring
from .launches import CallShape, build_run, define, host_copy, layout_of
from .planner import Planner
from .recorder import current, watch

if TYPE_CHECKING:
    from aot_runtime.device.code import Code

    from .index_tensors import Contents

MAX_PLANS = 4096
"""Maximum number of plans kept per op. When it is reached, all are dropped and planned again on demand."""


def build_op(
    planner: Planner, device: Device, code: Code, check_contents: bool = False, bundle: str = "a bundle"
) -> Callable[..., Any]:
    """Build the function that users call. Its signature and docstring come from the contract.

    Args:
        check_contents: also check the contents of integer tensors on the device; see `index_tensors`.
        bundle: description of the bundle, for the op's `repr`.
    """
    return BundleOp(planner.op, bundle, _Calls(planner, device, code, check_contents).function)._method


class BundleOp(Shared):
    """The object that an op's function is bound to.

    A bound method shows this object's `repr` and is called as fast as a function; an object with `__call__` is slower.
    """

    __slots__ = ("_bundle", "_method", "_op")
    _instead = "; open its bundle again from its path"

    def __init__(self, op: Op, bundle: str, function: Any):
        self._op, self._bundle = op, bundle
        self._method = MethodType(function, self)

    def __repr__(self) -> str:
        from .display import call_text

        return f"<op {call_text(self._op)} of {self._bundle}>"

    def __getattr__(self, name: str) -> Any:
        """Return the method by its name. Copying a bound method looks it up this way."""
        if name == self._op.name:
            return self._method
        raise AttributeError(f"{self!r} has no attribute '{name}'")


class _Calls:
    def __init__(self, planner: Planner, device: Device, code: Code, check_contents: bool):
        self.planner, self.device, self.code = planner, device, code
        self.op = op = planner.op
        self.contents = self._contents(check_contents)
        self.shape = CallShape(
            tuple(tensor.name for tensor in op.tensors),
            tuple(scalar.name for scalar in op.scalars if scalar.name not in planner.static),
        )
        self.plans: dict[Any, Callable[..., Any]] = {}
        self.warned = False
        self.lock = threading.Lock()
        self.results: dict[tuple[str, ...], Any] = {}
        self.function = self._write()
        watch(self)

    def _contents(self, read_devices: bool) -> Contents | None:
        if not any(tensor.offsets or tensor.range for tensor in self.op.tensors):
            return None
        from .index_tensors import Contents

        return Contents(self.op, read_devices)

    def _write(self) -> Callable[..., Any]:
        op = self.op
        source = call_source(op, self.planner.static)
        names = {
            "_plans": self.plans,
            "_slow": self.slow,
            "_unknown": (KeyError, AttributeError, TypeError),
            "_unfit": (struct.error, OverflowError),
            "_misfit": self._misfit,
        }
        function: Any = define(op.name, source, f"<aot_runtime: {op.name} call {crc32(source.encode()):08x}>", names)
        built = built_dtypes(op, self.planner.choosing.table.values())
        function.__doc__, function.__signature__ = docstring(op, built), call_signature(op, "_op")
        function.__module__ = "aot_runtime"
        function._repr_html_ = partial(_html, op, built)
        function.source = source
        function.planner = self.planner
        function.decide = self.decide
        return function

    # The slow path: no plan yet, or arguments that are not device arrays

    def slow(self, tensors: dict[str, Any], scalars: dict[str, Any], stream: Any) -> Any:
        """Copy host arrays to the device, find or make the plan, run it, and copy results back to the host."""
        handle = self._handle(stream)
        tensors = {name: self._on_host(name, value) for name, value in tensors.items()}
        on_host = self._all_numpy(tensors)
        self._hold_uncaptured(tensors, handle)
        arrays = {name: self._to_device(name, value, stream) for name, value in tensors.items()}
        self._require_apart(tensors)
        self._check_device(arrays)
        try:
            run = self._plan(arrays, scalars)
            if self.contents is not None:
                self.contents.check(tensors, arrays, scalars, stream)
            result = run(stream, *arrays.values(), *(scalars[name] for name in self.shape.scalars))
        except (struct.error, OverflowError) as error:
            raise self._misfit(error) from None
        self._write_back(tensors, arrays, stream)
        return self._hand_back(result, tensors, stream, on_host)

    def _require_apart(self, tensors: Mapping[str, Any]) -> None:
        """Check that numpy arrays to which results are copied back overlap no other."""
        if any(tensor.role != "input" and isinstance(tensors[tensor.name], np.ndarray) for tensor in self.op.tensors):
            from .aliasing import require_apart_on_host

            require_apart_on_host(self.op, tensors)

    def _handle(self, stream: Any) -> int:
        try:
            return self.device.handle(stream)
        except ArgumentError as error:
            raise ArgumentError(f"{self.op.name}: {error}") from None

    def _hold_uncaptured(self, tensors: Mapping[str, Any], stream: int) -> None:
        """Raise CaptureError for host arrays on a capturing stream: each replay would repeat the copies."""
        on_host = [name for name, value in tensors.items() if isinstance(value, np.ndarray | np.generic)]
        if on_host and stream and self.device.driver.is_capturing(self.device.index, stream):
            raise CaptureError(
                f"{self.op.name}: argument '{on_host[0]}' is in host memory, which cannot be copied on a stream that "
                "is being captured: copy it to the device before, with `Device.array`"
            )

    def _misfit(self, error: Exception) -> ArgumentError:
        names = ", ".join(self.shape.scalars)
        return ArgumentError(f"{self.op.name}: a scalar ({names}) does not fit its type: {error}")

    def _plan(self, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> Callable[..., Any]:
        key = (
            *(layout_of(array) for array in arrays.values()),
            *(value if name in self.planner.static else value is None for name, value in scalars.items()),
        )
        try:
            run = self.plans.get(key)
        except TypeError:
            run = None  # an unhashable scalar: the planner reports it
        return run or self._make(key, arrays, scalars)

    def _make(self, key: Any, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> Callable[..., Any]:
        layouts = {name: layout_of(array) for name, array in arrays.items()}
        recording = current()
        note = None
        if recording is None:
            decision = self.decide(layouts, scalars)
            missed = any(launch.missed for launch in decision.launches)
            if not self.warned and (missed or not (decision.aligned or decision.misaligned)):
                from .refusal import warned_of_second_choice

                entry = partial(self.planner.entry, layouts, scalars, decision.names)
                origin, choosing = self.planner.origin, self.planner.choosing
                self.warned = warned_of_second_choice(choosing, decision, origin.index, origin.place, entry)
        else:
            decision, note = recording.plan(self, layouts, scalars)
        given = frozenset(name for name, value in (*arrays.items(), *scalars.items()) if value is not None)
        log("planned a call of %s: %s", self.op.name, ", ".join(taken.variant.symbol for taken in decision.launches))
        op = self.op if recording is None else recording.contract(self.op, given)
        run = build_run(op, decision, self.shape, given, self.device, self.code)
        outputs = tuple(t.name for t in self.op.tensors if t.role == "output" and t.name in decision.layouts)
        if len(outputs) > 1:
            run = self._named(run, outputs)
        if note is not None:
            run = note.counting(run)
        if self.contents is not None and self.contents.reads_devices:
            return run  # a cached plan would bypass the check of contents
        with self.lock:
            if len(self.plans) >= MAX_PLANS:
                self.plans.clear()
            if current() is recording:  # otherwise `forget` may have run already
                self.plans[key] = run
        return run

    def forget(self) -> None:
        with self.lock:
            self.plans.clear()

    def _named(self, run: Callable[..., Any], outputs: tuple[str, ...]) -> Callable[..., Any]:
        if outputs not in self.results:
            self.results[outputs] = namedtuple(f"{self.op.name}_result", outputs)
        make = self.results[outputs]._make
        return lambda *arguments: make(run(*arguments))

    def decide(self, layouts: Mapping[str, Any], scalars: Mapping[str, Any]) -> Decision:
        """Plan a call with these layouts and scalars. Raises `ArgumentError`."""
        properties = self.device.properties
        key, cus, xcds = self.device.key, properties.num_cus, properties.num_xcds
        return self.planner.decide(layouts, scalars, key, cus, properties.arch, xcds)

    # Arrays in and out

    def _all_numpy(self, tensors: Mapping[str, Any]) -> bool:
        inputs = [tensors[t.name] for t in self.op.tensors if t.role != "output" and tensors[t.name] is not None]
        return bool(inputs) and all(isinstance(value, np.ndarray | np.generic) for value in inputs)

    def _on_host(self, name: str, value: Any) -> Any:
        """View another library's host array as a numpy array; return anything else unchanged."""
        if value is None or isinstance(value, DeviceArray | np.ndarray | np.generic):
            return value
        from aot_runtime.device.foreign import host_array

        try:
            host = host_array(value)
        except ArgumentError as error:
            raise ArgumentError(f"{self.op.name}: argument '{name}': {error}") from None
        return value if host is None else host

    def _to_device(self, name: str, value: Any, stream: Any) -> DeviceArray | None:
        if value is None or isinstance(value, DeviceArray):
            return value
        tensor = next(tensor for tensor in self.op.tensors if tensor.name == name)
        if _is_masked(value):
            raise ArgumentError(
                f"{self.op.name}: argument '{name}' is a masked array; pass its data, or what `.filled()` gives"
            )
        if isinstance(value, np.ndarray | np.generic):
            if tensor.role != "input" and not (isinstance(value, np.ndarray) and value.flags.writeable):
                raise ArgumentError(f"{self.op.name}: argument '{name}' is written to, but is read-only")
            return self._upload(tensor, np.asarray(value), stream)
        try:
            return self.device.wrap(value)
        except ArgumentError as error:
            raise ArgumentError(f"{self.op.name}: argument '{name}': {error}") from None

    def _upload(self, tensor: Tensor, value: np.ndarray[Any, Any], stream: Any) -> DeviceArray:
        order = packing_order(tensor, value.ndim, value.strides)
        if tensor.pointer and not value.transpose(order).flags.c_contiguous:
            text = "has gaps or repeated elements, which a copy on the device would not have: pass a packed array"
            raise ArgumentError(f"{self.op.name}: argument '{tensor.name}' {text}")
        try:
            if tensor.role == "output":
                return self.device.empty(value.shape, value.dtype, order=order, stream=stream)
            return self.device.array(value, order=order, stream=stream)
        except ArgumentError as error:
            raise ArgumentError(f"{self.op.name}: argument '{tensor.name}': {error}") from None

    def _check_device(self, arrays: Mapping[str, DeviceArray | None]) -> None:
        for name, array in arrays.items():
            if array is not None and array.layout.device != self.device.key:
                raise ArgumentError(
                    f"{self.op.name}: argument '{name}' is on {array.device}, the bundle was opened for {self.device}"
                )

    def _write_back(self, tensors: Mapping[str, Any], arrays: Mapping[str, Any], stream: Any) -> None:
        for tensor in self.op.tensors:
            host = tensors[tensor.name]
            if tensor.role != "input" and isinstance(host, np.ndarray):
                host_copy(host, arrays[tensor.name], stream)

    def _hand_back(self, result: Any, tensors: Mapping[str, Any], stream: Any, on_host: bool) -> Any:
        """Return the caller's own outputs as given, and allocated ones as numpy arrays if all inputs are numpy's."""

        def one(name: str, value: DeviceArray) -> Any:
            if tensors.get(name) is not None:
                return tensors[name]
            return value.numpy(stream) if on_host else value

        if isinstance(result, tuple):
            return type(result)(*(one(name, value) for name, value in result._asdict().items()))  # type: ignore[attr-defined]
        if result is None:
            return None
        given = [t.name for t in self.op.tensors if t.role == "output" and tensors[t.name] is not None]
        return one(given[0] if given else "", result)


def _html(op: Op, built: Built) -> str:
    from .display import html

    return html(op, built)


def _is_masked(value: Any) -> bool:
    """Return True for a numpy masked array, without importing `numpy.ma`."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, module.MaskedArray)


def call_source(op: Op, static: frozenset[str]) -> str:
    """Return the source of an op's function. A known call is one look-up, keyed by layouts and scalars."""
    required = [t.name for t in op.tensors if t.role != "output" and not t.optional]
    parameters = parameter_texts(op, lambda a: a.name if a.name in required else f"{a.name}=None")
    out = alias(op)
    key = [
        f"{t.name}.layout" if t.name in required else f"None if {t.name} is None else {t.name}.layout"
        for t in op.tensors
    ] + [s.name if s.name in static else f"{s.name} is None" for s in op.scalars]
    tensors = [t.name for t in op.tensors]
    scalars = [s.name for s in op.scalars]
    free = [name for name in scalars if name not in static]
    lines = [f"def {op.name}({', '.join(['_op', *parameters])}):"]
    if out:
        lines.append(f"    if {out} is not None: {next(t.name for t in op.tensors if t.role == 'output')} = {out}")
    lines += [
        "    try:",
        f"        _run = _plans[{', '.join(key)},]",
        "    except _unknown:  # a new call, or arguments that are not device arrays",
        "        _run = None  # leave the handler, so that later errors are not chained to this one",
        "    if _run is None:",
        f"        return _slow({_dict(tensors)}, {_dict(scalars)}, stream)",
        "    try:",
        f"        return _run({', '.join(['stream', *tensors, *free])})",
        "    except _unfit as _error:",
        "        raise _misfit(_error) from None",
    ]
    return "\n".join(lines) + "\n"


def _dict(names: list[str]) -> str:
    return "{" + ", ".join(f"{name!r}: {name}" for name in names) + "}"
