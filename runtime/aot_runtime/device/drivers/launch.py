"""The launch itself: one foreign call whose arguments were all built beforehand.

HIP and CUDA take the same eleven arguments (`hipModuleLaunchKernel`, `cuLaunchKernel`) and both accept the kernarg
segment as one buffer, so one class serves both. CUDA's `cuLaunchKernelEx` has most of them in a struct: ctypes passes
four arguments in half of the time. None goes through the Python bindings: those convert and check every argument of
every call, several microseconds where this takes a third of one.

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
    takes_config: bool = False
    """Whether the arguments are those of `cuLaunchKernelEx`."""


class LaunchConfig(ctypes.Structure):
    """CUDA's CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("lds_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("num_attributes", ctypes.c_uint),
    )  # fmt: skip


_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class LaunchAttribute(ctypes.Structure):
    """CUDA's CUlaunchAttribute, of a value that is an int."""

    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_int * 16))


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
        kernargs: the kernarg segment's first content; a writable view is the segment itself.
        early: the kernel may begin before those that precede it on its stream have ended (`launch_pdl`). An API that
            cannot do so, that is one that has no LaunchConfig, launches it as any other.
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
            config = LaunchConfig(grid, (block, 1, 1), lds_bytes)
            if early:
                attribute = LaunchAttribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))
                config.attributes, config.num_attributes = ctypes.addressof(attribute), 1
                extra.kept = *extra.kept, attribute  # type: ignore[attr-defined]
            self._place = partial(setattr, config, "stream")
            call = partial(launch.call, ctypes.pointer(config), handle, None, extra)
        else:
            stream = ctypes.c_void_p(0)
            self._place = partial(setattr, stream, "value")
            call = partial(launch.call, handle, *grid, block, 1, 1, lds_bytes, stream, None, extra)
        self._there = call if selector is None else partial(_call_there, call, selector)
        self._by_itself = selector is None or not always
        self.enqueue: Callable[[], int] = call  # no method: what a call of the runtime makes is this very call
        if selector is not None and always:
            self.enqueue = _looking(call, self._there, selector)

    def place(self, stream: int) -> None:
        """Have it go to `stream` from now on."""
        self._place(stream)

    def settle(self, status: int) -> None:
        """Once more with the device current, if that was the reason; nothing had been enqueued. Raises
        `DriverCallError`."""
        if status in self._launch.lost_device and self._by_itself:
            status = self._there()
        if status:
            raise self._launch.error(status)

    def run(self, stream: int) -> None:
        """Enqueue the launch on `stream`; the thread's current device stays what it is. Raises `DriverCallError`."""
        self.place(stream)
        if status := self.enqueue():
            self.settle(status)


def _looking(call: Callable[[], int], there: Callable[[], int], selector: Selector) -> Callable[[], int]:
    """The launch, with its device current where another one is. That is looked up into the same place each time."""
    found, wanted = selector.kind(), selector.wanted.value
    look = partial(selector.get, ctypes.byref(found))
    return lambda: there() if look() or found.value != wanted else call()


def _call_there(call: Callable[[], int], selector: Selector) -> int:
    status, before = selector.enter()
    if status:
        return status
    try:
        return call()
    finally:
        selector.leave(before)
