"""Who has reached each byte since the last barrier: finds accesses that nothing orders.

Two accesses of a byte, one of them a store, race if they are of different wavefronts, and these are of different
workgroups or have passed no barrier in between. Atomics are not looked at, and whatever happened before an atomic on
global memory is taken to be ordered with all that follows, since locks and flags are made of them. So what is reported
is a race, but not every race is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .memory import Array, gather, scatter

# An agent is a wavefront at a time: 18 bits of its workgroup's number, 8 of the barriers passed plus 1, 6 of its own
# number in the workgroup plus 1. The difference of two, as an exclusive or, then tells how they are related.
_WAVES, _PHASES = 6, 8
_SAME_PHASE, _SAME_WORKGROUP = 1 << _WAVES, 1 << _WAVES + _PHASES
_SEVERAL = _SAME_PHASE - 1
"""Number of a wavefront that stands for several of one workgroup and phase."""
_UNTOLD = _SEVERAL - 1
"""The number of all wavefronts once a workgroup has passed so many barriers that they cannot be told apart."""
_ANYONE = np.uint32(0xFFFFFFFF)
"""Agent that stands for several workgroups."""


def agents(workgroups: Array, phases: Array, waves: Array) -> Array:
    """uint32 [n] of workgroups' numbers, barriers that they have passed, and numbers of wavefronts in them."""
    told = phases + 1 < (1 << _PHASES) - 1
    number = np.where(told, waves + 1, _UNTOLD)
    phase = np.where(told, phases + 1, (1 << _PHASES) - 1)
    return (workgroups << _WAVES + _PHASES | phase << _WAVES | number).astype(np.uint32)


@dataclass(frozen=True, eq=False)
class Race:
    """Accesses, bool [n], that race with an earlier one, or, `at_once`, with others of the same instruction.

    `stored`: the others are stores. Whether they store the same bytes, which does no harm, is for the caller to see.
    """

    wrong: Array
    stored: bool
    at_once: bool = False


class History:
    """The latest accesses of each byte of an array, at first of each dword: smaller ones refine it.

    Loads are noted only when a store makes them matter: most memory that a kernel loads from it never stores to.

    Args:
        size: bytes.
    """

    def __init__(self, size: int):
        self._granule = 4
        self._writers: Array = np.zeros(-(-size // 16) * 4, np.uint32)
        self._readers: Array | None = None
        self._loads: list[tuple[Array, int, Array]] = []
        self._pending = 0
        self._stored = False

    def load(self, offsets: Array, nbytes: int, by: Array) -> list[Race]:
        """Note loads at offsets [n] by agents [n]; those that race with earlier stores."""
        if self._readers is not None:
            self._note_load(offsets, nbytes, by)
        else:
            self._loads.append((offsets.astype(np.uint32), nbytes, by))
            self._pending += offsets.size
            if self._pending > _MOST_PENDING:
                self._note_pending()
        return self._check(True, offsets, nbytes, by) if self._stored else []

    def store(self, offsets: Array, nbytes: int, by: Array) -> list[Race]:
        """Note stores at offsets [n] by agents [n]; those that race with earlier accesses, and with one another."""
        self._note_pending()
        found = self._check(False, offsets, nbytes, by)
        if self._stored:
            found += self._check(True, offsets, nbytes, by)
        self._stored = True
        self._put(True, offsets, nbytes, by)
        return found + self._check(True, offsets, nbytes, by, at_once=True)

    def _note_pending(self) -> None:
        if self._readers is None:
            self._readers = np.zeros_like(self._writers)
        for offsets, nbytes, by in self._loads:
            self._note_load(offsets.astype(np.int64), nbytes, by)
        self._loads, self._pending = [], 0

    def _note_load(self, offsets: Array, nbytes: int, by: Array) -> None:
        self._put(False, offsets, nbytes, _joined(self._get(False, offsets, nbytes), by))
        # Of loads by several wavefronts at once the last one is there now: the others count, too.
        there = self._get(False, offsets, nbytes)
        joined = _joined(there, by)
        if not np.array_equal(there, joined):
            changed = (there != joined).any(0)
            self._put(False, offsets[changed], nbytes, joined[:, changed])

    def _check(self, writers: bool, offsets: Array, nbytes: int, by: Array, at_once: bool = False) -> list[Race]:
        before = self._get(writers, offsets, nbytes)
        difference = before ^ by
        wrong = difference - np.uint32(1) < _SAME_PHASE - 1
        if int(difference.max()) >= _SAME_WORKGROUP:
            wrong |= (difference >= _SAME_WORKGROUP) & (before != 0)
        return [Race(np.asarray(wrong.any(0)), writers, at_once)] if wrong.any() else []

    # The agents of accesses, uint32 [granules of an access, n]

    def _noted(self, writers: bool, offsets: Array, nbytes: int) -> Array:
        self._refine(int(np.bitwise_or.reduce(offsets)) | nbytes)
        noted = self._writers if writers else self._readers
        assert noted is not None
        return noted.view(np.uint8)

    def _get(self, writers: bool, offsets: Array, nbytes: int) -> Array:
        noted = self._noted(writers, offsets, nbytes)
        places = offsets // self._granule * 4
        return np.concatenate([gather(noted, places + at, width) for at, width in _pieces(nbytes // self._granule)])

    def _put(self, writers: bool, offsets: Array, nbytes: int, who: Array) -> None:
        noted = self._noted(writers, offsets, nbytes)
        places, count = offsets // self._granule * 4, nbytes // self._granule
        who = np.broadcast_to(who, (count, offsets.size))
        for at, width in _pieces(count):
            scatter(noted, places + at, width, who[at // 4 : (at + width) // 4])

    def _refine(self, bits: int) -> None:
        """Make granules small enough for accesses whose offsets and size have these bits."""
        finer = min(bits & -bits, self._granule)
        if finer < self._granule:
            self._writers = np.repeat(self._writers, self._granule // finer)
            if self._readers is not None:
                self._readers = np.repeat(self._readers, self._granule // finer)
            self._granule = finer


_MOST_PENDING = 1 << 26
"""Loads that are kept before they are noted after all."""


def _joined(before: Array, by: Array) -> Array:
    """Who has loaded, once `by` have: themselves, or what stands for several."""
    difference = before ^ by
    joined = (difference - np.uint32(1) < _SAME_PHASE - 1).astype(np.uint32)
    joined *= np.uint32(_SEVERAL)
    joined |= by
    if int(difference.max()) >= _SAME_WORKGROUP:
        joined[(difference >= _SAME_WORKGROUP) & (before != 0)] = _ANYONE
    return joined


def _pieces(count: int) -> list[tuple[int, int]]:
    """`count` agents as (byte offset, bytes) that are moved at once."""
    return [(4 * at, 4 * min(4, count - at)) for at in range(0, count, 4)]
