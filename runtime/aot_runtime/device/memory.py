"""Stream-ordered device memory.

Small blocks are kept for the next allocation of the same size on the same stream, as repeated calls need them. Stream
order makes the reuse safe, and it saves two driver calls. Other blocks return to the driver's pool. If an allocation
fails, all unused memory is returned to the system and the allocation is retried. Scratch memory of calls on the default
stream has free lists of its own, so a block is taken and returned by a list's `pop` and `append`.

A block is owned by its `Allocation` and released after it (see `holdings`). A small block of the default stream that
was kept once returns to its shelf (`_Shelf`) directly. A stream of ours is destroyed after its `Stream` and all memory
allocated on it are gone.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from aot_runtime.errors import CaptureError, DeviceError, DeviceMemoryError, DriverCallError
from aot_runtime.logs import log

from .drivers import handle_of
from .holdings import Holding, Holdings

if TYPE_CHECKING:
    from .drivers.protocol import Driver
    from .protocol import LaunchedOn

GRANULE = 512
"""Sizes are rounded up to this many bytes."""
KEPT_BLOCK = 1 << 20
"""Size of the largest block to keep, in bytes."""
KEPT_TOTAL = 64 << 20
"""Maximum total size of kept blocks, in bytes."""
SHELF_TOTAL = 32 << 20
"""Maximum total size of blocks on shelves, in bytes. Beyond it, blocks are released as usual."""
SCRATCH_BLOCK, SCRATCH_TOTAL = 16 << 20, 64 << 20
"""Largest block and total size of scratch memory of calls on the default stream, in bytes."""


class MemoryStats(NamedTuple):
    """Bytes of device memory `held` by the pool, and the part `in_use` by arrays and calls."""

    held: int
    in_use: int


class StreamHolding(Holding):
    """A stream created by the runtime: a `streams.OwnStream`.

    Attributes:
        blocks: blocks allocated on it and not yet released, by id.
        is_retired: True if its `Stream` is gone.
    """

    __slots__ = ("blocks", "is_retired", "memory")
    blocks: dict[int, Block]
    is_retired: bool
    memory: DeviceMemory


Users = dict[int, StreamHolding | None]
"""Streams that use a block, by handle; None for the default stream and foreign streams."""


class Allocation:
    """Owner of a block of memory, shared by the arrays that use it.

    After it is gone, the block is released in order with the work of all streams that used it.
    """

    __slots__ = ("__weakref__", "address", "block", "stream")
    address: int
    stream: int
    block: Block

    @property
    def nbytes(self) -> int:
        """The size in bytes, possibly rounded up."""
        return self.block.size

    @property
    def others(self) -> Users | None:
        """Streams that use the memory, besides its own."""
        return self.block.others

    def used_on(self, stream: int) -> None:
        """Record that a stream uses the memory."""
        if stream != self.stream and not _is_user(self.block.others, stream):
            self.block.memory.note(self.block, stream)


class Block(Holding):
    """The memory of an `Allocation`. `stream` is 0 for the default stream.

    Attributes:
        own: its stream, if created by the runtime.
        is_kept: True if it is among the kept blocks.
        is_spare: True if it must not be kept any more.
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
        """Release the memory after the work so far on all its streams."""
        self.memory.take_back(self)


def _is_user(users: Users | None, stream: int) -> bool:
    """Return True if a stream is recorded as a user. Handles of destroyed streams may have been reused."""
    if users is None or stream not in users:
        return False
    holding = users[stream]
    return holding is None or not holding.gone


