"""Pinned host memory through which bytes travel to a device that is busy.

A device copies from pinned memory by itself, in stream order. So what is to follow other work of a stream is copied to
a buffer first: the caller may reuse its memory at once, and nobody waits for the stream. A buffer has an event behind
the last copy that uses it, and that event is waited for before the buffer is used again. Small copies have buffers of
their own, so that many of them can be on their way; large ones go in pieces, of which the device copies one while the
host copies another.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from aot_runtime.errors import DriverCallError

SMALL, SMALL_BUFFERS = 64 << 10, 32
"""Bytes of a buffer for small copies, and how many there are; they are one allocation."""
PIECE, PIECE_BUFFERS = 4 << 20, 4
"""Bytes of a buffer for a piece of a large copy, and how many there are at most."""


class StagingDriver(Protocol):
    """What staging needs of a driver."""

    def allocate_host(self, device: int, nbytes: int) -> int:
        """Pinned host memory; it belongs to the driver for as long as that lives."""

    def create_marker(self, device: int) -> int:
        """An event that records no time; it belongs to the driver for as long as that lives."""

    def record_event(self, device: int, event: int, stream: int) -> None: ...

    def synchronize_event(self, device: int, event: int) -> None: ...

    def synchronize(self, device: int, stream: int) -> None: ...

    def copy_from_pinned(self, device: int, address: int, host: int, nbytes: int, stream: int) -> None:
        """Copy pinned memory to the device, in stream order."""


class _Buffer:
    """Pinned memory with the event behind the last copy that uses it."""

    __slots__ = ("address", "event", "in_use")

    def __init__(self, address: int, event: int):
        self.address, self.event = address, event
        self.in_use = False
        """Whether a copy of a device may still use it."""


class _Buffers:
    """Buffers of one size, made when they are needed, so many at a time and no more than `most`."""

    def __init__(self, driver: StagingDriver, device: int, nbytes: int, at_a_time: int, most: int):
        self.driver, self.device, self.nbytes, self.at_a_time, self.most = driver, device, nbytes, at_a_time, most
        self._made = 0
        self._there: deque[_Buffer] = deque()  # those that are surely idle, then the others in the order of their use
        self._changed = threading.Condition()

    def take(self) -> _Buffer:
        with self._changed:
            if self._made < self.most and (not self._there or self._there[0].in_use):
                self._make()
            while not self._there:
                self._changed.wait()
            buffer = self._there.popleft()
        if buffer.in_use:
            try:
                self.driver.synchronize_event(self.device, buffer.event)
            except BaseException:
                self.give(buffer)
                raise
            buffer.in_use = False
        return buffer

    def give(self, buffer: _Buffer) -> None:
        with self._changed:
            if buffer.in_use:
                self._there.append(buffer)
            else:
                self._there.appendleft(buffer)
            self._changed.notify()

    def _make(self) -> None:
        address = self.driver.allocate_host(self.device, self.at_a_time * self.nbytes)
        for number in range(self.at_a_time):
            self._there.appendleft(_Buffer(address + number * self.nbytes, self.driver.create_marker(self.device)))
            self._made += 1

    @contextlib.contextmanager
    def marking(self, buffer: _Buffer, stream: int) -> Iterator[None]:
        """A context in which a device is given one copy that uses a buffer; sets the event behind it."""
        try:
            yield
            self.driver.record_event(self.device, buffer.event, stream)
            buffer.in_use = True
        except BaseException:  # the copy may be on its way, with no event behind it
            with contextlib.suppress(DriverCallError):
                self.driver.synchronize(self.device, stream)
            self.give(buffer)
            raise


class Staging:
    """Copies to one device from any host memory, through pinned buffers."""

    def __init__(self, driver: StagingDriver, device: int):
        self.driver, self.device = driver, device
        self._small = _Buffers(driver, device, SMALL, SMALL_BUFFERS, SMALL_BUFFERS)
        self._pieces = _Buffers(driver, device, PIECE, 1, PIECE_BUFFERS)

    def to_device(self, address: int, host: int, nbytes: int, stream: int) -> None:
        """Copy host memory to the device in stream order; when it returns, the host memory may be reused."""
        buffers = self._buffers(nbytes)
        for at, size in _pieces(nbytes):
            buffer = buffers.take()
            with buffers.marking(buffer, stream):
                ctypes.memmove(buffer.address, host + at, size)
                self.driver.copy_from_pinned(self.device, address + at, buffer.address, size, stream)
            buffers.give(buffer)

    def _buffers(self, nbytes: int) -> _Buffers:
        return self._small if nbytes <= SMALL else self._pieces


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    return ((at, min(PIECE, nbytes - at)) for at in range(0, nbytes, PIECE))
