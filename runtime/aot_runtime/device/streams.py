"""Streams and events of a device."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from aot_runtime.errors import ArgumentError, DriverCallError
from aot_runtime.texts import shown

from .drivers import handle_of
from .memory import StreamHolding
from .uncopyable import OneOfAKind

if TYPE_CHECKING:
    from .protocol import DeviceLike


class SupportsCudaStream(Protocol):
    """A stream with the `__cuda_stream__` protocol, such as ours or one of cuda.core, torch or cupy."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (protocol version, handle)."""


class SupportsCudaStreamHandle(Protocol):
    """A torch stream."""

    @property
    def cuda_stream(self) -> int:
        """The stream's handle."""


class Stream(OneOfAKind):
    """A queue of work on a device, ordered with the default stream. It is destroyed with its object."""

    def __init__(self, device: DeviceLike):
        self.device = device
        holding = device.holdings.hold(OwnStream, self)
        holding.memory, holding.blocks, holding.is_retired = device.memory, {}, False
        device.holdings.add(holding)
        with device.holdings.lock:  # `settle` must not destroy an older stream with the same handle meanwhile
            self.handle = device.driver.create_stream(device.index, holding.made)
            device.memory.streams[self.handle] = holding

    def synchronize(self) -> None:
        """Wait for all work of the stream."""
        self.device.driver.synchronize(self.device.index, self.handle)

    def record(self) -> Event:
        """Return a new event recorded on the stream."""
        return Event(self.device, self)

    def wait(self, event: Event) -> None:
        """Make later work of the stream wait for an event."""
        self.device.driver.wait_event(self.device.index, self.handle, event.handle)

    def __repr__(self) -> str:
        return f"<stream {self.handle:#x} on {self.device}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (protocol version, handle), for other libraries."""
        return 0, self.handle

    def __enter__(self) -> NoReturn:
        """Raise TypeError: unlike torch and cupy, the runtime has no current stream."""
        raise TypeError("the runtime has no current stream to set with `with`: pass stream= to each call")

    def __exit__(self, *_: object) -> None: ...


class OwnStream(StreamHolding):
    """The holding of a `Stream`."""

    __slots__ = ()

    def give_back(self) -> None:
        """Destroy the stream, unless blocks of it remain: releasing the last one calls this again.

        The default stream is made to wait for its work first, so memory in use is not reused early.
        """
        handle = handle_of(self.made)
        self.is_retired = True
        if not handle or self.blocks:
            return
        if not self.gone:
            self.memory.trim(handle)
            if self.blocks:
                return
            with contextlib.suppress(DriverCallError):  # failed work is finished, too
                self.memory.order_after(0, handle)
            with contextlib.suppress(DriverCallError):
                self.memory.driver.destroy_stream(self.device, handle, self.gone)
        self._forget(handle)

    def _forget(self, handle: int) -> None:
        """Forget the destroyed stream. Its handle may have been reused."""
        memory = self.memory
        if memory.streams.get(handle) is self:
            del memory.streams[handle]
            for launcher in memory.launched_on:  # the default stream already waits for the stream's work
                launcher.streams.discard(handle)
        if not memory.streams:
            memory.moment = None


StreamLike: TypeAlias = Stream | SupportsCudaStream | SupportsCudaStreamHandle | int
"""Types accepted as streams. Older cupy streams are also accepted, by their `ptr`."""

_ALLOWED = (
    "a Stream, a stream of torch or cupy, an object with __cuda_stream__, an integer handle of at most 64 bits or None "
    "is allowed"
)


def foreign_handle(stream: Any) -> int:
    """Return the handle of a foreign stream. Raises `ArgumentError`, also in place of the library's own exceptions."""
    if isinstance(stream, int):
        given = found = stream
    else:
        try:
            given, found = _handle_said(stream)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ArgumentError(
                f"stream is {type(stream).__name__}, which does not give its handle: {reason}"
            ) from error
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 1 << 64:
        return int(found)
    what = type(stream).__name__
    if given is not stream:
        what = f"{what}, which gives {shown(given)} as its handle"
    elif isinstance(stream, int) and not isinstance(stream, bool):
        what = shown(stream)
    raise ArgumentError(f"stream is {what}; {_ALLOWED}")


def _handle_said(stream: Any) -> tuple[Any, Any]:
    """Return (the object's answer, the handle in it)."""
    if hasattr(stream, "__cuda_stream__") and not isinstance(stream, type):
        given = stream.__cuda_stream__()
        return given, given[1] if isinstance(given, tuple | list) and len(given) == 2 else None
    for attribute in ("cuda_stream", "ptr"):  # torch, cupy
        if hasattr(stream, attribute):
            given = getattr(stream, attribute)
            return given, given
    return stream, None


class Event(OneOfAKind):
    """A point in a stream's work, recorded when the object is created."""

    def __init__(self, device: DeviceLike, stream: StreamLike | None = None):
        self.device = device
        made = device.holdings.hold_handle(self, device.driver.destroy_event)
        self.handle = device.driver.create_event(device.index, made)
        device.driver.record_event(device.index, self.handle, device.handle(stream))

    def synchronize(self) -> None:
        """Wait for the work before the event."""
        self.device.driver.synchronize_event(self.device.index, self.handle)

    def elapsed_ms(self, start: Event) -> float:
        """Wait for the event and return the milliseconds since `start`."""
        self.synchronize()
        return self.device.driver.elapsed_ms(self.device.index, start.handle, self.handle)

    def __repr__(self) -> str:
        return f"<event {self.handle:#x} on {self.device}>"
