"""Device memory: bounded allocations in an emulated address space, which has no host pointers.

All vector accesses to global memory, LDS and scratch use `gather` and `scatter`, which index a byte array by offsets
that the caller has checked.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aot_emulator.errors import MemoryAccessError
from aot_emulator.state.arrays import Array

POISON = 0xFF
"""Fill byte of new memory. It is NaN in every float dtype, which exposes uses of uninitialised memory."""
HOSTCALL_BUFFER = 1 << 55
"""Address of the hostcall buffer passed to kernels. It is unmapped, and accesses to it get an error of their own."""
_HOSTCALL_BYTES = 1 << 20
_GUARD = 1 << 20
"""Unmapped bytes after each allocation."""
_ALIGNMENT = 256
_UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
"""Dtype for moving units of each size. complex128 stands for 16 opaque bytes."""


@dataclass(frozen=True, eq=False)
class Allocation:
    """Bytes [base, base + nbytes) of the address space."""

    base: int
    nbytes: int
    data: Array
    """uint8, of size `nbytes` rounded up to 256."""
    written: Array | None = None
    """uint8 of the shape of `data`: 1 for written bytes; None: not tracked."""

    @property
    def end(self) -> int:
        return self.base + self.nbytes

    @property
    def text(self) -> str:
        """Description for error messages."""
        return f"the allocation of {self.nbytes} bytes at {self.base:#x}"


class Memory:
    """Global memory of a device.

    Args:
        start: lowest address. Addresses are never reused.
        limit: total bytes that may be allocated.
        tracked: track which bytes have been written.

    Attributes:
        interrupt: callback that interrupts the host, with the lowest 8 bits of an event number; None without a host.
    """

    def __init__(self, start: int, limit: int, tracked: bool = False):
        self._next, self._limit, self._used = start, limit, 0
        self.tracked = tracked
        self.interrupt: Callable[[int], None] | None = None
        self._bases: list[int] = []
        self._allocations: list[Allocation] = []

    def allocate(self, nbytes: int, made: list[int] | None = None) -> int:
        """Allocate memory, append its address to `made`, and return it. Raises `MemoryError`."""
        made = [] if made is None else made
        padded = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if self._used + padded > self._limit:
            raise MemoryError(f"{nbytes} bytes requested, {self._limit - self._used} left")
        written = np.zeros(padded, np.uint8) if self.tracked else None
        allocation = Allocation(self._next, nbytes, np.full(padded, POISON, np.uint8), written)
        self._next += -(-(padded + _GUARD) // _GUARD) * _GUARD
        at = bisect.bisect_left(self._bases, allocation.base)
        self._used += padded  # no call from here on: an interrupt cannot separate these statements
        self._bases[at:at] = [allocation.base]
        self._allocations[at:at] = [allocation]
        made += [allocation.base]
        return allocation.base

    @property
    def allocations(self) -> Sequence[Allocation]:
        """All allocations, sorted by address."""
        return self._allocations

    @property
    def used(self) -> int:
        """Allocated bytes; each allocation is rounded up to the alignment."""
        return self._used

    def stop_tracking(self) -> None:
        """Stop tracking written bytes: all memory counts as written from now on."""
        if self.tracked:
            self.tracked = False
            self._allocations = [replace(allocation, written=None) for allocation in self._allocations]

    def adopt(self, address: int, data: Array) -> None:
        """Map an existing array (uint8, writable) at an unmapped `address`."""
        at = bisect.bisect_left(self._bases, address)
        self._bases.insert(at, address)
        self._allocations.insert(at, Allocation(address, data.size, data))

    def disown(self, address: int) -> None:
        """Unmap an array mapped by `adopt`. Raises `MemoryAccessError` if none is mapped at that address."""
        at = self._place(address)
        del self._bases[at], self._allocations[at]

    def _place(self, address: int) -> int:
        at = bisect.bisect_left(self._bases, address)
        if at == len(self._bases) or self._bases[at] != address:
            raise MemoryAccessError(f"{address:#x} is not the start of an allocation", address, 0)
        return at

    def free(self, address: int, gone: list[int] | None = None) -> None:
        """Free an allocation and append 0 to `gone`. Raises `MemoryAccessError` if none starts at `address`."""
        gone = [] if gone is None else gone
        at = self._place(address)
        self._used -= self._allocations[at].data.size  # no call from here on, as in `allocate`
        del self._bases[at], self._allocations[at]
        gone += [0]

    def find(self, address: int, nbytes: int = 1) -> Allocation:
        """Return the allocation that contains `nbytes` bytes at an address. Raises `MemoryAccessError`."""
        at = bisect.bisect_right(self._bases, address) - 1
        if at >= 0 and address + nbytes <= self._allocations[at].end:
            return self._allocations[at]
        raise MemoryAccessError(self._describe(address, nbytes), address, nbytes)

    def _describe(self, address: int, nbytes: int) -> str:
        if HOSTCALL_BUFFER <= address < HOSTCALL_BUFFER + _HOSTCALL_BYTES:
            return (
                "the kernel prints or asserts (tl.device_print, tl.device_assert), which the emulator does not support"
            )
        at = bisect.bisect_right(self._bases, address) - 1
        text = f"{nbytes} bytes at {address:#x} are in no allocation"
        if at < 0:
            return text
        below = self._allocations[at]
        return f"{text}; the nearest below is {below.nbytes} bytes at {below.base:#x}, which end at {below.end:#x}"

    def bytes_at(self, address: int, nbytes: int) -> Array:
        """Return a view of bytes in one allocation, for reading. Raises `MemoryAccessError`."""
        found = self.find(address, nbytes)
        return found.data[address - found.base : address - found.base + nbytes]

    def write(self, address: int, nbytes: int, content: Any) -> None:
        """Write uint8 [nbytes], or a single repeated byte, to one allocation. Raises `MemoryAccessError`."""
        found = self.find(address, nbytes)
        here = slice(address - found.base, address - found.base + nbytes)
        found.data[here] = content
        if found.written is not None:
            found.written[here] = 1

    def write_some(self, address: int, content: Array, chosen: Array) -> None:
        """Write the bytes of `content` (uint8 [nbytes]) selected by the mask `chosen`. Raises `MemoryAccessError`."""
        found = self.find(address, max(1, content.size))
        here = slice(address - found.base, address - found.base + content.size)
        np.copyto(found.data[here], content, where=chosen)
        if found.written is not None:
            found.written[here] |= chosen

    def written(self, address: int, nbytes: int) -> Array:
        """Return a mask of the written bytes in a range of one allocation; all if untracked.

        Raises `MemoryAccessError`.
        """
        found = self.find(address, max(1, nbytes))
        if found.written is None:
            return np.ones(nbytes, bool)
        return found.written[address - found.base : address - found.base + nbytes].astype(bool)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy within the memory, including the written state. Raises `MemoryAccessError`."""
        found, origin = self.find(target, nbytes), self.find(source, nbytes)
        here = slice(target - found.base, target - found.base + nbytes)
        there = slice(source - origin.base, source - origin.base + nbytes)
        found.data[here] = origin.data[there].copy()
        if found.written is not None:
            found.written[here] = 1 if origin.written is None else origin.written[there].copy()

    def spans(self, addresses: Array, nbytes: int) -> list[tuple[Allocation, Array | None]]:
        """Group accesses of `nbytes` bytes at `addresses` (uint64, not empty) by allocation.

        Returns each allocation with the mask of its accesses; None: all. Raises `MemoryAccessError`.
        """
        low, high = int(addresses.min()), int(addresses.max())
        first = self.find(low, nbytes)
        if high + nbytes <= first.end:
            return [(first, None)]
        found: list[tuple[Allocation, Array | None]] = []
        left = np.ones(addresses.shape, bool)
        while left.any():
            allocation = self.find(int(addresses[left].min()), nbytes)
            mine = left & (addresses >= np.uint64(allocation.base)) & (addresses <= np.uint64(allocation.end - nbytes))
            found.append((allocation, mine))
            left &= ~mine
        return found


