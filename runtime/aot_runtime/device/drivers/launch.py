"""The launch itself: one foreign call whose arguments were all built beforehand.

HIP and CUDA take the same eleven arguments (`hipModuleLaunchKernel`, `cuLaunchKernel`) and both accept the kernarg
segment as one buffer, so one class serves both. It does not go through the Python bindings: those convert and check
every argument of every call, several microseconds where this takes a third of one.

The function should come from a `ctypes.PyDLL` and have no `argtypes`:
- With `argtypes`, ctypes converts each argument on each call, at three times the cost of passing prebuilt objects.
- `PyDLL` keeps the interpreter lock. A launch takes about two microseconds; giving the lock up for it means that
  every launch beside a busy Python thread waits for that thread's turn to end: hundreds of microseconds. The price:
  a launch that finds the device's queue full holds other Python threads up until a slot is free, which is a kernel's
  duration. (A host function *in Python* that the caller put on a stream could then never run to free that slot; use
  an event and a thread instead.) All calls that wait by design release the lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from .current import Selector

_BUFFER_POINTER, _BUFFER_SIZE = 1, 2
"""Keys of the launch's `extra` list; HIP and CUDA agree on these two, but not on the one that ends it."""


class LaunchFunction(msgspec.Struct, frozen=True):
    """An API's way to launch a kernel."""

    call: Any
    """The foreign function, with no `argtypes`; returns the status."""
    end: int
    """The key that ends the `extra` list: HIP_LAUNCH_PARAM_END or CU_LAUNCH_PARAM_END."""
    lost_device: frozenset[int]
    """Statuses by which the API says that the calling thread has no, or another, device current."""
    error: Callable[[int], Exception]
    """The exception that a status stands for."""


class KernelLaunch:
    """A `PreparedLaunch` through `LaunchFunction`.

    Args:
        launch: how to launch.
        selector: makes the launch's device current in the calling thread; None where it always is.
        always: see to it at every launch, and not only when the API complains. Needed where a launch could silently go
            to another device.
        function: the kernel's handle, not 0.
        grid: workgroups in x, y, z.
        block: threads of a workgroup.
        lds_bytes: dynamic LDS of a workgroup.
        kernargs: the kernarg segment's first content.
    """

    __slots__ = ("_at", "_call", "_extra", "_found", "_launch", "_look", "_selector", "_stream", "_wanted", "kernargs")

    def __init__(
        self, launch: LaunchFunction, selector: Selector | None, always: bool,
        function: int, grid: tuple[int, int, int], block: int, lds_bytes: int, kernargs: bytes,
    ):  # fmt: skip
        self.kernargs = bytearray(kernargs)
        # The exported buffer pins the bytearray: to resize it is a BufferError, so the address stays good.
        segment = (ctypes.c_char * len(kernargs)).from_buffer(self.kernargs)
        size = ctypes.c_size_t(len(kernargs))
        extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(segment), _BUFFER_SIZE, ctypes.addressof(size), launch.end
        )
        self._extra = (extra, segment, size)
        self._launch, self._selector = launch, selector
        self._look: Callable[[], int] | None = None
        if always and selector is not None:
            # What is current, looked up into the same place each time.
            self._found, self._wanted = selector.kind(), selector.wanted.value
            self._look = partial(selector.get, ctypes.byref(self._found))
        self._at, self._stream = 0, ctypes.c_void_p(0)
        handle = ctypes.c_void_p(function)
        self._call = partial(launch.call, handle, *grid, block, 1, 1, lds_bytes, self._stream, None, extra)

    def run(self, stream: int) -> None:
        """Enqueue the launch on `stream`; the thread's current device stays what it is. Raises `DriverCallError`."""
        if stream != self._at:
            self._stream.value = self._at = stream
        if self._look is not None and (self._look() or self._found.value != self._wanted):
            status = self._call_there()
        else:
            status = self._call()
        if status:
            self._retry(status)

    def _retry(self, status: int) -> None:
        """Once more with the device current, if that was the reason; nothing had been enqueued."""
        if status in self._launch.lost_device and self._look is None:
            status = self._call_there()
        if status:
            raise self._launch.error(status)

    def _call_there(self) -> int:
        """The launch with its device current."""
        if self._selector is None:
            return self._call()
        status, before = self._selector.enter()
        if status:
            return status
        try:
            status = self._call()
        finally:
            self._selector.leave(before)
        return status
