"""Data races: two wavefronts reach the same bytes, at least one to write, and nothing orders the two accesses.

What orders an access of wavefront A before a later one of wavefront B:

- they are of one wavefront;
- A and B are of one workgroup, and have passed a barrier between; of LDS, the barrier counts only if A had waited for
  its access by then;
- both have made an atomic access between (A's own access counts, if it is atomic), as locks and flags do: A to release,
  B to acquire. Of different workgroups, any wavefront's atomic counts, as barriers order it with the others'. Which
  location it was, and which of the two came first, is not looked at: this finds fewer races, never one too many.

Atomic accesses are atomic instructions, and loads and stores that reach past the caches of the compute unit. They do
not race with each other. Two wavefronts that write the same values to the same bytes do not race, as Triton's
replicated layouts do so; nor do lanes of one instruction of one wavefront.

Time is the number of the access in the launch, from 1. Readers and writers are recorded as a wavefront's number in the
launch; when several share a cell, as a workgroup's number, or as anyone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot_runtime.errors import DataRaceError

from ..memory import gather
from ..monitor import Watch
from ..wavefronts import Array
from .reached import Reached
from .shadow import Cells

_ATOMIC, _WORKGROUP, _ANYONE = np.uint32(1 << 29), np.uint32(1 << 30), np.uint32(1 << 31)
_NUMBER = np.uint32((1 << 29) - 1)


class Order:
    """What has ordered the wavefronts of a launch.

    Args:
        wavefronts: of the launch.
        per_workgroup: of them.
    """

    def __init__(self, wavefronts: int, per_workgroup: int):
        self.per_workgroup = np.uint32(per_workgroup)
        # Accesses before this time were before a barrier: (global, LDS).
        self._fences = np.ones((2, wavefronts), np.uint32)
        self._workgroup_fences = np.ones((2, -(-wavefronts // per_workgroup)), np.uint32)
        # Of the latest atomic access.
        self._wavefront_atomic = np.zeros(wavefronts, np.uint32)
        self._workgroup_atomic = np.zeros(self._workgroup_fences.shape[1], np.uint32)

    def barrier(self, wavefronts: Array, time: int, lds_time: int) -> None:
        """Wavefronts pass a barrier, with their accesses before `lds_time` waited for."""
        self._fences[0, wavefronts], self._fences[1, wavefronts] = time, lds_time
        workgroups = np.unique(wavefronts // self.per_workgroup)
        members = workgroups[:, None] * self.per_workgroup + np.arange(self.per_workgroup, dtype=np.uint32)
        self._workgroup_fences[:, workgroups] = self._fences[:, members].min(2)

    def atomic(self, wavefronts: Array, time: int) -> None:
        """Wavefronts make an atomic access."""
        self._wavefront_atomic[wavefronts] = time
        self._workgroup_atomic[wavefronts // self.per_workgroup] = time

    def settled(self, wavefronts: Array, is_lds: bool) -> int:
        """A time: accesses before it are ordered before whatever these wavefronts do, whoever made them."""
        if not is_lds:
            return 1
        return int(self._workgroup_fences[1, wavefronts // self.per_workgroup].min())

    def passed_barrier(self, who: int, time: int) -> bool:
        """Whether who made an access at a time, one wavefront, has passed a barrier since."""
        return bool(time < self._fences[0, who])

    def precedes(self, who: Array, times: Array, wavefronts: Array, is_lds: bool) -> Array:
        """Whether accesses recorded as who and times are ordered before one of `wavefronts` now; arrays alike."""
        number, anyone = who & _NUMBER, who >= _ANYONE
        shared = (who & _WORKGROUP) != 0
        own = wavefronts // self.per_workgroup
        single = ~anyone & ~shared
        number = np.where(anyone, 0, number)
        workgroup = np.where(shared, number, number // self.per_workgroup)
        within = ~anyone & (workgroup == own)
        wavefront = np.where(single, number, 0)
        space = int(is_lds)
        fence = np.where(single, self._fences[space, wavefront], self._workgroup_fences[space, workgroup])
        close = within & single  # two wavefronts of a workgroup: their own atomics, not those of others
        theirs = np.where(close, self._wavefront_atomic[wavefront], self._workgroup_atomic[workgroup])
        mine = np.where(close, self._wavefront_atomic[wavefronts], self._workgroup_atomic[own])
        by_atomics = (anyone | (theirs >= times)) & (mine >= times)
        return (times == 0) | (single & (number == wavefronts)) | (within & (times < fence)) | by_atomics

    def together(self, who: Array, wavefronts: Array) -> Array:
        """A record of both those recorded and wavefronts."""
        own = wavefronts // self.per_workgroup
        number = who & _NUMBER
        workgroup = np.where(who & _WORKGROUP, number, number // self.per_workgroup)
        shared = np.where((who < _ANYONE) & (workgroup == own), own | _WORKGROUP, _ANYONE)
        return np.where(who == wavefronts, who, shared)


class Races:
    """Finds races in LDS and global memory.

    Args:
        describe: the instruction that made the access of a time, in words.
        name: a wavefront of the launch, in words.
    """

    def __init__(self, order: Order, describe: Callable[[int], str], name: Callable[[int], str]):
        self._order, self._describe, self._name = order, describe, name

    def read(self, cells: Cells, reached: Reached, time: int, is_atomic: bool) -> None:
        """Wavefronts read. Raises `DataRaceError`."""
        cells.cut_to(reached.low_bits)
        settled = self._order.settled(reached.numbers, reached.is_lds)
        wrong = self._unordered(cells, "write_time", "writer", reached, settled)
        if wrong is not None:
            times, who, unordered = wrong
            if is_atomic:
                unordered &= (who & _ATOMIC) == 0
            self._refuse(reached, "reads what", "wrote", who, times, unordered)
        if not is_atomic:
            self._record_readers(cells, reached, settled, time)

    def write(self, cells: Cells, reached: Reached, time: int, is_atomic: bool) -> Watch | None:
        """Wavefronts write. Raises `DataRaceError`, or the watch does."""
        cells.cut_to(reached.low_bits)
        settled = self._order.settled(reached.numbers, reached.is_lds)
        wrong = self._unordered(cells, "read_time", "reader", reached, settled)
        if wrong is not None:
            times, who, unordered = wrong
            self._refuse(reached, "writes what", "read", who, times, unordered)
            cells.put("read_time", reached.offsets, reached.nbytes, 0)
        doubts: list[tuple[Array, Array, Array, Array | None]] = []
        wrong = self._unordered(cells, "write_time", "writer", reached, settled)
        if wrong is not None:
            times, who, unordered = wrong
            # One atomic, one not: no matter which values.
            surely = unordered & (((who & _ATOMIC) == 0) if is_atomic else ((who & _ATOMIC) != 0))
            self._refuse(reached, "writes what", "wrote", who, times, surely)
            if not is_atomic and unordered.any():
                doubts.append((unordered, who, times, _bytes_of(reached)))
        cells.put("write_time", reached.offsets, reached.nbytes, time)
        if is_atomic:
            cells.put("writer", reached.offsets, reached.nbytes, reached.wavefronts | _ATOMIC)
            return None
        clash = self._record(cells, "writer", reached, reached.wavefronts)
        if clash is not None:
            doubts.append((*clash, np.full(clash[0].shape, time, np.uint32), None))
        if not doubts:
            return None
        return lambda values: self._compare(reached, doubts, values)

    def _unordered(
        self, cells: Cells, record: Any, names: Any, reached: Reached, settled: int
    ) -> tuple[Array, Array, Array] | None:
        """(times, who, whether not ordered before now) of each cell; None if all is in order."""
        times = cells.get(record, reached.offsets, reached.nbytes)
        if times is None or times.max() < settled:
            return None
        who = cells.get(names, reached.offsets, reached.nbytes)
        assert who is not None
        wavefronts = np.broadcast_to(reached.wavefronts, times.shape)
        return times, who, ~self._order.precedes(who, times, wavefronts, reached.is_lds)

    def _record_readers(self, cells: Cells, reached: Reached, settled: int, time: int) -> None:
        """Readers add up until a write; those that are ordered before the new one are forgotten."""
        earlier = self._unordered(cells, "read_time", "reader", reached, settled)
        cells.put("read_time", reached.offsets, reached.nbytes, time)
        readers = reached.wavefronts
        if earlier is not None:
            _, who, unordered = earlier
            wavefronts = np.broadcast_to(readers, who.shape)
            readers = np.where(unordered, self._order.together(who, wavefronts), wavefronts)
            if (readers == who).all():
                return
        self._record(cells, "reader", reached, readers)

    def _record(self, cells: Cells, record: Any, reached: Reached, who: Array) -> tuple[Array, Array] | None:
        """Record accesses, of which several may be to one cell: then all of theirs.

        Returns (which cells are shared, whose record was found there); None: none is.
        """
        cells.put(record, reached.offsets, reached.nbytes, who)
        found = cells.get(record, reached.offsets, reached.nbytes)
        assert found is not None
        differs = found != who
        if not differs.any():
            return None
        both = self._order.together(found, np.broadcast_to(reached.wavefronts, found.shape))
        offsets = reached.offsets + np.arange(len(found))[:, None] * cells.unit
        for widest in (_WORKGROUP, _ANYONE):  # the widest last, that it stays
            wide = differs & (both >= widest)
            if wide.any():
                cells.put(record, offsets[wide], cells.unit, both[wide])
        return differs, found

    def _compare(self, reached: Reached, doubts: list[tuple[Array, Array, Array, Array | None]], values: Array) -> None:
        """Refuse doubtful writes of other values than were there before, or (None) are there now."""
        given = _as_bytes(values, len(reached.offsets))
        for cells, who, times, before in doubts:
            there = _bytes_of(reached) if before is None else before
            unequal = (given != there).reshape(len(given), len(cells), -1).any(2).T
            self._refuse(reached, "writes what", "wrote", who, times, cells & unequal)

    def _refuse(self, reached: Reached, now: str, then: str, who: Array, times: Array, wrong: Array) -> None:
        """Raise the error of the first access that is wrong; who, times, wrong: [cells, accesses]."""
        if not wrong.any():
            return
        index = int(np.argmax(wrong.any(0)))
        cell = int(np.argmax(wrong[:, index]))
        number, time = int(who[cell, index]) & ~int(_ATOMIC), int(times[cell, index])
        per_workgroup, because = int(self._order.per_workgroup), "nothing orders the two"
        if number < _WORKGROUP and number // per_workgroup == int(reached.wavefronts[index]) // per_workgroup:
            because = "no barrier is between"
            if reached.is_lds and self._order.passed_barrier(number, time):
                because = "it was not waited for before the barrier between"
        what = f"{now} {self._words(number)} {then} by {self._describe(time)}, and {because}"
        raise reached.error(DataRaceError, index, what)

    def _words(self, who: int) -> str:
        number = who & int(_NUMBER)
        if who >> 31:
            return "wavefronts of other workgroups"
        if who >> 30 & 1:
            return f"several wavefronts, the first of them {self._name(number * int(self._order.per_workgroup))},"
        return self._name(number)


def _bytes_of(reached: Reached) -> Array:
    """The bytes that are there, uint8 [accesses, bytes]."""
    return _as_bytes(gather(reached.allocation.data, reached.offsets, reached.nbytes), len(reached.offsets))


def _as_bytes(values: Array, count: int) -> Array:
    """Values in `gather`'s form as uint8 [accesses, bytes]."""
    if values.dtype == np.uint32:
        values = np.moveaxis(values.reshape(len(values), count), 0, -1)
    return np.ascontiguousarray(values).reshape(count, -1).view(np.uint8)
