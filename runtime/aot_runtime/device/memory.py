"""Device memory in stream order: who may reuse an address, and when.

Small blocks are kept for the next allocation of their size on their stream, which is what a repeated call asks for:
stream order makes that safe, and it saves two driver calls. The rest goes back to the driver's pool. Where there is too
little memory for an allocation, all that nothing uses goes back to the system, and it is tried once more. Scratch
memory of calls on the default stream is kept apart: taking and giving back a block is no more than a list's `pop` and
`append`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from aot_runtime.errors import CaptureError, DeviceMemoryError, DriverCallError

from .drivers.base import Driver

GRANULE = 512
"""Sizes are rounded up to this many bytes."""
KEPT_BLOCK = 1 << 20
"""Bytes of the largest block that is kept."""
KEPT_TOTAL = 64 << 20
"""Bytes that are kept altogether."""
SCRATCH_BLOCK, SCRATCH_TOTAL = 16 << 20, 64 << 20
"""The same of scratch memory that calls on the default stream take turns with."""


class MemoryStats(NamedTuple):
    """Bytes of device memory: `held` was taken from the system, of it `in_use` is used by arrays and by calls."""

    held: int
    in_use: int


class Life:
    """Whether a stream of ours was destroyed. A weak reference does not tell: it may be cleared before that."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class OwnStream(Protocol):
    """A stream of ours."""

    life: Life


Users = dict[int, Life | None]
"""Streams that use some memory, by handle; None for the default stream and those of other libraries."""


class WorkspaceOwner(Protocol):
    """A graph that is being captured: scratch memory of its calls lives as long as it does."""

    def workspace(self, nbytes: int) -> int:
        """The address of new memory."""


class Allocation:
    """A piece of pool memory; it is released when the last array that uses it is gone.

    It keeps its own stream alive, unless both are garbage of one cycle, which may go in any order. Others that use it
    may come and go: the default stream waits for the work of one that is destroyed (`DeviceMemory.retire`), and memory
    of another stream always waits for the default stream.
    """

    __slots__ = ("address", "memory", "nbytes", "others", "own", "stream")

    def __init__(self, memory: DeviceMemory, nbytes: int, stream: int):
        self.memory, self.nbytes, self.stream = memory, nbytes, stream
        self.address = 0  # until there is memory: whatever fails before, nothing is lost
        # Work on the default stream is not noted, so memory of another stream always waits for it.
        self.others: Users | None = {0: None} if stream else None
        self.own = memory.streams.get(stream) if stream else None

    def used_on(self, stream: int) -> None:
        """Note that work of a stream uses the memory."""
        if stream != self.stream and (self.others is None or not _is_user(self.others, stream)):
            self.memory.note(self, stream)

    def __del__(self) -> None:
        if self.address and not sys.is_finalizing():
            self.memory.release(self.address, self.nbytes, self.stream, self.others, self.own)


def _is_user(users: Users, stream: int) -> bool:
    """Whether a stream is among those noted; the handle of one that was destroyed may be another's by now."""
    if stream not in users:
        return False
    life = users[stream]
    return life is None or not life.is_over


_Release = tuple[int, int, int, "Users | None", "OwnStream | None"]


