"""The common implementation of the `Driver` protocol for HIP and CUDA. Subclasses implement the differences."""

from __future__ import annotations

import ctypes
import os
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from aot_runtime.contract.records import TensorMap
from aot_runtime.errors import DeviceError, DeviceMemoryError, DriverCallError

from . import DeviceProperties, Outcome, handle_of
from .api import HERE, INVALID_VALUE, GpuApi
from .launch import KernelLaunch, LaunchFunction

if TYPE_CHECKING:
    from .protocol import PreparedLaunch
    from .staging import Staging

# Values on which the two APIs agree.
_STREAM_ORDERED_WITH_DEFAULT = 0
_CAPTURE_RELAXED = 2
_DEVICE_MEMORY = 2
_EVENT_WITHOUT_TIME = 2
_PINNED_FOR_ALL_DEVICES = 1
_NOT_READY = 600
_POOL_RESERVED, _POOL_USED = 5, 7

KEEP_EVERYTHING = 2**64 - 1
"""Release threshold of a pool that never returns memory to the system.

The threshold includes memory in use. With a lower one, a process that uses more would lose all unused memory of the
pool at each synchronisation.
"""

T = TypeVar("T")


class GpuDriver(GpuApi):
    """A `Driver` over a binding of HIP or CUDA.

    Calls are made with their device current in the calling thread, and restore the previous one.
    """

    name: str
    exact_allocations = False
    is_emulated = False
    launch_call: str = "LaunchKernel"
    """Name of the call that launches a kernel: this one, or `LaunchKernelEx`."""
    launches_early: bool = False
    """Programmatic dependent launch is available: a kernel may start before its predecessors have ended."""
    launch_end: ClassVar[int]
    lost_device: ClassVar[frozenset[int]] = frozenset()
    unasked_of_capture: ClassVar[tuple[None, ...]] = ()  # further arguments of StreamIsCapturing
    relaxed_capture: Any
    """The binding's constant for the relaxed capture mode."""

    def __init__(self, binding: Any, library: ctypes.PyDLL):
        super().__init__(binding, library)
        self._pools: dict[int, int] = {}
        self._stagings: dict[int, Staging] = {}
        self._recorded: list[tuple[list[Any], list[Any]]] = []
        """(made, gone) of the recorded graphs from which `end_capture` instantiates executable ones."""
        self._unpooled: dict[tuple[int, int], int] = {}
        """(device, address) → bytes of the allocations on devices without a pool."""
        self._is_capturing = getattr(library, self._full_name("StreamIsCapturing"))  # each call on a stream asks
        name = self.launch_call
        self._launch = LaunchFunction(
            call=getattr(library, self._full_name(name)),
            end=self.launch_end,
            lost_device=self.lost_device,
            error=lambda status: self._error(name, status),
            takes_config=name.endswith("Ex"),
        )

    # What a subclass knows.
    @abstractmethod
    def properties(self, device: int) -> DeviceProperties: ...

    @abstractmethod
    def _pointer(self, address: int) -> tuple[int, int]:
        """Return the memory type and device of an address. For foreign memory, the API raises or returns type 0."""

    @abstractmethod
    def _has_pools(self, device: int) -> bool: ...

    @abstractmethod
    def _create_pool(self, device: int) -> int:
        """Create a pool that keeps freed memory."""

    @abstractmethod
    def _permit_lds(self, function: int, lds_bytes: int) -> None:
        """Raise the function's limit of dynamic LDS if the API's default is below the hardware's."""

    # Memory.
    def _pool(self, device: int) -> int:
        return self._once(self._pools, device, self._new_pool)

    def _new_pool(self, device: int) -> int:
        if not self._has_pools(device):
            return 0
        pool = self._create_pool(device)
        self._at_end("MemPoolDestroy", pool)
        return pool

    def _at_end(self, name: str, handle: int) -> None:
        """Make a call when the driver object is finalised, but neither in a fork nor during the interpreter's exit."""
        function, process = getattr(self._binding, self._full_name(name)), os.getpid()
        weakref.finalize(self, lambda: os.getpid() == process and function(handle)).atexit = False

    def allocate(self, device: int, nbytes: int, stream: int, made: Outcome = None) -> int:
        pool = self._pool(device)
        if not pool:
            address = self.allocate_now(device, nbytes, made)
            self._unpooled[device, address] = nbytes
            return address
        return self._make(device, "MemAllocFromPoolAsync", nbytes, pool, stream, made=made)

    def free(self, device: int, address: int, stream: int, gone: Outcome = None) -> None:
        if self._pool(device):
            self._check_stream(device, stream)
            self._give_back(device, "MemFreeAsync", address, stream, gone=gone)
        else:
            self.synchronize(device, stream)
            self._unpooled.pop((device, address), None)
            self.free_now(device, address, gone)

    def trim(self, device: int, keep: int) -> None:
        pool = self._pools.get(device)
        with self._current(device), self._despite_capture():
            self._destroy_recorded(device)
            if pool:
                self._call("MemPoolTrimTo", pool, keep)

    def memory_in_use(self, device: int) -> tuple[int, int]:
        pool = self._pool(device)
        if not pool:
            total = sum(nbytes for (where, _), nbytes in list(self._unpooled.items()) if where == device)
            return total, total
        with self._current(device):
            return self._pool_figure(pool, _POOL_RESERVED), self._pool_figure(pool, _POOL_USED)

    def free_memory(self, device: int) -> int:
        with self._current(device):
            return int(self._call("MemGetInfo"))

    def _pool_figure(self, pool: int, attribute: int) -> int:
        """Return an attribute of a pool in bytes, from the library itself: the bindings return it differently."""
        name, value = "MemPoolGetAttribute", ctypes.c_uint64()
        status = getattr(self._library, self._full_name(name))(ctypes.c_void_p(pool), attribute, ctypes.byref(value))
        if status:
            raise self._error(name, status)
        return value.value

    def _with_room(self, device: int, made: Outcome, take: Callable[[], T]) -> T:
        """Call `take`, which allocates outside of the pool. If memory runs out, trim the pool and try again."""
        try:
            return take()
        except DeviceMemoryError:
            if not self._pools.get(device):
                raise
            self.trim(device, 0)
            if made:
                made.clear()
            return take()

    @contextmanager
    def _despite_capture(self) -> Iterator[None]:
        """Return a context in which calls may wait or allocate while a stream of any library is being captured."""
        exchange = getattr(self._library, self.prefix + "ThreadExchangeStreamCaptureMode")
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        exchange(ctypes.byref(mode))
        try:
            yield
        finally:
            exchange(ctypes.byref(mode))

    def allocate_now(self, device: int, nbytes: int, made: Outcome = None) -> int:
        with self._current(device), self._despite_capture():
            return self._with_room(device, made, lambda: self._make(device, "MemAlloc", nbytes, made=made))

    def free_now(self, device: int, address: int, gone: Outcome = None) -> None:
        with self._current(device), self._despite_capture():
            self._give_back(device, "MemFree", address, gone=gone)

    def copy_to_device(self, device: int, address: int, host: int, nbytes: int, stream: int) -> None:
        # The driver's own copy through pinned memory is faster, and waits for the stream.
        if self._is_idle(device, stream):
            self._copy_and_wait(device, "MemcpyHtoDAsync", address, host, nbytes, stream)
        else:
            self._staging(device).to_device(address, host, nbytes, stream)

    def copy_to_host(self, device: int, host: int, address: int, nbytes: int, stream: int) -> None:
        self._copy_and_wait(device, "MemcpyDtoHAsync", host, address, nbytes, stream)

    def _copy_and_wait(self, device: int, name: str, to: int, source: int, nbytes: int, stream: int) -> None:
        with self._current(device), self._despite_capture():
            self._call(name, to, source, nbytes, stream)
            # CUDA has read pageable memory on return; no version of HIP documents this.
            self._call("StreamSynchronize", stream)

    def _is_idle(self, device: int, stream: int) -> bool:
        try:
            with self._current(device), self._despite_capture():
                self._call("StreamQuery", stream)
        except DriverCallError as error:
            if error.status != _NOT_READY:
                raise
            return False
        return True

    def _staging(self, device: int) -> Staging:
        from .staging import Staging

        return self._once(self._stagings, device, lambda device: Staging(self, device))

    def allocate_host(self, device: int, nbytes: int) -> int:
        """Allocate pinned host memory that lives as long as the driver object."""
        with self._current(device), self._despite_capture():
            address = self._create(device, "MemHostAlloc", nbytes, _PINNED_FOR_ALL_DEVICES)
        self._at_end("MemFreeHost", address)
        return address

    def copy_from_pinned(self, device: int, address: int, host: int, nbytes: int, stream: int) -> None:
        """Copy pinned host memory to the device, in stream order."""
        self._on(device, "MemcpyHtoDAsync", address, host, nbytes, stream)

    def fill(self, device: int, address: int, byte: int, nbytes: int, stream: int) -> None:
        self._on(device, "MemsetD8Async", address, byte, nbytes, stream)

    def device_of(self, address: int) -> int:
        with self._current(0):
            kind, device = self._pointer(address)
        if kind < _DEVICE_MEMORY:
            meaning = f"{address:#x} is host memory, not device memory"
            raise self._error("PointerGetAttributes", INVALID_VALUE, meaning)
        return device

    # Code.
    def load_module(self, device: int, image: bytes, made: Outcome = None) -> int:
        with self._current(device), self._despite_capture():
            return self._with_room(device, made, lambda: self._make(device, "ModuleLoadData", image, made=made))

    def unload_module(self, device: int, module: int, gone: Outcome = None) -> None:
        self._give_back(device, "ModuleUnload", module, gone=gone)

    def get_function(self, device: int, module: int, symbol: str, lds_bytes: int) -> int:
        with self._current(device):
            function = self._create(device, "ModuleGetFunction", module, symbol.encode())
            self._permit_lds(function, lds_bytes)
        return function

    def prepare(
        self, device: int, function: int, grid: tuple[int, int, int], block: int, lds_bytes: int,
        kernargs: bytes | memoryview, early: bool = False,
    ) -> PreparedLaunch:  # fmt: skip
        if not function:
            raise DeviceError("cannot prepare the launch of a null function")
        selector = None if self._is_always_current(device) else self._selector_of(device)
        several, early = self._count > 1, early and self.launches_early
        return KernelLaunch(self._launch, selector, several, function, grid, block, lds_bytes, kernargs, early)

    def tensor_map(
        self, device: int, tensor_map: TensorMap, shape: tuple[int, ...], strides: tuple[int, ...], address: int
    ) -> bytes:
        raise DeviceError(f"{self.name} has no tensor maps: those are NVIDIA's, from sm_90 on")

    # Streams, events, graphs.
    def create_stream(self, device: int, made: Outcome = None) -> int:
        return self._make(device, "StreamCreate", _STREAM_ORDERED_WITH_DEFAULT, made=made)

    def destroy_stream(self, device: int, stream: int, gone: Outcome = None) -> None:
        self._give_back(device, "StreamDestroy", stream, gone=gone)

    def synchronize(self, device: int, stream: int) -> None:
        self._on(device, "StreamSynchronize", stream)

    def create_event(self, device: int, made: Outcome = None) -> int:
        return self._make(device, "EventCreate", 0, made=made)

    def create_marker(self, device: int) -> int:
        """Create an event without timing that lives as long as the driver object."""
        event = self._create(device, "EventCreate", _EVENT_WITHOUT_TIME)
        self._at_end("EventDestroy", event)
        return event

    def destroy_event(self, device: int, event: int, gone: Outcome = None) -> None:
        self._give_back(device, "EventDestroy", event, gone=gone)

    def record_event(self, device: int, event: int, stream: int) -> None:
        self._check_stream(device, stream)
        self._on(device, "EventRecord", event, stream)

    def synchronize_event(self, device: int, event: int) -> None:
        with self._current(device), self._despite_capture():
            self._call("EventSynchronize", event)

    def wait_event(self, device: int, stream: int, event: int) -> None:
        self._check_stream(device, stream)
        self._on(device, "StreamWaitEvent", stream, event, 0)

    def elapsed_ms(self, device: int, start: int, end: int) -> float:
        return float(self._on(device, "EventElapsedTime", start, end))

    def _check_stream(self, device: int, stream: int) -> None:
        """Raise `DriverCallError` for a destroyed stream, foreign ones included, if other calls may crash."""

    def is_capturing(self, device: int, stream: int) -> bool:
        if not stream:
            return False
        found = ctypes.c_int()
        arguments = ctypes.c_void_p(stream), ctypes.byref(found), *self.unasked_of_capture
        if self._is_capturing(*arguments):
            with self._current(device):  # there may be none in this thread
                if status := self._is_capturing(*arguments):
                    raise self._error("StreamIsCapturing", status)
        return found.value != 0

    def begin_capture(self, device: int, stream: int) -> None:
        self._on(device, "StreamBeginCapture", stream, self.relaxed_capture)

    def end_capture(self, device: int, stream: int, made: Outcome = None) -> int:
        recorded: list[Any] = []
        with self._lock, self._current(device):
            self._destroy_recorded(device)
            self._recorded.append((recorded, []))
            try:
                graph = self._make(device, "StreamEndCapture", stream, HERE, made=recorded)
                return self._make(device, "GraphInstantiate", graph, 0, made=made)
            finally:
                self._destroy_recorded(device)

    def _destroy_recorded(self, device: int) -> None:
        """Destroy the recorded graphs, including those of interrupted calls."""
        with self._lock:
            while self._recorded:
                made, gone = self._recorded[0]
                if (graph := handle_of(made)) and not gone:
                    self._give_back(device, "GraphDestroy", graph, gone=gone)
                del self._recorded[0]

    def launch_graph(self, device: int, graph: int, stream: int) -> None:
        self._on(device, "GraphLaunch", graph, stream)

    def destroy_graph(self, device: int, graph: int, gone: Outcome = None) -> None:
        self._give_back(device, "GraphExecDestroy", graph, gone=gone)