def gather(data: Array, offsets: Array, nbytes: int) -> Array:
    """Read `nbytes` bytes (1, 2, 4, 8, 12 or 16) at each offset.

    data: uint8 [size]. offsets: int64 of any shape, in bounds, of any alignment.
    Returns uint8 or uint16 of offsets' shape for 1 and 2 bytes; else uint32 [nbytes / 4, *offsets.shape].
    """
    if nbytes in (1, 2):
        return _take(data, offsets, nbytes)
    if nbytes == 12:
        return np.concatenate([gather(data, offsets, 8), gather(data, offsets + 8, 4)])
    taken = _take(data, offsets, nbytes)
    return np.moveaxis(taken.view(np.uint32).reshape(*offsets.shape, nbytes // 4), -1, 0)


def scatter(data: Array, offsets: Array, nbytes: int, values: Array) -> None:
    """Write values in the layout of `gather`. For overlapping accesses, the last one wins."""
    if nbytes in (1, 2):
        _put(data, offsets, nbytes, values)
    elif nbytes == 12:
        scatter(data, offsets, 8, values[:2])
        scatter(data, offsets + 8, 4, values[2:])
    else:
        packed = np.ascontiguousarray(np.moveaxis(values, 0, -1))
        _put(data, offsets, nbytes, packed.view(_UNITS[nbytes])[..., 0])


def _take(data: Array, offsets: Array, unit: int) -> Array:
    view, index = _aligned(data, offsets, unit)
    if view is not None:
        return view.take(index)
    half = unit // 2
    parts: Array = np.empty((*offsets.shape, 2), _UNITS[half])
    parts[..., 0], parts[..., 1] = _take(data, offsets, half), _take(data, offsets + half, half)
    return parts.view(_UNITS[unit])[..., 0]


def _put(data: Array, offsets: Array, unit: int, values: Array) -> None:
    view, index = _aligned(data, offsets, unit)
    if view is not None:
        view[index] = values
        return
    half = unit // 2
    parts: Array = np.ascontiguousarray(values)[..., None].view(_UNITS[half])
    _put(data, offsets, half, parts[..., 0])
    _put(data, offsets + half, half, parts[..., 1])


def _aligned(data: Array, offsets: Array, unit: int) -> tuple[Array | None, Array]:
    """Return a view of `data` as units, and the index of each offset; no view if offsets are not mutually aligned."""
    if unit == 1:
        return data, offsets
    place = int(offsets.flat[0]) & (unit - 1) if offsets.size else 0
    relative = offsets - place if place else offsets
    if int(np.bitwise_or.reduce(relative, axis=None)) & (unit - 1):
        return None, offsets
    whole = (data.size - place) // unit * unit
    return data[place : place + whole].view(_UNITS[unit]), relative >> (unit.bit_length() - 1)
