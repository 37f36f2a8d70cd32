"""Data race detection: two wavefronts access the same bytes, at least one writes, and nothing orders the accesses.

An access by wavefront A is ordered before a later access by wavefront B if one of these holds:

- A and B are the same wavefront.
- A and B belong to one workgroup and have passed a barrier in between. For LDS, A must have waited for its access
  before the barrier, whether that is an LDS operation or a load from memory to LDS.
- A has since released and B has acquired, as with locks and flags. Atomic instructions and stores release (A's access
  itself may be one); atomic instructions and loads acquire. Between workgroups, any of their wavefronts may do so, as
  barriers order it with the others. Location and order of the two atomics are ignored: races may be missed, but none is
  reported in error.

Atomic accesses are the atomic instructions, and loads and stores that bypass the caches of the compute unit. Atomic
writes race with ordinary writes, but not with each other or with reads: a load that polls a flag, or reads the initial
value for a compare-and-swap, returns either value. Writes of equal values to the same bytes do not race, as Triton's
replicated layouts depend on that. Lanes of one instruction of one wavefront do not race either.

Time is the number of the access in the launch, starting at 1. Readers and writers are recorded as wavefront numbers;
when several wavefronts share a cell, as a workgroup number, or as anyone.
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
    """Happens-before relation between the wavefronts of a launch.

    Args:
        workgroups: workgroups in the launch.
        wavefronts: wavefronts per workgroup.
    """

    def __init__(self, workgroups: int, wavefronts: int):
        self._shift = (wavefronts - 1).bit_length()
        numbers = workgroups << self._shift
        # Accesses before these times precede a barrier; rows: global memory, LDS, loads to LDS; by wavefront and by
        # workgroup.
        self._fences = np.ones((3, numbers), np.uint32)
        self._workgroup_fences = np.ones((3, workgroups), np.uint32)
        # True for times of loads to LDS; the last entry is False and stands for all later times.
        self._loads: Array = np.zeros(1, bool)
        # Times of the latest atomics: by wavefront, by workgroup.
        self._released = np.zeros(numbers, np.uint32), np.zeros(workgroups, np.uint32)
        self._acquired = np.zeros(numbers, np.uint32), np.zeros(workgroups, np.uint32)
        self._any_acquired = False

    def number(self, workgroup: Any, wavefront: Any) -> Any:
        """Return the number of a wavefront in the launch."""
        return workgroup << self._shift | wavefront

    def workgroup(self, number: Any) -> Any:
        return number >> self._shift

    def wavefront(self, number: int) -> int:
        return number & (1 << self._shift) - 1

    def barrier(self, wavefronts: Array, time: int, lds_time: int, load_time: int) -> None:
        """Record that wavefronts pass a barrier at `time`.

        They have waited for LDS accesses made before `lds_time`, and for loads to LDS made before `load_time`.
        """
        workgroups = self.workgroup(wavefronts)
        self._workgroup_fences[:, workgroups] = time  # upper bound; unused wavefront numbers do not lower it
        for space, before in enumerate((time, lds_time, load_time)):
            self._fences[space, wavefronts] = before
            np.minimum.at(self._workgroup_fences[space], workgroups, np.uint32(before))

    def load_to_lds(self, time: int) -> None:
        """Record that the access at `time` is a load to LDS."""
        if time >= len(self._loads) - 1:
            self._loads = np.concatenate([self._loads, np.zeros(time + 1, bool)])
        self._loads[time] = True

    def release(self, wavefronts: Array, time: int) -> None:
        """Record atomic writes by wavefronts."""
        self._released[0][wavefronts] = self._released[1][self.workgroup(wavefronts)] = time

    def acquire(self, wavefronts: Array, time: int) -> None:
        """Record atomic reads by wavefronts."""
        self._acquired[0][wavefronts] = self._acquired[1][self.workgroup(wavefronts)] = time
        self._any_acquired = True

    def settled(self, wavefronts: Array, is_lds: bool) -> int:
        """Return a time before which every access is ordered before the next accesses of these wavefronts."""
        return int(self._workgroup_fences[1:, self.workgroup(wavefronts)].min()) if is_lds else 1

    def passed_barrier(self, who: int, time: int) -> bool:
        """Return True if wavefront `who` has passed a barrier since `time`."""
        return bool(time < self._fences[0, who])

    def all_unordered(self, who: Array) -> bool:
        """Return True if it is certain that no access recorded as `who` is ordered before another one."""
        return not self._any_acquired and bool((who == _ANYONE).all())

    def precedes(self, who: Array, times: Array, wavefronts: Array, is_lds: bool) -> Array:
        """Return a mask of the recorded accesses that are ordered before the current accesses of `wavefronts`.

        All arrays have the same shape.
        """
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
            close = within & single  # within a workgroup, only the atomics of the two wavefronts count
            theirs = np.where(close, self._released[0][wavefront], self._released[1][workgroup])
            mine = np.where(close, self._acquired[0][wavefronts], self._acquired[1][own])
            ordered |= (anyone | (theirs >= times)) & (mine >= times)
        return ordered

    def together(self, who: Array, wavefronts: Array, is_lds: bool) -> Array:
        """Return records that stand for both `who` and `wavefronts`."""
        own = self.workgroup(wavefronts)
        if is_lds:  # accessed by one workgroup only
            return np.where(who == wavefronts, who, own | _WORKGROUP)
        workgroup = np.where(who & _WORKGROUP, who & _NUMBER, self.workgroup(who & _NUMBER))
        shared = np.where((who < _ANYONE) & (workgroup == own), own | _WORKGROUP, _ANYONE)
        return np.where(who == wavefronts, who, shared)


@dataclass(frozen=True, eq=False)
class Accesses:
    """The accesses of one instruction to one array.

    Attributes:
        data: the array, uint8.
        offsets: int64 [n], byte offsets into `data`.
        nbytes: bytes per access.
        by: uint32 [n], wavefront number of each access.
        wavefronts: uint32 [any], a superset of the numbers in `by`.
        values: the values of stores, in the layout of `gather`.
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
        """Bitwise OR of all offsets and the size."""
        return int(np.bitwise_or.reduce(self.offsets)) | self.nbytes

    @property
    def stored(self) -> Array:
        """The stored bytes, uint8 [n, nbytes]."""
        assert self.values is not None
        return self._as_bytes(self.values)

    @property
    def there(self) -> Array:
        """The bytes before the store, uint8 [n, nbytes]."""
        return self._as_bytes(gather(self.data, self.offsets, self.nbytes))

    def _as_bytes(self, values: Array) -> Array:
        if values.dtype == np.uint32:
            values = np.moveaxis(values.reshape(len(values), len(self.offsets)), 0, -1)
        return np.ascontiguousarray(values).reshape(len(self.offsets), -1).view(np.uint8)


