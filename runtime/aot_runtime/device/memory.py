"""Device memory in stream order: who may reuse an address, and when.

Small blocks are kept for the next allocation of their size on their stream, which is what a repeated call asks for:
stream order makes that safe, and it saves two driver calls. The rest goes back to the driver's pool. Where there is too
little memory for an allocation, all that nothing uses goes back to the system, and it is tried once more. Scratch
memory of calls on the default stream is kept apart: taking and giving back a block is no more than a list's `pop` and
`append`.

A block belongs to its `Allocation`, and comes back when that is gone: see `holdings`. Small blocks of the default
stream that were kept once come back to their shelf (`_Shelf`) by themselves. A stream of ours is destroyed once its
`Stream` is gone and the memory that was allocated on it, which is given back on it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import NamedTuple, Protocol
from weakref import WeakSet

from aot_runtime.errors import CaptureError, DeviceError, DeviceMemoryError, DriverCallError
from aot_runtime.logs import log

from .drivers.base import Driver, handle_of
from .holdings import Holding, Holdings

GRANULE = 512
"""Sizes are rounded up to this many bytes."""
KEPT_BLOCK = 1 << 20
"""Bytes of the largest block that is kept."""
KEPT_TOTAL = 64 << 20
"""Bytes that are kept altogether."""
SHELF_TOTAL = 32 << 20
"""Bytes of small blocks that come back by themselves; when there are more, they come back as others do."""
SCRATCH_BLOCK, SCRATCH_TOTAL = 16 << 20, 64 << 20
"""The same of scratch memory that calls on the default stream take turns with."""


class MemoryStats(NamedTuple):
    """Bytes of device memory: `held` was taken from the system, of it `in_use` is used by arrays and by calls."""

    held: int
    in_use: int


class LaunchedOn(Protocol):
    """An object that remembers the streams that it launched kernels on, by handle."""

    streams: set[int]


class StreamHolding(Holding):
    """A stream of ours.

    Attributes:
        blocks: what was allocated on it, and was not given back yet, by their ids.
        is_retired: whether its `Stream` is gone.
    """

    __slots__ = ("blocks", "is_retired", "memory")
    blocks: dict[int, Block]
    is_retired: bool
    memory: DeviceMemory

    def give_back(self) -> None:
        """Destroy the stream, unless memory is left of it: the last of that comes back here. The default stream waits
        for its work, so that memory which the work uses is not given back before."""
        handle = handle_of(self.made)
        self.is_retired = True
        if not handle or self.blocks:
            return
        if not self.gone:
            self.memory.trim(handle)
            if self.blocks:
                return
            with contextlib.suppress(DriverCallError):  # what failed on it is over
                self.memory.order_after(0, handle)
            with contextlib.suppress(DriverCallError):
                self.memory.driver.destroy_stream(self.device, handle, self.gone)
        self.memory.forget_stream(handle, self)


Users = dict[int, StreamHolding | None]
"""Streams that use some memory, by handle; None for the default stream and those of other libraries."""


class Allocation:
    """A piece of pool memory, for the arrays that use it. Once it is gone, the memory is given back after the work so
    far of all streams that used it."""

    __slots__ = ("__weakref__", "address", "block", "stream")
    address: int
    stream: int
    block: Block

    @property
    def nbytes(self) -> int:
        """The size in bytes, which may be some more than was asked for."""
        return self.block.size

    @property
    def others(self) -> Users | None:
        """Streams that use the memory besides its own."""
        return self.block.others

    def used_on(self, stream: int) -> None:
        """Note that work of a stream uses the memory."""
        if stream != self.stream and not _is_user(self.block.others, stream):
            self.block.memory.note(self.block, stream)


class Block(Holding):
    """The memory of an `Allocation`, on its stream, which is 0 for the default stream.

    Attributes:
        own: the stream, where it is ours.
        is_kept: whether it was put with the blocks that are kept.
        is_spare: whether it is not to be kept any more.
    """

    __slots__ = ("address", "is_kept", "is_spare", "memory", "others", "own", "size", "stream")
    address: int
    size: int
    stream: int
    own: StreamHolding | None
    others: Users | None
    is_kept: bool
    is_spare: bool
    memory: DeviceMemory

    def give_back(self) -> None:
        """Give the memory back once the work so far on its stream and the others is done."""
        self.memory.take_back(self)


def _is_user(users: Users | None, stream: int) -> bool:
    """Whether a stream is among those noted; the handle of one that was destroyed may be another's by now."""
    if users is None or stream not in users:
        return False
    holding = users[stream]
    return holding is None or not holding.gone


