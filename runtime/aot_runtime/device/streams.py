"""`Stream` and `Event`: queues of work on a device, and moments in them."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol, TypeAlias

from aot_runtime.errors import ArgumentError
from aot_runtime.texts import shown

from .drivers.base import Driver
from .holdings import Holdings
from .identity import OneOfAKind
from .memory import DeviceMemory


class StreamDevice(Protocol):
    """What streams, events and graphs need of their device."""

    driver: Driver
    index: int
    memory: DeviceMemory
    holdings: Holdings

    def handle(self, stream: Any) -> int:
        """The handle of a stream."""


class SupportsCudaStream(Protocol):
    """A stream of another library, or one of ours: cuda.core, torch, cupy."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """(version of the protocol, handle)."""


class SupportsCudaStreamHandle(Protocol):
    """A stream of torch."""

    @property
    def cuda_stream(self) -> int:
        """Its handle."""


class Stream(OneOfAKind):
    """A queue of work on a device. It is destroyed with the object; ordered with the default stream."""

    def __init__(self, device: StreamDevice):
        self.device = device
        holding = device.memory.hold_stream(self)
        with device.holdings.lock:  # else the stream of another object might be destroyed that had this handle
            self.handle = device.driver.create_stream(device.index, holding.made)
            device.memory.streams[self.handle] = holding

    def synchronize(self) -> None:
        """Wait until all work of the stream is done."""
        self.device.driver.synchronize(self.device.index, self.handle)

    def record(self) -> Event:
        """A new event at the stream's end."""
        return Event(self.device, self)

    def wait(self, event: Event) -> None:
        """Make later work of the stream wait for an event."""
        self.device.driver.wait_event(self.device.index, self.handle, event.handle)

    def __repr__(self) -> str:
        return f"<stream {self.handle:#x} on {self.device}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        """(version of the protocol, handle), for libraries that take a stream of another one."""
        return 0, self.handle

    def __enter__(self) -> NoReturn:
        """Refused: torch and cupy have a current stream, which a thread's calls take; here a call says which it is."""
        raise TypeError("there is no current stream that `with` could set: pass stream= to each call")

    def __exit__(self, *_: object) -> None: ...


StreamLike: TypeAlias = Stream | SupportsCudaStream | SupportsCudaStreamHandle | int
"""What may stand for a stream where one is taken; cupy's older streams are taken too, by their `ptr`."""

_ALLOWED = (
    "a Stream, a stream of torch or cupy, an object with __cuda_stream__, an integer handle of at most 64 bits or None "
    "is allowed"
)


def foreign_handle(stream: Any) -> int:
    """The handle of a stream that is not ours. Raises `ArgumentError`, for what its library raises, too."""
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
    """The answer of an object that is asked for its handle, and the handle in that."""
    if hasattr(stream, "__cuda_stream__") and not isinstance(stream, type):
        given = stream.__cuda_stream__()
        return given, given[1] if isinstance(given, tuple | list) and len(given) == 2 else None
    for attribute in ("cuda_stream", "ptr"):  # torch, cupy
        if hasattr(stream, attribute):
            given = getattr(stream, attribute)
            return given, given
    return stream, None


class Event(OneOfAKind):
    """A moment in a stream, recorded when the object is made."""

    def __init__(self, device: StreamDevice, stream: StreamLike | None = None):
        self.device = device
        made = device.holdings.hold_handle(self, device.driver.destroy_event)
        self.handle = device.driver.create_event(device.index, made)
        device.driver.record_event(device.index, self.handle, device.handle(stream))

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        self.device.driver.synchronize_event(self.device.index, self.handle)

    def elapsed_ms(self, start: Event) -> float:
        """Milliseconds from `start` to this event; waits for it."""
        self.synchronize()
        return self.device.driver.elapsed_ms(self.device.index, start.handle, self.handle)

    def __repr__(self) -> str:
        return f"<event {self.handle:#x} on {self.device}>"
