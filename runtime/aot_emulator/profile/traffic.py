"""Memory traffic of a launch: bytes, cache lines and bank conflicts by instruction, and the bytes touched.

Implemented as a monitor, which slows a launch down. Instruction executions are counted without it (`counters`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.machine.monitor import BatchView, Monitor
from aot_emulator.state.access import Action, Space, Touch
from aot_emulator.state.arrays import Array
from aot_emulator.state.device_memory import Allocation, scatter
from aot_emulator.state.wavefronts import Wavefronts
from aot_runtime.contract.peaks import Peaks

from .banks import count_passes

_ONES: dict[int, Array] = {1: np.array(0x01, np.uint8), 2: np.array(0x0101, np.uint16)}
_FOUR_ONES = np.array(0x01010101, np.uint32)


@dataclass
class AccessCount:
    """Totals of a set of accesses.

    Attributes:
        accesses: wavefront accesses with at least one active lane. An instruction may make two (ds_read2_b32).
        lanes: active lanes, summed over accesses.
        bytes: bytes requested by the lanes.
        distinct_bytes: bytes requested, counting bytes shared by lanes of an access once.
        lines: vector L1 cache lines, summed over accesses; 0 for LDS, scratch and scalar loads.
        passes, least_passes: LDS passes, taken and conflict-free (see `banks`).
    """

    accesses: int = 0
    lanes: int = 0
    bytes: int = 0
    distinct_bytes: int = 0
    lines: int = 0
    passes: int = 0
    least_passes: int = 0

    @property
    def conflicts(self) -> int:
        """LDS passes (clocks) lost to bank conflicts."""
        return self.passes - self.least_passes

    def efficiency(self, line_bytes: int) -> float | None:
        """Return the fraction of the touched cache lines that was requested, or None if no line was touched."""
        return self.distinct_bytes / (self.lines * line_bytes) if self.lines else None

    def add(self, other: AccessCount) -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass(frozen=True)
class Key:
    """Key by which accesses are counted."""

    pc: int
    space: Space
    action: Action


@dataclass(frozen=True, eq=False)
class Coverage:
    """The bytes of an allocation that were read or written (an atomic does both).

    read, written: uint8 masks over the allocation's data.
    """

    allocation: Allocation
    read: Array
    written: Array


class Traffic(Monitor):
    """Monitor that counts memory accesses.

    Args:
        peaks: hardware parameters of the architecture.

    Attributes:
        counts: access totals by instruction.
        coverage: bytes touched, by base address of the allocation; excludes the kernarg segment.
    """

    def __init__(self, peaks: Peaks):
        self._peaks, self._kernarg, self._pc = peaks, range(0), 0
        self.counts: dict[Key, AccessCount] = {}
        self.coverage: dict[int, Coverage] = {}

    def begin(self, batch: BatchView) -> None:
        self._kernarg = batch.kernarg

    def instruction(self, waves: Wavefronts, instruction: Instruction) -> None:
        self._pc = instruction.pc

    def access(self, waves: Wavefronts, touch: Touch) -> None:
        addresses, lanes = touch.addresses, touch.lanes
        if addresses.ndim == 1:
            addresses, lanes = addresses[:, None], None if lanes is None else lanes[:, None]
        if lanes is not None:
            used = lanes.any(axis=1)
            addresses, lanes = addresses[used], lanes[used]
            if not len(addresses):
                return
            if lanes.all():
                lanes = None
        found = self._measure(touch, addresses.astype(np.int64), lanes)
        self.counts.setdefault(Key(self._pc, touch.space, touch.action), AccessCount()).add(found)
        if touch.space in ("global", "scalar"):
            self._cover(waves, touch, _filled(addresses, lanes))

    def _measure(self, touch: Touch, addresses: Array, lanes: Array | None) -> AccessCount:
        count = addresses.size if lanes is None else int(np.count_nonzero(lanes))
        found = AccessCount(len(addresses), count, count * touch.nbytes)
        ordered = np.sort(_filled(addresses, lanes), axis=1)
        if touch.space != "scratch":
            found.distinct_bytes = _distinct_bytes(ordered, touch.nbytes)
        else:
            found.distinct_bytes = found.bytes  # each lane's scratch is its own
        if touch.space == "global":
            found.lines = _distinct_lines(ordered, touch.nbytes, self._peaks.line_bytes)
        elif touch.space == "lds":
            passes = count_passes(self._peaks.lds_banks, touch.action, addresses, touch.nbytes, lanes)
            found.passes, found.least_passes = passes.taken, passes.least
        return found

    def _cover(self, waves: Wavefronts, touch: Touch, addresses: Array) -> None:
        if int(addresses.min()) in self._kernarg and int(addresses.max()) in self._kernarg:
            return
        for allocation, mine in waves.memory.memory.spans(addresses, touch.nbytes):
            seen = self.coverage.get(allocation.base)
            if seen is None:
                seen = Coverage(allocation, *(np.zeros(allocation.data.size, np.uint8) for _ in range(2)))
                self.coverage[allocation.base] = seen
            offsets = ((addresses if mine is None else addresses[mine]) - np.uint64(allocation.base)).view(np.int64)
            if touch.action != "store":
                _mark(seen.read, offsets, touch.nbytes)
            if touch.action != "load":
                _mark(seen.written, offsets, touch.nbytes)

    def reached(self, address: int | None = None, nbytes: int = 0) -> tuple[int, int]:
        """Return the distinct bytes (read, written) in [address, address + nbytes), or in all memory."""
        read = written = 0
        for base, seen in self.coverage.items():
            low, high = (0, seen.read.size) if address is None else (address - base, address - base + nbytes)
            if high > 0:
                part = slice(max(low, 0), high)
                read += int(np.count_nonzero(seen.read[part]))
                written += int(np.count_nonzero(seen.written[part]))
        return read, written


def _filled(addresses: Array, lanes: Array | None) -> Array:
    """Replace the addresses of inactive lanes by that of an active lane of the same wavefront."""
    if lanes is None:
        return addresses
    first = np.take_along_axis(addresses, lanes.argmax(axis=1)[:, None], 1)
    return np.where(lanes, addresses, first)


def _distinct_bytes(ordered: Array, nbytes: int) -> int:
    """Return the distinct bytes accessed by each row, summed. ordered: int64 [rows, lanes], ascending."""
    return int(np.minimum(np.diff(ordered, axis=1), nbytes).sum()) + nbytes * len(ordered)


def _distinct_lines(ordered: Array, nbytes: int, line_bytes: int) -> int:
    first, last = ordered // line_bytes, (ordered + (nbytes - 1)) // line_bytes
    fresh = last[:, 1:] - np.maximum(first[:, 1:] - 1, last[:, :-1])
    return int((last[:, 0] - first[:, 0] + 1).sum() + np.maximum(fresh, 0).sum())


def _mark(bitmap: Array, offsets: Array, nbytes: int) -> None:
    if nbytes in _ONES:
        scatter(bitmap, offsets, nbytes, np.broadcast_to(_ONES[nbytes], offsets.shape))
    elif nbytes <= 16:
        scatter(bitmap, offsets, nbytes, np.broadcast_to(_FOUR_ONES, (nbytes // 4, *offsets.shape)))
    else:  # wide scalar loads
        for skip in range(0, nbytes, 16):
            _mark(bitmap, offsets + skip, min(16, nbytes - skip))
