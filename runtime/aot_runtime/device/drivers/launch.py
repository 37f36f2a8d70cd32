"""Kernel launches as a single foreign call with prebuilt arguments.

HIP and CUDA take the same eleven arguments (`hipModuleLaunchKernel`, `cuLaunchKernel`), and both accept the kernarg
segment as one buffer, so one class serves both. CUDA's `cuLaunchKernelEx` takes most of them in a struct: ctypes
passes four arguments in half the time. The Python bindings are not used for launches. They convert and check all
arguments of every call, which takes several microseconds instead of a third of one.

The function should come from a `ctypes.PyDLL` and have no `argtypes`:

- With `argtypes`, ctypes converts each argument on each call, at three times the cost of passing prebuilt objects.
- `PyDLL` keeps the interpreter lock. A launch takes about two microseconds. If it released the lock, it would have to
  wait hundreds of microseconds for a busy Python thread to give it back. In return, a launch that finds the device's
  queue full blocks other Python threads until a kernel ends. (A host function *in Python* on a stream could then never
  run to free the queue; use an event and a thread instead.) Calls that wait by design release the lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from .current import Selector

_BUFFER_POINTER, _BUFFER_SIZE = 1, 2
"""Keys of the launch's `extra` list. HIP and CUDA differ only in the key that ends it."""


class LaunchFunction(msgspec.Struct, frozen=True):
    """The function of an API that launches kernels."""

    call: Any
    """The foreign function, with no `argtypes`; returns the status."""
    end: int
    """The key that ends the `extra` list: HIP_LAUNCH_PARAM_END or CU_LAUNCH_PARAM_END."""
    lost_device: frozenset[int]
    """Statuses that mean that no device, or another one, is current in the calling thread."""
    error: Callable[[int], Exception]
    """Makes the exception for a status."""
    takes_config: bool = False
    """The function takes the arguments of `cuLaunchKernelEx`."""


class KernelLaunch:
    """A `PreparedLaunch` through `LaunchFunction`.

    Args:
        launch: the function to call.
        selector: makes the launch's device current in the calling thread; None if it always is.
        always: use the selector for every launch, not only after a failure. Needed if a launch could silently go to
            another device.
        function: the kernel's handle, not 0.
        grid: workgroups in x, y, z.
        block: threads of a workgroup.
        lds_bytes: dynamic LDS of a workgroup.
        kernargs: the kernarg segment's first content; a writable view is the segment itself.
        early: the kernel may start before its predecessors on the stream have ended (`launch_pdl`). Ignored without
            `LaunchFunction.takes_config`.
    """

    __slots__ = ("_by_itself", "_launch", "_place", "_there", "enqueue", "kernargs")

    def __init__(
        self, launch: LaunchFunction, selector: Selector | None, always: bool, function: int,
        grid: tuple[int, int, int], block: int, lds_bytes: int, kernargs: bytes | memoryview,
        early: bool = False,
    ):  # fmt: skip
        self.kernargs = bytearray(kernargs) if isinstance(kernargs, bytes) else kernargs
        # The exported buffer pins the bytearray: to resize it is a BufferError, so the address stays good.
        segment = (ctypes.c_char * len(kernargs)).from_buffer(self.kernargs)
        size = ctypes.c_size_t(len(kernargs))
        extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(segment), _BUFFER_SIZE, ctypes.addressof(size), launch.end
        )
        extra.kept = segment, size  # type: ignore[attr-defined]  # for as long as `enqueue` is
        self._launch, handle = launch, ctypes.c_void_p(function)
        if launch.takes_config:
            from .launch_config import config_launch  # CUDA's

            self._place, call = config_launch(launch.call, handle, grid, block, lds_bytes, extra, early)
        else:
            stream = ctypes.c_void_p(0)
            self._place = partial(setattr, stream, "value")
            call = partial(launch.call, handle, *grid, block, 1, 1, lds_bytes, stream, None, extra)
        self._by_itself = selector is None or not always
        self.enqueue: Callable[[], int] = call  # not a method: a repeated call of the runtime makes this very call
        self._there: Callable[[], int] = call
        if selector is not None:
            from .current import call_there, checked_call

            self._there = partial(call_there, call, selector)
            if always:
                self.enqueue = checked_call(call, self._there, selector)

    def place(self, stream: int) -> None:
        """Set the stream of later launches."""
        self._place(stream)

    def settle(self, status: int) -> None:
        """Repeat a failed launch with its device current, if that was the failure. Raises `DriverCallError`."""
        if status in self._launch.lost_device and self._by_itself:
            status = self._there()
        if status:
            raise self._launch.error(status)

    def run(self, stream: int) -> None:
        """Enqueue the launch on `stream`. Preserves the thread's current device. Raises `DriverCallError`."""
        self.place(stream)
        if status := self.enqueue():
            self.settle(status)
