"""Data races: two wavefronts reach the same bytes, at least one to write, and nothing orders the two accesses.

What orders an access of wavefront A before a later one of wavefront B:

- they are of one wavefront;
- A and B are of one workgroup, and have passed a barrier between; of LDS, the barrier counts only if A had waited for
  its access by then, be that one of LDS or a load from memory that goes there;
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
from functools import cached_property
from typing import Any

import numpy as np

from aot_emulator.state.arrays import Array
from aot_emulator.state.device_memory import gather

from .shadow import Cells, Record, Span

_ATOMIC, _WORKGROUP, _ANYONE = np.uint32(1 << 29), np.uint32(1 << 30), np.uint32(1 << 31)
_NUMBER = np.uint32((1 << 29) - 1)


class HappensBefore:
    """What has ordered the wavefronts of a launch.

    Args:
        workgroups: of the launch.
        wavefronts: of a workgroup.
    """

    def __init__(self, workgroups: int, wavefronts: int):
        self._shift = (wavefronts - 1).bit_length()
        numbers = workgroups << self._shift
        # Accesses before this time were before a barrier: of global memory, of LDS, of LDS by loads that go there; by
        # wavefront and by workgroup.
        self._fences = np.ones((3, numbers), np.uint32)
        self._workgroup_fences = np.ones((3, workgroups), np.uint32)
        # Whether the access of a time is a load that goes to LDS; the last one is not, nor are those after it.
        self._loads: Array = np.zeros(1, bool)
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

    def barrier(self, wavefronts: Array, time: int, lds_time: int, load_time: int) -> None:
        """Wavefronts pass a barrier, with their accesses of LDS before `lds_time` waited for, and their loads that go
        there before `load_time`."""
        workgroups = self.workgroup(wavefronts)
        self._workgroup_fences[:, workgroups] = time  # what is no wavefront's number never falls behind
        for space, before in enumerate((time, lds_time, load_time)):
            self._fences[space, wavefronts] = before
            np.minimum.at(self._workgroup_fences[space], workgroups, np.uint32(before))

    def load_to_lds(self, time: int) -> None:
        """The access of a time is a load that goes to LDS."""
        if time >= len(self._loads) - 1:
            self._loads = np.concatenate([self._loads, np.zeros(time + 1, bool)])
        self._loads[time] = True

    def release(self, wavefronts: Array, time: int) -> None:
        """Wavefronts make an atomic write."""
        self._released[0][wavefronts] = self._released[1][self.workgroup(wavefronts)] = time

    def acquire(self, wavefronts: Array, time: int) -> None:
        """Wavefronts make an atomic read."""
        self._acquired[0][wavefronts] = self._acquired[1][self.workgroup(wavefronts)] = time
        self._any_acquired = True

    def settled(self, wavefronts: Array, is_lds: bool) -> int:
        """A time: accesses before it are ordered before whatever these wavefronts do, whoever made them."""
        return int(self._workgroup_fences[1:, self.workgroup(wavefronts)].min()) if is_lds else 1

    def passed_barrier(self, who: int, time: int) -> bool:
        """Whether who made an access at a time, one wavefront, has passed a barrier since."""
        return bool(time < self._fences[0, who])

    def all_unordered(self, who: Array) -> bool:
        """Whether plainly none of these is ordered before anything."""
        return not self._any_acquired and bool((who == _ANYONE).all())

    def precedes(self, who: Array, times: Array, wavefronts: Array, is_lds: bool) -> Array:
        """Whether accesses recorded as who and times are ordered before one of `wavefronts` now; arrays alike."""
        own = self.workgroup(wavefronts)
        space = 1 + self._loads[np.minimum(times, len(self._loads) - 1)] if is_lds else 0
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


@dataclass(frozen=True, eq=False)
class Accesses:
    """What an instruction reaches in one array.

    Attributes:
        data: the array, uint8.
        offsets: int64 [n], into data.
        nbytes: of each.
        by: uint32 [n], numbers of the wavefronts.
        wavefronts: uint32 [any], all of these numbers, and maybe more.
        values: of stores, what is stored, as `gather` gives it.
    """

    data: Array
    offsets: Array
    nbytes: int
    by: Array
    wavefronts: Array
    is_lds: bool
    values: Array | None

    @cached_property
    def low_bits(self) -> int:
        """The bits that any offset, or the size, has."""
        return int(np.bitwise_or.reduce(self.offsets)) | self.nbytes

    @property
    def stored(self) -> Array:
        """What is stored, uint8 [n, nbytes]."""
        assert self.values is not None
        return self._as_bytes(self.values)

    @property
    def there(self) -> Array:
        """What is there before, uint8 [n, nbytes]."""
        return self._as_bytes(gather(self.data, self.offsets, self.nbytes))

    def _as_bytes(self, values: Array) -> Array:
        if values.dtype == np.uint32:
            values = np.moveaxis(values.reshape(len(values), len(self.offsets)), 0, -1)
        return np.ascontiguousarray(values).reshape(len(self.offsets), -1).view(np.uint8)


@dataclass(frozen=True, eq=False)
class Race:
    """Accesses that race with others.

    Attributes:
        wrong: bool [accesses].
        text: what was done by whom before, and what is amiss, for the first of them.
        unwaited: a barrier is between, for which the other access was not waited for.
    """

    wrong: Array
    text: str
    unwaited: bool


@dataclass(frozen=True, eq=False)
class _Recorded:
    """uint32 [cells of an access, accesses] each."""

    times: Array
    who: Array


class Races:
    """Finds races in LDS and global memory.

    Args:
        describe: the instruction that made the access of a time, in words.
        name: a wavefront of the launch, in words.
    """

    def __init__(self, order: HappensBefore, describe: Callable[[int], str], name: Callable[[int], str]):
        self._order, self._describe, self._name = order, describe, name

    def unwaited(self, cells: Cells, accesses: Accesses, loads: frozenset[int]) -> Race | None:
        """Wavefronts reach what loads of their own, of these times, write to LDS, and have not waited for them."""
        span = cells.span(accesses.offsets, accesses.nbytes, accesses.low_bits)
        writers = self._recorded(cells, "write_time", "writer", span, accesses)
        if writers is None:
            return None
        wrong = np.isin(writers.times, np.fromiter(loads, np.uint32)) & (writers.who == accesses.by)
        return self._race("stored", accesses, writers, wrong, "that is not waited for") if wrong.any() else None

    def load(self, cells: Cells, accesses: Accesses, time: int) -> Race | None:
        """Wavefronts load."""
        span = cells.span(accesses.offsets, accesses.nbytes, accesses.low_bits)
        writers = self._recorded(cells, "write_time", "writer", span, accesses)
        if writers is not None:
            unordered = ~self._precede(writers, accesses) & ((writers.who & _ATOMIC) == 0)
            if unordered.any():
                return self._race("stored", accesses, writers, unordered)
        readers = self._recorded(cells, "read_time", "reader", span, accesses)
        cells.put("read_time", span, time)
        now = accesses.by
        if readers is not None:  # they add up until a write; those that are ordered before the new one are forgotten
            if self._order.all_unordered(readers.who):
                return None
            together = self._order.together(readers.who, np.broadcast_to(now, span.shape), accesses.is_lds)
            now = np.where(self._precede(readers, accesses), now, together)
            if (now == readers.who).all():
                return None
        self._record(cells, "reader", span, accesses, now)
        return None

    def store(self, cells: Cells, accesses: Accesses, time: int) -> Race | None:
        """Wavefronts store."""
        span = cells.span(accesses.offsets, accesses.nbytes, accesses.low_bits)
        readers = self._recorded(cells, "read_time", "reader", span, accesses)
        if readers is not None:
            unordered = ~self._precede(readers, accesses)
            if unordered.any():
                return self._race("loaded", accesses, readers, unordered)
            cells.put("read_time", span, 0)
        writers = self._recorded(cells, "write_time", "writer", span, accesses)
        if writers is not None:
            unordered = ~self._precede(writers, accesses)
            if unordered.any():  # if the other was atomic, no matter which values
                changed = _by_cell(accesses.stored != accesses.there, span)
                unordered &= changed | ((writers.who & _ATOMIC) != 0)
            if unordered.any():
                return self._race("stored", accesses, writers, unordered)
        cells.put("write_time", span, time)
        shared = self._record(cells, "writer", span, accesses, accesses.by)
        if shared is not None:
            unequal = shared.who != accesses.by
            unequal &= _by_cell(_unequal(accesses), span)
            if unequal.any():
                return self._race("stored", accesses, _Recorded(np.full(span.shape, time), shared.who), unequal)
        return None

    def atomic(self, cells: Cells, accesses: Accesses, time: int) -> Race | None:
        """Wavefronts store by atomics."""
        span = cells.span(accesses.offsets, accesses.nbytes, accesses.low_bits)
        writers = self._recorded(cells, "write_time", "writer", span, accesses)
        if writers is not None:
            unordered = ~self._precede(writers, accesses) & ((writers.who & _ATOMIC) == 0)
            if unordered.any():
                return self._race("stored", accesses, writers, unordered)
        cells.put("write_time", span, time)
        cells.put("writer", span, accesses.by | _ATOMIC)
        return None

    def _recorded(self, cells: Cells, times: Record, names: Record, span: Span, accesses: Accesses) -> _Recorded | None:
        """What is recorded of the cells; None if all that is ordered before now, whoever made it."""
        found = cells.get(times, span)
        if found is None or found.max() < self._order.settled(accesses.wavefronts, accesses.is_lds):
            return None
        who = cells.get(names, span)
        assert who is not None
        return _Recorded(found, who)

    def _precede(self, recorded: _Recorded, accesses: Accesses) -> Array:
        by = np.broadcast_to(accesses.by, recorded.who.shape)
        return self._order.precedes(recorded.who, recorded.times, by, accesses.is_lds)

    def _record(self, cells: Cells, record: Record, span: Span, accesses: Accesses, who: Array) -> _Recorded | None:
        """Record accesses, of which several may be to one cell: then all of theirs.

        Returns whose record was in each cell when each was recorded; None: all have their own.
        """
        cells.put(record, span, who)
        if len(accesses.wavefronts) == 1:
            return None
        found = cells.get(record, span)
        assert found is not None
        differs = found != who
        if not differs.any():
            return None
        by, which = np.broadcast_to(accesses.by, found.shape)[differs], span.every[differs]
        both = self._order.together(found[differs], by, accesses.is_lds)
        for widest in (_WORKGROUP, _ANYONE):  # the widest last, that it stays
            wide = both >= widest
            if wide.any():
                cells.put(record, Span(which[wide], 1), both[wide])
        return _Recorded(differs, found)

    def _race(self, then: str, accesses: Accesses, recorded: _Recorded, wrong: Array, amiss: str = "") -> Race:
        """The race of the accesses of which a cell is wrong. amiss: why, if it is that something is not waited for."""
        accused = np.asarray(wrong.any(0))
        index = int(np.argmax(accused))
        cell = int(np.argmax(wrong[:, index]))
        who, time = int(recorded.who[cell, index]) & ~int(_ATOMIC), int(recorded.times[cell, index])
        own, because, unwaited = int(accesses.by[index]), amiss or "nothing orders them", bool(amiss)
        if not amiss and who < _WORKGROUP and self._order.workgroup(who) == self._order.workgroup(own):
            unwaited = accesses.is_lds and self._order.passed_barrier(who, time)
            because = "no barrier is between"
            if unwaited:
                because = "that is not waited for before the barrier between"
        return Race(accused, f"{then} by {self._words(who)} with {self._describe(time)}; {because}", unwaited)

    def _words(self, who: int) -> str:
        if who >= _ANYONE:
            return "wavefronts of several workgroups"
        if who >= _WORKGROUP:
            return f"several wavefronts of the workgroup of {self._name(self._order.number(who & int(_NUMBER), 0))}"
        return self._name(who)


def _by_cell(differs: Array, span: Span) -> Array:
    """Whether any byte of each cell does: bool [cells of an access, accesses] of bool [accesses, bytes]."""
    return np.asarray(differs.reshape(len(differs), span.count, -1).any(2).T)


def _unequal(accesses: Accesses) -> Array:
    """Whether other accesses store another value to the same byte: bool [accesses, bytes]."""
    values = accesses.stored
    where = accesses.offsets[:, None] + np.arange(accesses.nbytes)
    _, place = np.unique(where, return_inverse=True)
    place = place.reshape(where.shape)
    least, most = np.full(place.max() + 1, 255, np.uint8), np.zeros(place.max() + 1, np.uint8)
    np.minimum.at(least, place, values)
    np.maximum.at(most, place, values)
    return np.asarray((least != most)[place])
