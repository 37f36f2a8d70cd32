"""A GPU accessed through one driver: its memory, streams and graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from aot_runtime.contract.dtypes import dtype_name, numpy_dtype
from aot_runtime.contract.layout import Layout, Shape, make_layout, packed_strides
from aot_runtime.errors import ArgumentError, CaptureError
from aot_runtime.texts import shown

from .array import DeviceArray
from .drivers import DeviceProperties
from .holdings import Holdings
from .memory import DeviceMemory, MemoryStats
from .uncopyable import Shared

if TYPE_CHECKING:
    from .drivers.protocol import Driver
    from .graph import Graph
    from .streams import Event, Stream, StreamLike


class Device(Shared):
    """A GPU, returned by `get_device`. Each GPU has a single object."""

    _instead = "; pass its name on, as in get_device('hip:0')"

    def __init__(self, driver: Driver, index: int):
        self.driver, self.index = driver, index
        self.key = (driver.name, index)
        self.holdings = Holdings(index)
        self.memory = DeviceMemory(driver, index, self.holdings)

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
        """Return an uninitialised array. `order` lists the dims from outermost to innermost in memory."""
        extents = (shape,) if isinstance(shape, int) else tuple(int(extent) for extent in shape)
        if min(extents, default=0) < 0 or (order is not None and sorted(order) != list(range(len(extents)))):
            raise ArgumentError(f"no array has shape {shown(extents)} with its dims in order {shown(order)}")
        layout = make_layout(self.key, dtype_name(dtype), extents, packed_strides(extents, order), True)
        return self.new(layout, layout.size * layout.itemsize, self.handle(stream))

    def zeros(self, shape: Shape | int, dtype: Any, *, order: Shape | None = None, stream: Any = None) -> DeviceArray:
        """Return an array of zeros. See `empty` for the arguments."""
        return self.full(shape, 0, dtype, order=order, stream=stream)

    def full(
        self, shape: Shape | int, value: Any, dtype: Any, *, order: Shape | None = None, stream: Any = None
    ) -> DeviceArray:
        """Return an array filled with a number, converted by numpy's rules. See `empty` for the arguments."""
        name = dtype_name(dtype)
        try:
            element = np.asarray(value, numpy_dtype(name))
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"{shown(value)} cannot fill an array of {name}: {error}") from None
        if element.shape:
            raise ArgumentError(f"{shown(value)} cannot fill an array of {name}: it is not a single number")
        result = self.empty(shape, name, order=order, stream=stream)
        content = element.tobytes()
        if len(set(content)) == 1:
            result.fill(content[0], stream)
        else:
            result.copy_from(np.full(result.shape, element), stream)
        return result

    def new(self, layout: Layout, nbytes: int, stream: int) -> DeviceArray:
        """Return an uninitialised array with a packed layout of this device. `nbytes` is the layout's size."""
        if not nbytes:
            return DeviceArray(self, 0, layout, None)
        owner = self.memory.allocate(nbytes, stream)
        return DeviceArray(self, owner.address, layout, owner)

    def array(self, host: Any, dtype: Any = None, *, order: Shape | None = None, stream: Any = None) -> DeviceArray:
        """Copy a numpy array, or anything that converts to one, to a packed array on the device.

        Examples:
            >>> x = device.array(np.ones((8, 1000)), "float16")
            >>> y = rows.softmax(x).numpy()
        """
        source = np.asarray(host, None if dtype is None else numpy_dtype(dtype_name(dtype)))
        result = self.empty(source.shape, source.dtype, order=order, stream=stream)
        result.copy_from(source, stream)
        return result

    def wrap(self, foreign: Any) -> DeviceArray:
        """Wrap another library's array in this device's memory without a copy (DLPack, `__cuda_array_interface__`)."""
        from .foreign import wrap_foreign

        return wrap_foreign(self, foreign)

    def trim(self, keep: int = 0) -> None:
        """Wait for the device and return unused memory to the system.

        Args:
            keep: bytes that the driver's pool may keep, including those in use.

        Raises:
            CaptureError: a stream of the device is being captured.
        """
        if keep < 0:
            raise ArgumentError(f"keep is {keep}; 0 or more bytes are allowed")
        self.holdings.settle()
        if self.holdings.captures:
            raise CaptureError("memory cannot be given back while a stream is being captured")
        self.memory.give_back(keep)

    def memory_stats(self) -> MemoryStats:
        """Return how many bytes the runtime's pool holds, and how many of them are in use."""
        return self.memory.stats()

    def free_memory(self) -> int:
        """Return the bytes available to new arrays: free device memory plus unused memory of the pool."""
        stats = self.memory_stats()
        return self.driver.free_memory(self.index) + stats.held - stats.in_use

    # Work

    def stream(self) -> Stream:
        """Return a new stream."""
        from .streams import Stream

        return Stream(self)

    def event(self, stream: StreamLike | None = None) -> Event:
        """Return a new event recorded on a stream."""
        from .streams import Event

        return Event(self, stream)

    def synchronize(self, stream: StreamLike | None = None) -> None:
        """Wait for all work of a stream."""
        self.driver.synchronize(self.index, self.handle(stream))

    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        """Record the calls on `stream` into a graph instead of running them.

        Calls cannot allocate during a capture: pass every output with `out=`, or `CaptureError` is raised.
        """
        from .graph import captured

        return captured(self, stream)

    def handle(self, stream: Any) -> int:
        """Return the handle of a stream: a `Stream`, an integer, None (the default stream), or a foreign stream."""
        if stream is None:
            return 0
        kind, foreign_handle = self._streams
        if isinstance(stream, kind):
            if stream.device is not self:
                raise ArgumentError(f"the stream belongs to {stream.device}, the arrays are on {self}")
            return stream.handle
        return foreign_handle(stream)

    @cached_property
    def _streams(self) -> tuple[type[Stream], Callable[[Any], int]]:
        from .streams import Stream, foreign_handle

        return Stream, foreign_handle

    # Host memory

    def write(self, address: int, host: np.ndarray[Any, Any], stream: int) -> None:
        """Copy a packed numpy array to an address."""
        self._hold_uncaptured(stream)
        self.driver.copy_to_device(self.index, address, host.ctypes.data, host.nbytes, stream)

    def read(self, host: np.ndarray[Any, Any], address: int, stream: int) -> None:
        """Copy memory at an address to a packed numpy array."""
        self._hold_uncaptured(stream)
        self.driver.copy_to_host(self.index, host.ctypes.data, address, host.nbytes, stream)

    def _hold_uncaptured(self, stream: int) -> None:
        """Raise CaptureError for a copy on a capturing stream: each replay would repeat it."""
        if stream and self.driver.is_capturing(self.index, stream):
            raise CaptureError("host memory cannot be copied on a stream that is being captured: copy before or after")