class DeviceMemory:
    """The memory of one device, in the pool of its driver."""

    def __init__(self, driver: Driver, index: int):
        self.driver, self.index, self._exact = driver, index, driver.exact_allocations
        self.streams: WeakValueDictionary[int, OwnStream] = WeakValueDictionary()
        """`Stream` objects by handle: those that are alive."""
        self.graphs: dict[int, WorkspaceOwner] = {}
        """Captures in progress, by their stream."""
        self._kept: dict[tuple[int, int], list[int]] = {}
        self._kept_bytes = 0
        self._scratch: dict[int, list[int]] = {}
        """Blocks by size that no call has at the moment."""
        self._scratch_bytes = 0
        """Of these blocks, and of those that calls have."""
        self._lock = threading.RLock()  # releasing may happen anywhere that garbage is collected
        self._deferred: list[_Release] = []
        self._retired: list[tuple[int, Life]] = []
        self._ordering = 0

    def allocate(self, nbytes: int, stream: int) -> Allocation:
        """Memory for work of `stream`. Raises `CaptureError` on a stream that is being captured."""
        if stream and self.driver.is_capturing(self.index, stream):
            raise CaptureError("a call would allocate its result while its stream is being captured: pass out=")
        size = nbytes if self._exact else -(-nbytes // GRANULE) * GRANULE
        owner = Allocation(self, size, stream)
        blocks = self._kept.get((size, stream))
        if blocks:
            with self._lock:
                if blocks:
                    self._kept_bytes -= size
                    owner.address = blocks.pop()
                    return owner
        owner.address = self._take(size, stream)
        return owner

    def _take(self, size: int, stream: int) -> int:
        try:
            return self.driver.allocate(self.index, size, stream)
        except DeviceMemoryError:
            if self.graphs:  # to wait would break the capture
                raise
            with contextlib.suppress(DriverCallError):  # another library captures: then this is the end of it
                self.give_back(0)
            return self.driver.allocate(self.index, size, stream)

    def workspace(self, nbytes: int, stream: int) -> tuple[int, Allocation | None]:
        """(address, owner) of scratch memory; the graph being captured on `stream` owns it, if there is one."""
        graph = self.graphs.get(stream) if self.graphs else None
        if graph is not None:
            return graph.workspace(nbytes), None
        owner = self.allocate(nbytes, stream)
        owner.others = None  # no work but that of the call, on its stream
        return owner.address, owner

    def scratch(self, nbytes: int) -> list[int] | None:
        """The free blocks of scratch memory of a size, for calls on the default stream; None: `workspace` provides it.

        A call takes one (`new_scratch` makes one where none is left), and puts it back when it has enqueued its work:
        the next call's work comes after that, in stream order. It is the same list each time.
        """
        if self._exact or nbytes > SCRATCH_BLOCK:
            return None
        with self._lock:
            return self._scratch.setdefault(_scratch_size(nbytes), [])

    def new_scratch(self, nbytes: int) -> int:
        """The address of one more block for `scratch`; where there would be too many, those that are free go."""
        size = _scratch_size(nbytes)
        with self._lock:
            if self._scratch_bytes + size > SCRATCH_TOTAL:
                self._drop_scratch()
            address = self._take(size, 0)
            self._scratch_bytes += size
        return address

    def _drop_scratch(self) -> None:
        with self._lock:
            for size, free in self._scratch.items():
                while free:  # emptied, since plans hold the list
                    self._scratch_bytes -= size
                    self.driver.free(self.index, free.pop(), 0)

    def release(self, address: int, size: int, stream: int, others: Users | None, own: OwnStream | None) -> None:
        """Give memory back once the work so far on its stream and the others is done.

        While a stream is captured, work on the default stream would break the capture: it waits until then. The default
        stream has waited for the work of one that was destroyed.
        """
        if self.graphs:
            self._deferred.append((address, size, stream, others, own))
            return
        if own is not None and own.life.is_over:
            stream = 0
        if not others and self._keep(address, size, stream):
            return  # the common case asks the driver for nothing
        with contextlib.suppress(DriverCallError):  # another library's stream that is gone: the pool keeps the memory
            if others:
                self._order_after_users(stream, others)
                if self._keep(address, size, stream):
                    return
            self.driver.free(self.index, address, stream)

    def _order_after_users(self, stream: int, users: Users) -> None:
        with self._lock:
            self._ordering += 1  # a stream that the garbage collector drops meanwhile is destroyed afterwards
            try:
                for user in users:
                    if _is_user(users, user):
                        order_after(self.driver, self.index, stream, user)
            finally:
                self._ordering -= 1
                self._destroy_retired()

    def _keep(self, address: int, size: int, stream: int) -> bool:
        # A foreign stream may be destroyed, and its handle given to another, without our knowing.
        if self._exact or size > KEPT_BLOCK or (stream and stream not in self.streams):
            return False
        with self._lock:
            if self._kept_bytes + size > KEPT_TOTAL:
                return False
            self._kept.setdefault((size, stream), []).append(address)
            self._kept_bytes += size
        return True

    def release_deferred(self) -> None:
        """Give back what was released during captures, once there are none."""
        self._destroy_retired()
        while self._deferred and not self.graphs:
            self.release(*self._deferred.pop())

    def note(self, owner: Allocation, stream: int) -> None:
        """Note that work of a stream uses some memory; streams that were destroyed since are forgotten."""
        with self._lock:
            own = self.streams.get(stream)
            life = own.life if own is not None else None
            others = owner.others or {}
            owner.others = {**{user: others[user] for user in others if _is_user(others, user)}, stream: life}

    def retire(self, stream: int, life: Life) -> None:
        """Destroy a stream that nobody can give work any more. The default stream waits for its work, so that memory
        which the work uses is not given back before; while a stream is captured, that would break the capture."""
        self._retired.append((stream, life))
        self._destroy_retired()

    def _destroy_retired(self) -> None:
        with self._lock:
            while self._retired and not self.graphs and not self._ordering:
                stream, life = self._retired.pop()
                self.trim(stream)
                with contextlib.suppress(DriverCallError):  # what failed on it is over
                    order_after(self.driver, self.index, 0, stream)
                life.is_over = True
                self.driver.destroy_stream(self.index, stream)

    def give_back(self, keep: int) -> None:
        """Wait for the device's streams, and give memory that nothing uses back to the system; see `Device.trim`."""
        self.trim()
        for stream in (0, *list(self.streams)):  # memory is free once the work before its release is done
            self.driver.synchronize(self.index, stream)
        self.driver.trim(self.index, keep)

    def stats(self) -> MemoryStats:
        """What is held, and what of it is in use: kept blocks are not."""
        held, taken = self.driver.memory_in_use(self.index)
        free = sum(size * len(blocks) for size, blocks in list(self._scratch.items()))
        return MemoryStats(held, taken - self._kept_bytes - free)

    def trim(self, stream: int | None = None) -> None:
        """Give kept blocks back to the driver's pool: all, or those of one stream."""
        if not stream:
            self._drop_scratch()
        with self._lock:
            keys = [key for key in list(self._kept) if stream is None or key[1] == stream]
            blocks = []
            for key in keys:
                kept = self._kept.pop(key)
                while kept:  # emptied, since `allocate` may be looking at it
                    blocks.append((kept.pop(), key[1]))
                    self._kept_bytes -= key[0]
        for address, owner in blocks:
            self.driver.free(self.index, address, owner)


def rounded(nbytes: int) -> int:
    """A size in whole granules."""
    return -(-nbytes // GRANULE) * GRANULE


def _scratch_size(nbytes: int) -> int:
    """The next power of two: what differs a little shares blocks."""
    return max(GRANULE, 1 << (nbytes - 1).bit_length())


def order_after(driver: Driver, device: int, later: int, earlier: int) -> None:
    """Make work that follows on stream `later` wait for the work so far on stream `earlier`."""
    event = driver.create_event(device)
    try:
        driver.record_event(device, event, earlier)
        driver.wait_event(device, later, event)
    finally:
        driver.destroy_event(device, event)
