"""Memory accessible to a device: allocations of the driver, and registered memory of the program."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aot_emulator.errors import MemoryAccessError
from aot_emulator.state.arrays import Array
from aot_emulator.state.device_memory import Allocation, Memory

_OWN = 1 << 60
"""Start of the emulator's own address range, above all addresses of a program; unused so far."""
_GAP = 256
"""Unchanged bytes between two changed ones up to which they are written back in one piece."""

_PAUSE = 20
"""Interval between write-backs while a kernel runs, as a multiple of the time that one takes."""


class Process:
    """Access to the program's memory by /proc/PID/mem. Raises `OSError`."""

    def __init__(self, pid: int):
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)

    def read(self, address: int, nbytes: int) -> bytes:
        found = os.pread(self._memory, nbytes, address)
        if len(found) != nbytes:
            raise OSError(f"the program has no memory at {address:#x} ({nbytes} bytes)")
        return found

    def text(self, address: int, most: int = 4096) -> str:
        """Read a zero-terminated string."""
        return os.pread(self._memory, most, address).split(b"\0")[0].decode(errors="replace")

    def write(self, address: int, content: bytes) -> None:
        os.pwrite(self._memory, content, address)


@dataclass
class _Lent:
    """A registered range of the program's memory. before: its content when it was copied in; None: not copied in."""

    address: int
    data: Array
    before: Array | None = None


class AddressSpace(Memory):
    """A device's view of one program's memory, by virtual address.

    Allocations of the driver are shared with the program. Registered memory is copied in on the first access by a
    kernel. `return_lent` writes changes back, at the kernel's end and periodically before.

    Args:
        process: the program's memory.
        files: the memory of each device.
    """

    def __init__(self, process: Process, files: Sequence[mmap.mmap]):
        super().__init__(_OWN, 0)
        self._process, self._files = process, files
        self._lent: dict[int, _Lent] = {}
        self._next_return = 0.0

    def map(self, va: int, nbytes: int, offset: int, device: int) -> None:
        """Map a range of a device's memory."""
        self._take(va, np.frombuffer(self._files[device], np.uint8, nbytes, offset))

    def map_lent(self, va: int, nbytes: int, address: int) -> None:
        """Map a registered range of the program's own memory."""
        data = np.zeros(nbytes, np.uint8)
        self._take(va, data)
        self._lent[va] = _Lent(address, data)

    def _take(self, va: int, data: Array) -> None:
        self.unmap(va, data.size)  # the program may remap a range
        self.adopt(va, data)

    def unmap(self, va: int, nbytes: int) -> None:
        """Remove all mappings that overlap a range."""
        while (found := self._within(va, nbytes)) is not None:
            self._lent.pop(found.base, None)
            self.disown(found.base)

    def _within(self, va: int, nbytes: int) -> Allocation | None:
        return next((found for found in self.allocations if found.base < va + nbytes and va < found.end), None)

    def find(self, address: int, nbytes: int = 1) -> Allocation:
        found = super().find(address, nbytes)
        if self._lent and (lent := self._lent.get(found.base)) is not None and lent.before is None:
            self._borrow(lent)
        return found

    def _borrow(self, lent: _Lent) -> None:
        try:
            lent.data[:] = np.frombuffer(self._process.read(lent.address, lent.data.size), np.uint8)
        except OSError as error:
            text = f"cannot read registered memory: {error}"
            raise MemoryAccessError(text, lent.address, lent.data.size) from None
        lent.before = lent.data.copy()

    def return_lent(self) -> None:
        """Write changes of registered memory back to the program."""
        for lent in self._lent.values():
            if lent.before is not None:
                changed = np.flatnonzero(lent.before != lent.data)
                for run in np.split(changed, np.flatnonzero(np.diff(changed) > _GAP) + 1) if changed.size else ():
                    first, end = int(run[0]), int(run[-1]) + 1
                    self._process.write(lent.address + first, lent.data[first:end].tobytes())
                lent.before = None

    def return_lent_now_and_then(self) -> None:
        """Call `return_lent`, at limited frequency: kernels must then copy registered memory in again."""
        started = time.monotonic()
        if started >= self._next_return:
            self.return_lent()
            ended = time.monotonic()
            self._next_return = ended + _PAUSE * (ended - started)

    # Coherent access, for packets and commands

    def read(self, address: int, nbytes: int) -> bytes:
        """Read the current bytes of one allocation. Raises `MemoryAccessError`."""
        found = super().find(address, nbytes)
        lent = self._lent.get(found.base)
        if lent is not None:
            return self._process.read(lent.address + address - found.base, nbytes)
        return found.data[address - found.base : address - found.base + nbytes].tobytes()

    def put(self, address: int, content: bytes) -> None:
        """Write bytes of one allocation, immediately visible to the program. Raises `MemoryAccessError`."""
        found = super().find(address, len(content))
        lent = self._lent.get(found.base)
        if lent is not None:
            self._process.write(lent.address + address - found.base, content)
        else:
            here = slice(address - found.base, address - found.base + len(content))
            found.data[here] = np.frombuffer(content, np.uint8)

    def word(self, address: int, form: str = "<Q") -> int:
        """Read a number in a `struct` format. Raises `MemoryAccessError`."""
        return int(struct.unpack(form, self.read(address, struct.calcsize(form)))[0])

    def put_word(self, address: int, value: int, form: str = "<Q") -> None:
        """Write a number in a `struct` format. Raises `MemoryAccessError`."""
        self.put(address, struct.pack(form, value))

    def move(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes, possibly across adjacent allocations. Raises `MemoryAccessError`."""
        while nbytes:
            part = min(nbytes, self._room(target), self._room(source))
            self.put(target, self.read(source, part))
            target, source, nbytes = target + part, source + part, nbytes - part

    def fill(self, target: int, pattern: bytes, nbytes: int) -> None:
        """Fill with a repeated pattern, possibly across adjacent allocations. Raises `MemoryAccessError`."""
        content = np.resize(np.frombuffer(pattern, np.uint8), nbytes)
        while content.size:
            part = min(content.size, self._room(target))
            self.put(target, content[:part].tobytes())
            target, content = target + part, content[part:]

    def _room(self, address: int) -> int:
        return super().find(address).end - address
