"""Data races: two wavefronts reach the same bytes, at least one to write, and nothing orders the two accesses.

What orders an access of wavefront A before a later one of wavefront B:

- they are of one wavefront;
- A and B are of one workgroup, and have passed a barrier between; of LDS, the barrier counts only if A had waited for
  its access by then;
- since, A has released and B has acquired, as with locks and flags: A by an atomic instruction or store (or A's access
  is one itself), B by an atomic instruction or load. Of different workgroups, any wavefront's will do, as barriers
  order it with the others. Which location it was, and which of the two came first, is not looked at: this finds fewer
  races, never one too many.

Atomic are the atomic instructions, and the loads and stores that reach past the caches of the compute unit. Atomic
writes race with ordinary writes, but neither with each other nor with reads: what polls a flag, or reads the value that
a compare-and-swap begins with, gets the one value or the other. Two wavefronts that write the same values to the same
bytes do not race, as Triton's replicated layouts do so; nor do lanes of one instruction of one wavefront.

Time is the number of the access in the launch, from 1. Readers and writers are recorded as a wavefront's number in the
launch; when several share a cell, as a workgroup's number, or as anyone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aot_runtime.errors import DataRaceError

from ..memory import gather
from ..monitor import Watch
from ..wavefronts import Array
from .reached import Reached
from .shadow import Cells, Record, Span

_ATOMIC, _WORKGROUP, _ANYONE = np.uint32(1 << 29), np.uint32(1 << 30), np.uint32(1 << 31)
_NUMBER = np.uint32((1 << 29) - 1)


class Order:
    """What has ordered the wavefronts of a launch.

    Args:
        workgroups: of the launch.
        wavefronts: of a workgroup.
    """

    def __init__(self, workgroups: int, wavefronts: int):
        self._shift = (wavefronts - 1).bit_length()
        numbers = workgroups << self._shift
        # Accesses before this time were before a barrier: of global memory, of LDS; by wavefront and by workgroup.
        self._fences = np.ones((2, numbers), np.uint32)
        self._workgroup_fences = np.ones((2, workgroups), np.uint32)
        # Times of the latest atomics: by wavefront, by workgroup.
        self._released = np.zeros(numbers, np.uint32), np.zeros(workgroups, np.uint32)
        self._acquired = np.zeros(numbers, np.uint32), np.zeros(workgroups, np.uint32)
        self._any_acquired = False

    def number(self, workgroup: Any, wavefront: Any) -> Any:
        """A wavefront's number in the launch."""
        return workgroup << self._shift | wavefront

    def workgroup(self, number: Any) -> Any:
        return number >> self._shift

    def wavefront(self, number: int) -> int:
        return number & (1 << self._shift) - 1

    def barrier(self, wavefronts: Array, time: int, lds_time: int) -> None:
        """Wavefronts pass a barrier, with their accesses of LDS before `lds_time` waited for."""
        self._fences[0, wavefronts], self._fences[1, wavefronts] = time, lds_time
        workgroups = self.workgroup(wavefronts)
        self._workgroup_fences[:, workgroups] = time  # what is no wavefront's number never falls behind
        np.minimum.at(self._workgroup_fences[1], workgroups, np.uint32(lds_time))

    def release(self, wavefronts: Array, time: int) -> None:
        """Wavefronts make an atomic write."""
        self._released[0][wavefronts] = self._released[1][self.workgroup(wavefronts)] = time

    def acquire(self, wavefronts: Array, time: int) -> None:
        """Wavefronts make an atomic read."""
        self._acquired[0][wavefronts] = self._acquired[1][self.workgroup(wavefronts)] = time
        self._any_acquired = True

    def settled(self, wavefronts: Array, is_lds: bool) -> int:
        """A time: accesses before it are ordered before whatever these wavefronts do, whoever made them."""
        return int(self._workgroup_fences[1, self.workgroup(wavefronts)].min()) if is_lds else 1

    def passed_barrier(self, who: int, time: int) -> bool:
        """Whether who made an access at a time, one wavefront, has passed a barrier since."""
        return bool(time < self._fences[0, who])

    def all_unordered(self, who: Array) -> bool:
        """Whether plainly none of these is ordered before anything."""
        return not self._any_acquired and bool((who == _ANYONE).all())

    def precedes(self, who: Array, times: Array, wavefronts: Array, is_lds: bool) -> Array:
        """Whether accesses recorded as who and times are ordered before one of `wavefronts` now; arrays alike."""
        space, own = int(is_lds), self.workgroup(wavefronts)
        anyone, shared = who >= _ANYONE, (who & _WORKGROUP) != 0
        number = np.where(anyone, np.uint32(0), who & _NUMBER)
        workgroup = np.where(shared, number, self.workgroup(number))
        wavefront = np.where(shared, np.uint32(0), number)
        single, within = ~(anyone | shared), ~anyone & (workgroup == own)
        fence = np.where(single, self._fences[space, wavefront], self._workgroup_fences[space, workgroup])
        ordered = (times == 0) | (single & (number == wavefronts)) | (within & (times < fence))
        if self._any_acquired:
            close = within & single  # two wavefronts of a workgroup: their own atomics, not those of others
            theirs = np.where(close, self._released[0][wavefront], self._released[1][workgroup])
            mine = np.where(close, self._acquired[0][wavefronts], self._acquired[1][own])
            ordered |= (anyone | (theirs >= times)) & (mine >= times)
        return ordered

    def together(self, who: Array, wavefronts: Array, is_lds: bool) -> Array:
        """A record of both those recorded and wavefronts."""
        own = self.workgroup(wavefronts)
        if is_lds:  # only one workgroup reaches it
            return np.where(who == wavefronts, who, own | _WORKGROUP)
        workgroup = np.where(who & _WORKGROUP, who & _NUMBER, self.workgroup(who & _NUMBER))
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

    def read(self, cells: Cells, reached: Reached, time: int) -> None:
        """Wavefronts read. Raises `DataRaceError`."""
        span = cells.span(reached.offsets, reached.nbytes, reached.low_bits)
        writers = self._recorded(cells, "write_time", "writer", span, reached)
        if writers is not None:
            unordered = ~self._precede(writers, reached) & ((writers.who & _ATOMIC) == 0)
            self._refuse(reached, "reads what", "wrote", writers, unordered)
        readers = self._recorded(cells, "read_time", "reader", span, reached)
        cells.put("read_time", span, time)
        now = reached.wavefronts
        if readers is not None:  # they add up until a write; those that are ordered before the new one are forgotten
            if self._order.all_unordered(readers.who):
                return
            wavefronts = np.broadcast_to(now, span.shape)
            now = np.where(
                self._precede(readers, reached), now, self._order.together(readers.who, wavefronts, reached.is_lds)
            )
            if (now == readers.who).all():
                return
        self._record(cells, "reader", span, reached, now)

    def write(self, cells: Cells, reached: Reached, time: int, is_atomic: bool) -> Watch | None:
        """Wavefronts write. Raises `DataRaceError`, or the watch does."""
        span = cells.span(reached.offsets, reached.nbytes, reached.low_bits)
        readers = self._recorded(cells, "read_time", "reader", span, reached)
        if readers is not None:
            if not is_atomic:
                self._refuse(reached, "writes what", "read", readers, ~self._precede(readers, reached))
            cells.put("read_time", span, 0)
        doubts = []
        writers = self._recorded(cells, "write_time", "writer", span, reached)
        if writers is not None:
            unordered = ~self._precede(writers, reached)
            mixed = ((writers.who & _ATOMIC) != 0) != is_atomic  # then no matter which values
            self._refuse(reached, "writes what", "wrote", writers, unordered & mixed)
            if not is_atomic and unordered.any():
                doubts.append(_Doubt(writers, unordered, _bytes_of(reached)))
        cells.put("write_time", span, time)
        if is_atomic:
            cells.put("writer", span, reached.wavefronts | _ATOMIC)
            return None
        clash = self._record(cells, "writer", span, reached, reached.wavefronts)
        if clash is not None:
            shared, who = clash
            doubts.append(_Doubt(_Recorded(np.full(span.shape, time, np.uint32), who), shared, None))
        return partial(self._compare, reached, doubts) if doubts else None

    def _recorded(
        self, cells: Cells, times: Record, names: Record, span: Span, reached: Reached
    ) -> _Recorded | None:  # fmt: skip
        """What is recorded of the cells; None if all that is ordered before now, whoever made it."""
        found = cells.get(times, span)
        if found is None or found.max() < self._order.settled(reached.numbers, reached.is_lds):
            return None
        who = cells.get(names, span)
        assert who is not None
        return _Recorded(found, who)

    def _precede(self, recorded: _Recorded, reached: Reached) -> Array:
        wavefronts = np.broadcast_to(reached.wavefronts, recorded.who.shape)
        return self._order.precedes(recorded.who, recorded.times, wavefronts, reached.is_lds)

    def _record(
        self, cells: Cells, record: Record, span: Span, reached: Reached, who: Array
    ) -> tuple[Array, Array] | None:  # fmt: skip
        """Record accesses, of which several may be to one cell: then all of theirs.

        Returns (which cells are shared, whose record was found there); None: none is.
        """
        cells.put(record, span, who)
        if len(reached.numbers) == 1:
            return None
        found = cells.get(record, span)
        assert found is not None
        differs = found != who
        if not differs.any():
            return None
        wavefronts = np.broadcast_to(reached.wavefronts, found.shape)[differs]
        both, which = self._order.together(found[differs], wavefronts, reached.is_lds), span.every[differs]
        for widest in (_WORKGROUP, _ANYONE):  # the widest last, that it stays
            wide = both >= widest
            if wide.any():
                cells.put(record, Span(which[wide], 1), both[wide])
        return differs, found

    def _compare(self, reached: Reached, doubts: list[_Doubt], values: Array) -> None:
        """Refuse doubtful writes of other values than were there before, or are there now."""
        given = _as_bytes(values, len(reached.offsets))
        for doubt in doubts:
            there = _bytes_of(reached) if doubt.before is None else doubt.before
            unequal = (given != there).reshape(len(given), len(doubt.cells), -1).any(2).T
            self._refuse(reached, "writes what", "wrote", doubt.recorded, doubt.cells & unequal)

    def _refuse(self, reached: Reached, now: str, then: str, recorded: _Recorded, wrong: Array) -> None:
        """Raise the error of the first access of which a cell is wrong."""
        if not wrong.any():
            return
        index = int(np.argmax(wrong.any(0)))
        cell = int(np.argmax(wrong[:, index]))
        who, time = int(recorded.who[cell, index]) & ~int(_ATOMIC), int(recorded.times[cell, index])
        because = "nothing orders the two"
        own = int(reached.wavefronts[index])
        if who < _WORKGROUP and self._order.workgroup(who) == self._order.workgroup(own):
            because = "no barrier is between"
            if reached.is_lds and self._order.passed_barrier(who, time):
                because = "it was not waited for before the barrier between"
        what = f"{now} {self._words(who)} {then} by {self._describe(time)}, and {because}"
        raise reached.error(DataRaceError, index, what)

    def _words(self, who: int) -> str:
        if who >= _ANYONE:
            return "wavefronts of several workgroups"
        if who >= _WORKGROUP:
            first = self._order.number(who & int(_NUMBER), 0)
            return f"several wavefronts of the workgroup of {self._name(first)}"
        return self._name(who)


@dataclass(frozen=True, eq=False)
class _Recorded:
    """uint32 [cells of an access, accesses] each."""

    times: Array
    who: Array


@dataclass(frozen=True, eq=False)
class _Doubt:
    """Writes of which the values decide: bool [cells, accesses], over what is recorded.

    before: uint8 [accesses, bytes], what was there; None: what is there after the store decides.
    """

    recorded: _Recorded
    cells: Array
    before: Array | None


def _bytes_of(reached: Reached) -> Array:
    """The bytes that are there, uint8 [accesses, bytes]."""
    return _as_bytes(gather(reached.allocation.data, reached.offsets, reached.nbytes), len(reached.offsets))


def _as_bytes(values: Array, count: int) -> Array:
    """Values in `gather`'s form as uint8 [accesses, bytes]."""
    if values.dtype == np.uint32:
        values = np.moveaxis(values.reshape(len(values), count), 0, -1)
    return np.ascontiguousarray(values).reshape(count, -1).view(np.uint8)
