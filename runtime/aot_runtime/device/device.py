"""`Device`: one GPU through one driver, and the streams, events and graphs on it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

import numpy as np

from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.layout import Layout, Shape, make_layout, packed_strides
from aot_runtime.device.drivers.base import DeviceProperties, Driver
from aot_runtime.errors import ArgumentError, CaptureError, DeviceError

from .array import DeviceArray
from .drivers import device_for_arch, driver_for_arch, first_driver, open_driver
from .memory import DeviceMemory


class Stream:
    """A queue of work on a device. It is destroyed with the object; ordered with the default stream."""

    def __init__(self, device: Device):
        self.device = device
        self.handle = device.driver.create_stream(device.index)
        device.memory.streams[self.handle] = self

    def synchronize(self) -> None:
        """Wait until all work of the stream is done."""
        self.device.driver.synchronize(self.device.index, self.handle)

    def record(self) -> Event:
        """A new event at the stream's end."""
        return Event(self.device, self)

    def wait(self, event: Event) -> None:
        """Make later work of the stream wait for an event."""
        self.device.driver.wait_event(self.device.index, self.handle, event.handle)

    def __del__(self) -> None:
        if getattr(self, "handle", 0) and not sys.is_finalizing():
            self.device.memory.trim(self.handle)
            self.device.driver.destroy_stream(self.device.index, self.handle)


class Event:
    """A moment in a stream, recorded when the object is made."""

    def __init__(self, device: Device, stream: Stream | int | None = None):
        self.device = device
        self.handle = device.driver.create_event(device.index)
        device.driver.record_event(device.index, self.handle, device.handle(stream))

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        self.device.driver.synchronize_event(self.device.index, self.handle)

    def elapsed_ms(self, start: Event) -> float:
        """Milliseconds from `start` to this event; waits for it."""
        self.synchronize()
        return self.device.driver.elapsed_ms(self.device.index, start.handle, self.handle)

    def __del__(self) -> None:
        if getattr(self, "handle", 0) and not sys.is_finalizing():
            self.device.driver.destroy_event(self.device.index, self.handle)


class Graph:
    """A recorded sequence of calls (see `Device.capture`), replayed with one launch.

    It keeps the arrays' addresses: the arrays that were passed must live as long as it does, and their contents
    may change between replays. Workspaces of the captured calls belong to the graph.
    """

    def __init__(self, device: Device):
        self.device = device
        self.handle = 0
        self._workspaces: list[int] = []

    def workspace(self, nbytes: int) -> int:
        """Memory that lives as long as the graph."""
        address = self.device.driver.allocate_now(self.device.index, nbytes)
        self._workspaces.append(address)
        return address

    def launch(self, stream: Stream | int | None = None) -> None:
        """Replay the graph on a stream."""
        if not self.handle:
            raise CaptureError("the graph was not captured to its end")
        self.device.driver.launch_graph(self.device.index, self.handle, self.device.handle(stream))

    def __del__(self) -> None:
        if getattr(self, "handle", 0) and not sys.is_finalizing():
            self.device.driver.destroy_graph(self.device.index, self.handle)
            for address in self._workspaces:
                self.device.driver.free_now(self.device.index, address)


