"""Asynchronous copies to a device through pinned host memory.

A device copies from pinned memory by itself, in stream order. So bytes are first copied to a pinned buffer: the caller
may reuse its memory at once, and does not wait for the stream. An event follows the last copy from a buffer, and is
waited for before the buffer is used again. Small copies use small buffers, so that many can be in flight. Large ones
are split into pieces: the device copies one while the host copies the next.
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
"""Size and number of the buffers for small copies, which are one allocation."""
PIECE, PIECE_BUFFERS = 4 << 20, 4
"""Size and maximum number of the buffers for pieces of large copies."""


class StagingDriver(Protocol):
    """The methods of a driver that staging uses."""

    def allocate_host(self, device: int, nbytes: int) -> int:
        """Allocate pinned host memory that lives as long as the driver."""

    def create_marker(self, device: int) -> int:
        """Create an event without timing that lives as long as the driver."""

    def record_event(self, device: int, event: int, stream: int) -> None: ...

    def synchronize_event(self, device: int, event: int) -> None: ...

    def synchronize(self, device: int, stream: int) -> None: ...

    def copy_from_pinned(self, device: int, address: int, host: int, nbytes: int, stream: int) -> None:
        """Copy pinned memory to the device, in stream order."""


class _Buffer:
    """Pinned memory, and the event after the last copy from it."""

    __slots__ = ("address", "event", "in_use")

    def __init__(self, address: int, event: int):
        self.address, self.event = address, event
        self.in_use = False
        """A copy to the device may still read it."""


class _Buffers:
    """Buffers of one size, allocated on demand in groups, at most `most` of them."""

    def __init__(self, driver: StagingDriver, device: int, nbytes: int, at_a_time: int, most: int):
        self.driver, self.device, self.nbytes, self.at_a_time, self.most = driver, device, nbytes, at_a_time, most
        self._made = 0
        self._there: deque[_Buffer] = deque()  # idle buffers, then the others in the order of their use
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
        """Return a context for enqueuing a copy from a buffer. Records the buffer's event after it."""
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
        """Copy host memory to the device in stream order. On return, the host memory may be reused."""
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