class _Shelf:
    """Free small blocks of one size on the default stream.

    Dying owners only call `append`. Hold the lock to take a block from the front.
    """

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
        """Streams created by the runtime and not yet destroyed, by handle."""
        self.launched_on: WeakSet[LaunchedOn] = WeakSet()
        """Objects that record stream handles, to be notified of destroyed streams."""
        self._kept: dict[tuple[int, int], list[Block]] = {}
        """Free small blocks of the runtime's streams, by size and stream."""
        self._kept_bytes = 0
        self._shelves: dict[int, _Shelf] = {}
        self._small: dict[int, Block] = {}
        """All shelf blocks by address: a weak reference must outlive its referent to be called."""
        self._small_bytes = 0
        self.moment: Moment | None = None
        """The owner of the event of `order_after`."""
        self._scratch: dict[int, list[Allocation]] = {}
        """Free scratch blocks, by size."""
        self._scratch_blocks: dict[int, Block] = {}
        """All scratch blocks, free or in use, by id."""

    def allocate(self, nbytes: int, stream: int) -> Allocation:
        """Allocate memory for work of `stream`. Raises `CaptureError` if the stream is being captured."""
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
                del blocks[-1]  # no call since the previous line, so an interrupt cannot separate them
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
        """Take memory from a shelf, to which it will return, or None if the shelf is empty."""
        shelf = self._shelves.get(size)
        if shelf is None or not shelf.free or self._small_bytes > SHELF_TOTAL:
            return None
        owner = Allocation()
        block = Block(owner, shelf.append)  # if interrupted, an empty block lands on the shelf and is skipped
        block.address, block.others = 0, None
        block.memory, block.size, block.stream, block.own, block.is_kept = self, size, 0, None, False
        owner.block, owner.stream = block, 0
        with self._lock:
            if not self._is_ready(shelf):
                return None
            # No calls from here on, so an interrupt cannot separate these lines.
            owner.address = block.address = address = shelf.free[0].address
            self._small[address] = block
            del shelf.free[0]
        return owner

    def _is_ready(self, shelf: _Shelf) -> bool:
        """Make the default stream wait for all users of a shelf's first block. Return True if it may be reused.

        Waiting would break a capture, so during one only blocks without other users may be reused.
        """
        while shelf.free:
            block = shelf.free[0]
            if not getattr(block, "address", 0):  # an empty block
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
                    self.order_after(block.stream, user)

    def order_after(self, later: int, earlier: int) -> None:
        """Make further work on stream `later` wait for the work so far on stream `earlier`.

        The event is reused while the runtime has streams.
        """
        with self._lock:
            moment = self.moment
            if moment is None:
                moment = Moment()
                made = self.holdings.hold_handle(moment, self.driver.destroy_event)
                moment.event = self.driver.create_event(self.index, made)
                self.moment = moment if self.streams else None
            self.driver.record_event(self.index, moment.event, earlier)
            self.driver.wait_event(self.index, later, moment.event)

    def _hold(self, owner: Allocation, size: int, stream: int) -> Block:
        block = self.holdings.hold(Block, owner)
        block.memory, block.address, block.size, block.stream, block.is_kept = self, 0, size, stream, False
        block.own, block.is_spare = None, False
        # Use by the default stream is not recorded, so memory of other streams always waits for it.
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
            if self.holdings.captures:  # waiting would break the capture
                raise
            with contextlib.suppress(DriverCallError):  # another library is capturing; the retry below decides
                self.give_back(0)
            block.made.clear()
            return self.driver.allocate(self.index, block.size, block.stream, block.made)

    def workspace(self, nbytes: int, stream: int) -> tuple[int, Allocation | None]:
        """Allocate scratch memory. Returns (address, owner); owner is None if a graph under capture owns it."""
        captures = self.holdings.captures
        graph = captures.get(stream) if captures else None
        if graph is not None:
            return graph.workspace(nbytes), None
        owner = self.allocate(nbytes, stream)
        owner.block.others = None  # used only by the call, on its own stream
        return owner.address, owner

    def scratch(self, nbytes: int) -> list[Allocation] | None:
        """Return the free list of scratch blocks of a size, for the default stream, or None to use `workspace`.

        A call pops a block, or calls `new_scratch` if the list is empty, and appends it after enqueueing its work.
        Stream order makes the reuse safe. The list is the same object on every call.
        """
        if self._exact or nbytes > SCRATCH_BLOCK:
            return None
        with self._lock:
            return self._scratch.setdefault(_scratch_size(nbytes), [])

    def new_scratch(self, nbytes: int) -> Allocation:
        """Allocate another block for `scratch`. Free blocks are dropped if the total would be too large."""
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
                free.clear()  # plans refer to the list
        self.holdings.settle()

    def take_back(self, block: Block) -> None:
        """Keep a block without an owner or return it to the pool, ordered after the work of all its users."""
        try:
            block.address = block.address or handle_of(block.made)
            if block.address and not block.gone:
                self._order_after_users(block)
                if not self._keep(block):
                    self.driver.free(self.index, block.address, block.stream, block.gone)
        except DeviceError as error:  # a foreign stream was destroyed: the pool keeps the memory
            log("memory was not given back: %s", error)
        self._scratch_blocks.pop(id(block), None)
        if block.own is not None:
            block.own.blocks.pop(id(block), None)
            if block.own.is_retired:
                block.own.give_back()

    def _keep(self, block: Block) -> bool:
        if block.is_kept:  # by an interrupted call
            return True
        # A foreign stream may be destroyed and its handle reused without notice.
        if self._exact or block.is_spare or block.size > KEPT_BLOCK or id(block) in self._scratch_blocks:
            return False
        if block.stream and (block.own is None or block.own.is_retired):
            return False
        if self._kept_bytes + self._small_bytes + block.size > KEPT_TOTAL:
            return False
        if block.stream:
            kept = self._kept.setdefault((block.size, block.stream), [])
            kept += [block]  # no calls from here on, so an interrupt cannot separate these lines
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
        """Record that a stream uses a block, and forget users that were destroyed."""
        with self._lock:
            others = block.others or {}
            block.others = {user: others[user] for user in others if _is_user(others, user)}
            block.others[stream] = self.streams.get(stream)

    def give_back(self, keep: int) -> None:
        """Wait for the device's streams and return unused memory to the system. See `Device.trim`."""
        self.trim()
        with self._lock:
            streams = [stream for holding in self.streams.values() if (stream := holding()) is not None]
        for stream in (0, *(stream.handle for stream in streams)):  # releases take effect in stream order
            self.driver.synchronize(self.index, stream)
        self.driver.trim(self.index, keep)

    def stats(self) -> MemoryStats:
        """Return the memory held and in use. Kept blocks count as unused."""
        self.holdings.settle()
        with self._lock:
            held, taken = self.driver.memory_in_use(self.index)
            free = sum(size * len(blocks) for size, blocks in self._scratch.items())
            free += sum(shelf.size * len(shelf.free) for shelf in self._shelves.values())
            return MemoryStats(held, taken - self._kept_bytes - free)

    def trim(self, stream: int | None = None) -> None:
        """Return kept blocks to the driver's pool: all of them, or one stream's."""
        if not stream:
            self._drop_scratch()
        dropped = self.holdings.dropped
        with self._lock:
            for shelf in () if stream else list(self._shelves.values()):
                while self._is_ready(shelf):
                    block = shelf.free[0]
                    block.is_spare, block.is_kept, block.made, block.gone = True, False, [], []
                    del self._small[block.address], shelf.free[0]  # no calls from here on, as above
                    self._small_bytes -= block.size
                    dropped += (block,)
            for key in [key for key in self._kept if stream in (None, key[1])]:
                blocks = self._kept[key]
                while blocks:
                    block = blocks[-1]
                    block.is_spare, block.is_kept = True, False
                    if block.own is not None:
                        block.own.blocks[id(block)] = block
                    self._kept_bytes -= block.size  # nor here
                    dropped += (block,)
                    del blocks[-1]
                del self._kept[key]  # nor here; entries of destroyed streams would pile up
            self.holdings.settle()


class Moment:
    """The owner of an event."""

    __slots__ = ("__weakref__", "event")
    event: int


def rounded(nbytes: int) -> int:
    """Round a size up to whole granules."""
    return -(-nbytes // GRANULE) * GRANULE


def _scratch_size(nbytes: int) -> int:
    return max(GRANULE, 1 << (nbytes - 1).bit_length())