class _Shelf:
    """The small blocks of one size on the default stream that nobody owns any more. `append` is all that their deaths
    call; who takes one from the front holds the lock."""

    __slots__ = ("append", "free", "size")

    def __init__(self, size: int):
        self.free: deque[Block] = deque()
        self.append, self.size = self.free.append, size


class DeviceMemory:
    """The memory of one device, in the pool of its driver."""

    def __init__(self, driver: Driver, index: int, holdings: Holdings):
        self.driver, self.index, self.holdings = driver, index, holdings
        self._exact, self._lock = driver.exact_allocations, holdings.lock
        self.streams: dict[int, StreamHolding] = {}
        """Streams of ours by handle, until they are destroyed."""
        self.launched_on: WeakSet[LaunchedOn] = WeakSet()
        """Objects that remember the handles of streams: they forget those of streams that are destroyed."""
        self._kept: dict[tuple[int, int], list[Block]] = {}
        """Small blocks of our streams that nobody owns, by size and stream."""
        self._kept_bytes = 0
        self._shelves: dict[int, _Shelf] = {}
        self._small: dict[int, Block] = {}
        """Blocks of the shelves by address, owned or not: a weak reference must not go before what it is to."""
        self._small_bytes = 0
        self._moment: _Moment | None = None
        self._scratch: dict[int, list[Allocation]] = {}
        """Blocks by size that no call has at the moment."""
        self._scratch_blocks: dict[int, Block] = {}
        """Those, and the ones that calls have, by their ids."""

    def allocate(self, nbytes: int, stream: int) -> Allocation:
        """Memory for work of `stream`. Raises `CaptureError` on a stream that is being captured."""
        size = nbytes if self._exact else -(-nbytes // GRANULE) * GRANULE
        if not stream and (owner := self._small_block(size)) is not None:
            return owner
        if stream and self.driver.is_capturing(self.index, stream):
            raise CaptureError("a call would allocate its result while its stream is being captured: pass out=")
        owner = Allocation()
        block = self._hold(owner, size, stream)
        if self.holdings.dropped:
            self.holdings.settle()
        with self._lock:
            blocks, shelf = self._kept.get((size, stream)), None if stream else self._shelves.get(size)
            if blocks:
                owner.address = block.address = blocks[-1].address
                del blocks[-1]  # no call since the line before: an interrupt finds all of it done, or nothing
                self._kept_bytes -= size
                return owner
            if shelf is not None and self._is_ready(shelf):
                owner.address = block.address = address = shelf.free[0].address
                del self._small[address], shelf.free[0]  # nor here
                self._small_bytes -= size
                return owner
        owner.address = block.address = self._take(block)
        return owner

    def _small_block(self, size: int) -> Allocation | None:
        """Memory of a shelf, which comes back there; None where there is none."""
        shelf = self._shelves.get(size)
        if shelf is None or not shelf.free or self._small_bytes > SHELF_TOTAL:
            return None
        owner = Allocation()
        block = Block(owner, shelf.append)  # an empty one lands on the shelf, too, and is passed over
        block.address, block.others = 0, None
        block.memory, block.size, block.stream, block.own, block.is_kept = self, size, 0, None, False
        owner.block, owner.stream = block, 0
        with self._lock:
            if not self._is_ready(shelf):
                return None
            # No call from here on: an interrupt finds all of it done, or nothing.
            owner.address = block.address = address = shelf.free[0].address
            self._small[address] = block
            del shelf.free[0]
        return owner

    def _is_ready(self, shelf: _Shelf) -> bool:
        """Tell whether the first block of a shelf may be used, once the default stream waits for all that used it.

        During a capture, which that would break, only one that nobody else used may be."""
        while shelf.free:
            block = shelf.free[0]
            if not getattr(block, "address", 0):  # nothing was taken for it
                del shelf.free[0]
            elif not block.others:
                return True
            elif self.holdings.captures:
                return False
            else:
                self._order_after_users(block)
                block.others = None
        return False

    def _order_after_users(self, block: Block) -> None:
        for user in block.others or ():
            if _is_user(block.others, user):
                with contextlib.suppress(DriverCallError):
                    self._order_by_one_event(block.stream, user)

    def _order_by_one_event(self, later: int, earlier: int) -> None:
        """As `order_after`, by an event that is kept for as long as there are streams of ours. Needs the lock."""
        moment = self._moment
        if moment is None:
            moment = _Moment()
            made = self.holdings.hold_handle(moment, self.driver.destroy_event)
            moment.event = self.driver.create_event(self.index, made)
            self._moment = moment if self.streams else None
        self.driver.record_event(self.index, moment.event, earlier)
        self.driver.wait_event(self.index, later, moment.event)

    def _hold(self, owner: Allocation, size: int, stream: int) -> Block:
        block = self.holdings.hold(Block, owner)
        block.memory, block.address, block.size, block.stream, block.is_kept = self, 0, size, stream, False
        block.own, block.is_spare = None, False
        # Work on the default stream is not noted, so memory of another stream always waits for it.
        block.others = {0: None} if stream else None
        owner.block, owner.address, owner.stream = block, 0, stream
        self.holdings.add(block)
        if stream:
            with self._lock:
                block.own = own = self.streams.get(stream)
                if own is not None:
                    own.blocks[id(block)] = block
        return block

    def _take(self, block: Block) -> int:
        try:
            return self.driver.allocate(self.index, block.size, block.stream, block.made)
        except DeviceMemoryError:
            if self.holdings.captures:  # to wait would break the capture
                raise
            with contextlib.suppress(DriverCallError):  # another library captures: then this is the end of it
                self.give_back(0)
            block.made.clear()
            return self.driver.allocate(self.index, block.size, block.stream, block.made)

    def workspace(self, nbytes: int, stream: int) -> tuple[int, Allocation | None]:
        """(address, owner) of scratch memory; the graph being captured on `stream` owns it, if there is one."""
        captures = self.holdings.captures
        graph = captures.get(stream) if captures else None
        if graph is not None:
            return graph.workspace(nbytes), None
        owner = self.allocate(nbytes, stream)
        owner.block.others = None  # no work but that of the call, on its stream
        return owner.address, owner

    def scratch(self, nbytes: int) -> list[Allocation] | None:
        """The free blocks of scratch memory of a size, for calls on the default stream; None: `workspace` provides it.

        A call takes one (`new_scratch` makes one where none is left), and puts it back when it has enqueued its work:
        the next call's work comes after that, in stream order. It is the same list each time.
        """
        if self._exact or nbytes > SCRATCH_BLOCK:
            return None
        with self._lock:
            return self._scratch.setdefault(_scratch_size(nbytes), [])

    def new_scratch(self, nbytes: int) -> Allocation:
        """Make one more block for `scratch`; where there would be too many, those that are free go."""
        size = _scratch_size(nbytes)
        owner = Allocation()
        with self._lock:
            if sum(block.size for block in self._scratch_blocks.values()) + size > SCRATCH_TOTAL:
                self._drop_scratch()
            block = self._hold(owner, size, 0)
            self._scratch_blocks[id(block)] = block
        owner.address = block.address = self._take(block)
        return owner

    def _drop_scratch(self) -> None:
        with self._lock:
            for free in self._scratch.values():
                free.clear()  # plans hold the list
        self.holdings.settle()

    def take_back(self, block: Block) -> None:
        """Keep a block that nobody owns any more, or give it to the pool, after the work so far of all its users."""
        try:
            block.address = block.address or handle_of(block.made)
            if block.address and not block.gone:
                self._order_after_users(block)
                if not self._keep(block):
                    self.driver.free(self.index, block.address, block.stream, block.gone)
        except DeviceError as error:  # a stream of another library is gone: the pool keeps the memory
            log("memory was not given back: %s", error)
        self._scratch_blocks.pop(id(block), None)
        if block.own is not None:
            block.own.blocks.pop(id(block), None)
            if block.own.is_retired:
                block.own.give_back()

    def _keep(self, block: Block) -> bool:
        if block.is_kept:  # by a call of this that was interrupted
            return True
        # A foreign stream may be destroyed, and its handle given to another, without our knowing.
        if self._exact or block.is_spare or block.size > KEPT_BLOCK or id(block) in self._scratch_blocks:
            return False
        if block.stream and (block.own is None or block.own.is_retired):
            return False
        if self._kept_bytes + self._small_bytes + block.size > KEPT_TOTAL:
            return False
        if block.stream:
            kept = self._kept.setdefault((block.size, block.stream), [])
            kept += [block]  # no call from here on: an interrupt finds all of it done, or nothing
            self._kept_bytes += block.size
        else:
            free = self._shelves.setdefault(block.size, _Shelf(block.size)).free
            free += (block,)  # nor here
            block.others = None
            self._small[block.address] = block
            self._small_bytes += block.size
        block.is_kept = True
        return True

    def note(self, block: Block, stream: int) -> None:
        """Note that work of a stream uses some memory; streams that were destroyed since are forgotten."""
        with self._lock:
            others = block.others or {}
            block.others = {user: others[user] for user in others if _is_user(others, user)}
            block.others[stream] = self.streams.get(stream)

    def hold_stream(self, owner: object) -> StreamHolding:
        """A holding for a stream of ours, which is made next and then noted in `streams`."""
        holding = self.holdings.hold(StreamHolding, owner)
        holding.memory, holding.blocks, holding.is_retired = self, {}, False
        self.holdings.add(holding)
        return holding

    def forget_stream(self, handle: int, holding: StreamHolding) -> None:
        """Forget a stream of ours that was destroyed; its handle may be another's by now."""
        if self.streams.get(handle) is holding:
            del self.streams[handle]
            for launcher in self.launched_on:  # the default stream waits for the stream's work
                launcher.streams.discard(handle)
        if not self.streams:
            self._moment = None

    def order_after(self, later: int, earlier: int) -> None:
        """Make work that follows on stream `later` wait for the work so far on stream `earlier`."""
        moment = _Moment()
        made = self.holdings.hold_handle(moment, self.driver.destroy_event)
        event = self.driver.create_event(self.index, made)
        self.driver.record_event(self.index, event, earlier)
        self.driver.wait_event(self.index, later, event)

    def give_back(self, keep: int) -> None:
        """Wait for the device's streams, and give memory that nothing uses back to the system; see `Device.trim`."""
        self.trim()
        with self._lock:
            streams = [stream for holding in self.streams.values() if (stream := holding()) is not None]
        for stream in (0, *(stream.handle for stream in streams)):  # memory is free once the work before is done
            self.driver.synchronize(self.index, stream)
        self.driver.trim(self.index, keep)

    def stats(self) -> MemoryStats:
        """What is held, and what of it is in use: kept blocks are not."""
        self.holdings.settle()
        with self._lock:
            held, taken = self.driver.memory_in_use(self.index)
            free = sum(size * len(blocks) for size, blocks in self._scratch.items())
            free += sum(shelf.size * len(shelf.free) for shelf in self._shelves.values())
            return MemoryStats(held, taken - self._kept_bytes - free)

    def trim(self, stream: int | None = None) -> None:
        """Give kept blocks back to the driver's pool: all, or those of one stream."""
        if not stream:
            self._drop_scratch()
        dropped = self.holdings.dropped
        with self._lock:
            for shelf in () if stream else list(self._shelves.values()):
                while self._is_ready(shelf):
                    block = shelf.free[0]
                    block.is_spare, block.is_kept, block.made, block.gone = True, False, [], []
                    del self._small[block.address], shelf.free[0]  # no call from here on: all of it, or nothing
                    self._small_bytes -= block.size
                    dropped += (block,)
            for key in list(self._kept):
                blocks = self._kept[key] if stream in (None, key[1]) else ()
                while blocks:
                    block = blocks[-1]
                    block.is_spare, block.is_kept = True, False
                    if block.own is not None:
                        block.own.blocks[id(block)] = block
                    self._kept_bytes -= block.size  # nor here
                    dropped += (block,)
                    del blocks[-1]
            self.holdings.settle()


class _Moment:
    """The owner of an event."""

    __slots__ = ("__weakref__", "event")
    event: int


def rounded(nbytes: int) -> int:
    """A size in whole granules."""
    return -(-nbytes // GRANULE) * GRANULE


def _scratch_size(nbytes: int) -> int:
    return max(GRANULE, 1 << (nbytes - 1).bit_length())
