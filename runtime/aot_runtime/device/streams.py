"""`Stream` and `Event`: queues of work on a device, and moments in them."""

from __future__ import annotations

import sys
from typing import Any, NoReturn, Protocol, TypeAlias

from .drivers.base import Driver
from .identity import OneOfAKind
from .memory import DeviceMemory, Life


class StreamDevice(Protocol):
    """What streams, events and graphs need of their device."""

    driver: Driver
    index: int
    memory: DeviceMemory

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
        self.life = Life()  # for the memory that it uses, which may outlive it
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

    def __repr__(self) -> str:
        return f"<stream {self.handle:#x} on {self.device}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        """(version of the protocol, handle), for libraries that take a stream of another one."""
        return 0, self.handle

    def __enter__(self) -> NoReturn:
        """Refused: torch and cupy have a current stream, which a thread's calls take; here a call says which it is."""
        raise TypeError("there is no current stream that `with` could set: pass stream= to each call")

    def __exit__(self, *_: object) -> None: ...

    def __del__(self) -> None:
        if getattr(self, "handle", 0) and not sys.is_finalizing():
            self.device.memory.retire(self.handle, self.life)


StreamLike: TypeAlias = Stream | SupportsCudaStream | SupportsCudaStreamHandle | int
"""What may stand for a stream where one is taken; cupy's older streams are taken too, by their `ptr`."""


class Event(OneOfAKind):
    """A moment in a stream, recorded when the object is made."""

    def __init__(self, device: StreamDevice, stream: StreamLike | None = None):
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

    def __repr__(self) -> str:
        return f"<event {self.handle:#x} on {self.device}>"

    def __del__(self) -> None:
        if getattr(self, "handle", 0) and not sys.is_finalizing():
            self.device.driver.destroy_event(self.device.index, self.handle)