@dataclass(frozen=True, eq=False)
class Race:
    """A race of an instruction's accesses with earlier ones.

    Attributes:
        wrong: bool [accesses], the racing accesses.
        text: description of the earlier access and the cause, for the first racing access.
        unwaited: the earlier access was not waited for before the barrier in between.
    """

    wrong: Array
    text: str
    unwaited: bool


@dataclass(frozen=True, eq=False)
class _Recorded:
    """Recorded times and accessors, uint32 [cells of an access, accesses] each."""

    times: Array
    who: Array


class Races:
    """Race detector for LDS and global memory.

    Args:
        describe: returns a description of the instruction that made the access at a time.
        name: returns a description of a wavefront.
    """

    def __init__(self, order: HappensBefore, describe: Callable[[int], str], name: Callable[[int], str]):
        self._order, self._describe, self._name = order, describe, name

    def unwaited(self, cells: Cells, accesses: Accesses, loads: frozenset[int]) -> Race | None:
        """Check for accesses to LDS that a wavefront's own loads to LDS will write, before it has waited for them.

        loads: times of the outstanding loads.
        """
        span = cells.span(accesses.offsets, accesses.nbytes, accesses.low_bits)
        writers = self._recorded(cells, "write_time", "writer", span, accesses)
        if writers is None:
            return None
        wrong = np.isin(writers.times, np.fromiter(loads, np.uint32)) & (writers.who == accesses.by)
        return self._race("stored", accesses, writers, wrong, "that is not waited for") if wrong.any() else None

    def _unordered_store(self, cells: Cells, span: Span, accesses: Accesses) -> Race | None:
        """Return the race with an unordered store of another wavefront, if any. Atomic stores do not count."""
        writers = self._recorded(cells, "write_time", "writer", span, accesses)
        if writers is None:
            return None
        unordered = ~self._precede(writers, accesses) & ((writers.who & _ATOMIC) == 0)
        return self._race("stored", accesses, writers, unordered) if unordered.any() else None

    def load(self, cells: Cells, accesses: Accesses, time: int) -> Race | None:
        """Check and record loads."""
        span = cells.span(accesses.offsets, accesses.nbytes, accesses.low_bits)
        if race := self._unordered_store(cells, span, accesses):
            return race
        readers = self._recorded(cells, "read_time", "reader", span, accesses)
        cells.put("read_time", span, time)
        now = accesses.by
        if readers is not None:  # readers accumulate until a write; those ordered before the new one are dropped
            if self._order.all_unordered(readers.who):
                return None
            together = self._order.together(readers.who, np.broadcast_to(now, span.shape), accesses.is_lds)
            now = np.where(self._precede(readers, accesses), now, together)
            if (now == readers.who).all():
                return None
        self._record(cells, "reader", span, accesses, now)
        return None

    def store(self, cells: Cells, accesses: Accesses, time: int) -> Race | None:
        """Check and record stores."""
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
            if unordered.any():  # equal values are no race, unless the other write was atomic
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
        """Check and record atomic writes."""
        span = cells.span(accesses.offsets, accesses.nbytes, accesses.low_bits)
        if race := self._unordered_store(cells, span, accesses):
            return race
        cells.put("write_time", span, time)
        cells.put("writer", span, accesses.by | _ATOMIC)
        return None

    def _recorded(self, cells: Cells, times: Record, names: Record, span: Span, accesses: Accesses) -> _Recorded | None:
        """Return the records of the cells, or None if all are known to precede the current accesses."""
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
        """Record accesses, merging the records of accesses to the same cell.

        Returns the record found in each cell after writing, or None if no cell is shared.
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
        for widest in (_WORKGROUP, _ANYONE):  # the widest last: it overwrites the others
            wide = both >= widest
            if wide.any():
                cells.put(record, Span(which[wide], 1), both[wide])
        return _Recorded(differs, found)

    def _race(self, then: str, accesses: Accesses, recorded: _Recorded, wrong: Array, amiss: str = "") -> Race:
        """Build the race of the accesses that have a wrong cell. amiss: the cause, if it is a missing wait."""
        accused = np.asarray(wrong.any(0))
        index = int(np.argmax(accused))
        cell = int(np.argmax(wrong[:, index]))
        who, time = int(recorded.who[cell, index]) & ~int(_ATOMIC), int(recorded.times[cell, index])
        own, because, unwaited = int(accesses.by[index]), amiss or "nothing orders them", bool(amiss)
        if not amiss and who < _WORKGROUP and self._order.workgroup(who) == self._order.workgroup(own):
            unwaited = accesses.is_lds and self._order.passed_barrier(who, time)
            because = "no barrier in between"
            if unwaited:
                because = "that is not waited for before the barrier in between"
        return Race(accused, f"{then} by {self._words(who)} with {self._describe(time)}; {because}", unwaited)

    def _words(self, who: int) -> str:
        if who >= _ANYONE:
            return "wavefronts of several workgroups"
        if who >= _WORKGROUP:
            return f"several wavefronts of the workgroup of {self._name(self._order.number(who & int(_NUMBER), 0))}"
        return self._name(who)


def _by_cell(differs: Array, span: Span) -> Array:
    """Reduce a mask of bytes, bool [accesses, bytes], to cells, bool [cells of an access, accesses]."""
    return np.asarray(differs.reshape(len(differs), span.count, -1).any(2).T)


def _unequal(accesses: Accesses) -> Array:
    """Return a mask of bytes to which the accesses store different values, bool [accesses, bytes]."""
    values = accesses.stored
    where = accesses.offsets[:, None] + np.arange(accesses.nbytes)
    _, place = np.unique(where, return_inverse=True)
    place = place.reshape(where.shape)
    least, most = np.full(place.max() + 1, 255, np.uint8), np.zeros(place.max() + 1, np.uint8)
    np.minimum.at(least, place, values)
    np.maximum.at(most, place, values)
    return np.asarray((least != most)[place])