class Device:
    """One GPU. Get it with `get_device`; equal devices are one object."""

    def __init__(self, driver: Driver, index: int):
        self.driver, self.index = driver, index
        self.key = (driver.name, index)
        self.memory = DeviceMemory(driver, index)

    @cached_property
    def properties(self) -> DeviceProperties:
        return self.driver.properties(self.index)

    @property
    def arch(self) -> str:
        return self.properties.arch

    def __repr__(self) -> str:
        return f"{self.driver.name}:{self.index}"

    # Arrays

    def empty(self, shape: Shape | int, dtype: Any, *, order: Shape | None = None, stream: Any = None) -> DeviceArray:
        """An array of unspecified content. `order` lists the dims from outermost to innermost in memory."""
        extents = (shape,) if isinstance(shape, int) else tuple(int(extent) for extent in shape)
        if min(extents, default=0) < 0 or (order is not None and sorted(order) != list(range(len(extents)))):
            raise ArgumentError(f"no array has shape {extents} with its dims in order {order}")
        layout = make_layout(self.key, dtype_name(dtype), extents, packed_strides(extents, order), True)
        return self.new(layout, layout.size * layout.itemsize, self.handle(stream))

    def new(self, layout: Layout, nbytes: int, stream: int) -> DeviceArray:
        """As `empty`, for a packed layout of this device and its size in bytes."""
        if not nbytes:
            return DeviceArray(self, 0, layout, None)
        owner = self.memory.allocate(nbytes, stream)
        return DeviceArray(self, owner.address, layout, owner)

    def array(self, host: Any, dtype: Any = None, *, order: Shape | None = None, stream: Any = None) -> DeviceArray:
        """Copy a numpy array (or what numpy makes one of) to the device, packed."""
        source = np.asarray(host, dtype)
        result = self.empty(source.shape, source.dtype, order=order, stream=stream)
        result.copy_from(source, stream)
        return result

    def wrap(self, foreign: Any) -> DeviceArray:
        """An array of another library in this device's memory, not copied (DLPack, `__cuda_array_interface__`)."""
        from .interop import wrap_foreign

        return wrap_foreign(self, foreign)

    # Work

    def stream(self) -> Stream:
        """A new stream."""
        return Stream(self)

    def event(self, stream: Stream | int | None = None) -> Event:
        """A new event at the end of a stream."""
        return Event(self, stream)

    def synchronize(self, stream: Stream | int | None = None) -> None:
        """Wait until all work of a stream is done."""
        self.driver.synchronize(self.index, self.handle(stream))

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[Graph]:
        """Record the calls on `stream` into a graph instead of running them.

        Nothing allocates meanwhile: every output is passed with `out=` (else `CaptureError`).
        """
        graph, handle = Graph(self), self.handle(stream)
        self.driver.begin_capture(self.index, handle)
        self.memory.graphs[handle] = graph
        try:
            yield graph
        finally:
            try:
                graph.handle = self.driver.end_capture(self.index, handle)
            finally:
                del self.memory.graphs[handle]
                self.memory.release_deferred()

    def handle(self, stream: Any) -> int:
        """The handle of a stream: ours, an integer, None (the default stream), or another library's object."""
        if stream is None:
            return 0
        if isinstance(stream, Stream):
            if stream.device is not self:
                raise ArgumentError(f"the stream belongs to {stream.device}, the arrays are on {self}")
            return stream.handle
        for attribute in ("cuda_stream", "ptr"):  # torch, cupy
            stream = getattr(stream, attribute, stream)
        if isinstance(stream, int) and not isinstance(stream, bool):
            return stream
        raise ArgumentError(f"stream is {type(stream).__name__}; a Stream, an integer handle or None is allowed")

    # Host memory

    def write(self, address: int, host: np.ndarray[Any, Any], stream: int) -> None:
        """Copy a packed numpy array to an address."""
        self.driver.copy_to_device(self.index, address, host.ctypes.data, host.nbytes, stream)

    def read(self, host: np.ndarray[Any, Any], address: int, stream: int) -> None:
        """Fill a packed numpy array from an address."""
        self.driver.copy_to_host(self.index, host.ctypes.data, address, host.nbytes, stream)


def dtype_name(dtype: Any) -> str:
    """The name of a dtype that arrays may have. Raises `ArgumentError`."""
    try:
        name = dtype if isinstance(dtype, str) and dtype in DTYPES else np.dtype(dtype).name
    except TypeError:
        name = repr(dtype)
    if name not in DTYPES:
        raise ArgumentError(f"dtype {name} is not supported; allowed: {', '.join(DTYPES)}")
    return name


_REGISTRY_LOCK = threading.Lock()
_BY_ARCH = "emulator"
"""The driver whose devices are named by arch: it has one of each that it knows."""


@cache
def _driver(name: str) -> Driver:
    return open_driver(name)


@cache
def _device(driver: str, index: int) -> Device:
    opened = _driver(driver)
    count = opened.device_count()
    if not 0 <= index < count:
        raise DeviceError(f"there is no device {driver}:{index}; {driver} shows {count} device(s)")
    return Device(opened, index)


def get_device(device: Device | str | None = None, arch: str | None = None) -> Device:
    """A device by name: `hip:0`, `cuda:1`, `hip`, `emulator:gfx942`. None is the first GPU: of the driver that `arch`
    needs, if given. `emulator` by itself is an emulated device of `arch`.

    One driver object serves a process, as the GPU APIs themselves are process-wide. Raises `DeviceError`.
    """
    if isinstance(device, Device):
        return device
    if device is None:
        name, which = driver_for_arch(arch) if arch else first_driver(), ""
    else:
        name, _, which = device.partition(":")
        if which and not (which.isdecimal() or name == _BY_ARCH):
            raise DeviceError(f"'{device}' is not a device; write hip, hip:0, cuda, cuda:1 or emulator:gfx942")
    with _REGISTRY_LOCK:
        if which.isdecimal():
            return _device(name, int(which))
        wanted = which or arch
        return _device(name, device_for_arch(_driver(name), wanted) if name == _BY_ARCH and wanted else 0)
