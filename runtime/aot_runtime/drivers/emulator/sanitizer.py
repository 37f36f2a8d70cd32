"""Strict mode: finds what no GPU would name. Each fault stops the launch with a `SanitizerError`.

- an access outside of an allocation, past its end, or past the LDS or scratch that the kernel was given;
- an address that is not a multiple of the access's size, or of 4 for larger ones;
- a load from memory, LDS or scratch that nothing was written to;
- a register used before the load or atomic that writes it was waited for, and an access of LDS that is not
  waited for before a barrier (`waits`);
- two wavefronts that reach the same bytes, one of them storing, with nothing that orders them (`races`);
- a barrier that a wavefront of the workgroup does not come to, or comes to elsewhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from aot_runtime.errors import MemoryAccessError, SanitizerError

from .decode import Instruction
from .memory import Allocation, Array, gather, scatter
from .monitor import Monitor, Touch
from .races import History, Race, agents
from .waits import LDS, Outstanding, Use, use_of
from .wavefronts import Wavefronts

if TYPE_CHECKING:
    from .scheduler import Scheduler

_ONES = 0x01010101
"""Of four bytes that were written."""


class Sanitizer(Monitor):
    """Watches one launch."""

    def __init__(self) -> None:
        self._uses: dict[int, Use] = {}
        self._outstanding: WeakKeyDictionary[Wavefronts, Outstanding] = WeakKeyDictionary()
        self._histories: dict[int, tuple[Allocation, History]] = {}

    def begin(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        access = scheduler.access
        self._lds_written = np.zeros(access.lds.size, np.uint8)
        self._scratch_written = np.zeros(access.scratch.size, np.uint8)
        self._lds_history = History(access.lds.size)
        self._phases = np.zeros(scheduler.workgroups, np.int64)

    # Registers that wait for memory

    def instruction(self, waves: Wavefronts, instruction: Instruction) -> None:
        use = self._uses.get(instruction.pc)
        if use is None:
            use = self._uses[instruction.pc] = use_of(instruction)
        state = self._outstanding.get(waves, _NOTHING)
        conflict = state.conflict(use)
        if conflict is not None:
            register, counter, operation = conflict
            if register == LDS:
                text = f"{operation.text} is not waited for before the barrier"
            else:
                text = f"{register[0]}{register[1]} is used before {operation.text} was waited for"
            raise self._error("wait", f"{text} (counter {counter})", waves, 0, None)
        after = state.after(use)
        if after is not state:
            self._outstanding[waves] = after

    def divide(self, waves: Wavefronts, part: Wavefronts) -> None:
        self._outstanding[part] = self._outstanding.get(waves, _NOTHING)

    def join(self, first: Wavefronts, second: Wavefronts, joined: Wavefronts) -> None:
        states = [self._outstanding.get(group, _NOTHING) for group in (first, second)]
        self._outstanding[joined] = states[0].joined(states[1])

    # Barriers

    def barrier(self, groups: list[Wavefronts]) -> None:
        workgroups = np.concatenate([group.workgroup for group in groups])
        places = np.repeat([group.pc for group in groups], [group.count for group in groups])
        arrived = np.bincount(workgroups, minlength=self._scheduler.workgroups)
        lowest = np.full(self._scheduler.workgroups, np.iinfo(np.int64).max)
        highest = np.full(self._scheduler.workgroups, -1)
        np.minimum.at(lowest, workgroups, places)
        np.maximum.at(highest, workgroups, places)
        for group in groups:
            apart = lowest[group.workgroup] != highest[group.workgroup]
            alone = arrived[group.workgroup] != self._scheduler.wavefronts
            if apart.any():
                wave = int(np.flatnonzero(apart)[0])
                other = lowest[group.workgroup[wave]] if lowest[group.workgroup[wave]] != group.pc else highest.max()
                text = f"this wavefront waits at the barrier before pc {group.pc:#x}, another at that before {other:#x}"
                raise self._error("barrier", text, group, wave, None)
            if alone.any():
                wave = int(np.flatnonzero(alone)[0])
                ended = self._scheduler.wavefronts - int(arrived[group.workgroup[wave]])
                text = f"{ended} of the workgroup's wavefronts have ended and never come to the barrier"
                raise self._error("barrier", text, group, wave, None)
        self._phases[np.unique(workgroups)] += 1

    # Memory

    def access(self, waves: Wavefronts, touch: Touch) -> None:
        reached = _Reached(waves, touch)
        addresses = reached.addresses
        if not addresses.size:
            return
        self._check_alignment(reached)
        if touch.space in ("global", "scalar"):
            self._check_memory(reached)
        elif touch.space == "lds":
            base = (waves.workgroup * self._scheduler.access.lds_stride)[reached.waves]
            self._check_array(
                reached, base, self._scheduler.access.lds_bytes, self._lds_written, "LDS of the workgroup"
            )
            self._check_races(self._lds_history, reached, addresses + base, self._scheduler.access.lds, "LDS")
        else:
            places = waves.slot[reached.waves] * waves.lanes + reached.lanes
            base = places * self._scheduler.access.scratch_stride
            self._check_array(reached, base, self._scheduler.access.scratch_bytes, self._scratch_written, "scratch")

    def _check_alignment(self, reached: _Reached) -> None:
        unit = min(reached.nbytes & -reached.nbytes, 4)
        wrong = (reached.addresses & reached.addresses.dtype.type(unit - 1)) != 0
        if wrong.any():
            text = f"{reached.nbytes} bytes at an address that is no multiple of {unit}"
            raise self._fault("alignment", text, reached, wrong)

    def _check_memory(self, reached: _Reached) -> None:
        memory = self._scheduler.access.memory
        try:
            spans = memory.spans(reached.addresses, reached.nbytes)
        except MemoryAccessError as error:
            wrong = reached.addresses == np.uint64(error.address)
            raise self._fault("bounds", error.message, reached, wrong) from None
        for allocation, mine in spans:
            part = reached if mine is None else reached.only(mine)
            offsets = (part.addresses - np.uint64(allocation.base)).view(np.int64)
            if allocation.written is not None:
                self._check_written(part, allocation.written, offsets, allocation.text)
            if part.touch.space == "global" and part.touch.action == "atomic":
                self._histories.clear()
            else:
                kept = self._histories.get(allocation.base)
                if kept is None:
                    kept = self._histories[allocation.base] = (allocation, History(allocation.data.size))
                self._check_races(kept[1], part, offsets, allocation.data, allocation.text)

    def _check_array(self, reached: _Reached, base: Array, size: int, written: Array, name: str) -> None:
        wrong = (reached.addresses < 0) | (reached.addresses > size - reached.nbytes)
        if wrong.any():
            raise self._fault("bounds", f"{reached.nbytes} bytes outside the {size} bytes of {name}", reached, wrong)
        self._check_written(reached, written, reached.addresses + base, name)

    def _check_written(self, reached: _Reached, written: Array, offsets: Array, name: str) -> None:
        for at in range(0, reached.nbytes, 16):
            places, nbytes = offsets + at, min(16, reached.nbytes - at)
            known = gather(written, places, nbytes)
            ones = known.dtype.type(_ONES & (1 << 8 * known.itemsize) - 1)
            if reached.touch.action != "store" and not (known == ones).all():
                wrong = known != ones
                text = f"{reached.nbytes} bytes of {name} are read, and were never written"
                raise self._fault("uninitialised", text, reached, wrong.any(0) if wrong.ndim > 1 else wrong)
            if reached.touch.action != "load":
                scatter(written, places, nbytes, np.full_like(known, ones))

    def _check_races(self, history: History, reached: _Reached, offsets: Array, data: Array, name: str) -> None:
        action, waves = reached.touch.action, reached.group
        if action == "atomic":
            return
        ranks = waves.slot % self._scheduler.wavefronts
        by = agents(self._scheduler.first + waves.workgroup, self._phases[waves.workgroup], ranks)[reached.waves]
        note = history.load if action == "load" else history.store
        for race in note(offsets, reached.nbytes, by):
            wrong = race.wrong
            if action == "store" and race.stored:
                wrong = wrong & _changes(race, reached, offsets, data)
            if wrong.any():
                before = _PAST["store" if race.stored else "load"]
                text = (
                    f"{reached.nbytes} bytes of {name} are {_PAST[action]}, and were {before} by another wavefront; "
                    "nothing orders them"
                )
                raise self._fault("race", text, reached, wrong)

    def _fault(self, kind: str, text: str, reached: _Reached, wrong: Array) -> SanitizerError:
        """The error of the first access of those that are wrong."""
        first = int(np.flatnonzero(wrong)[0])
        lane = None if reached.touch.space == "scalar" else int(reached.lanes[first])
        error = self._error(kind, text, reached.group, int(reached.waves[first]), lane)
        error.address, error.nbytes = int(reached.addresses[first]), reached.nbytes
        return error

    def _error(self, kind: str, text: str, waves: Wavefronts, wave: int, lane: int | None) -> SanitizerError:
        return SanitizerError(kind, text, self._scheduler.thread(waves, wave, lane))


_NOTHING = Outstanding()
_PAST = {"load": "loaded", "store": "stored"}


def _changes(race: Race, reached: _Reached, offsets: Array, data: Array) -> Array:
    """Which stores write other bytes than those that they race with have written, bool [n]."""
    values = reached.values
    if not race.at_once:
        there = gather(data, offsets, reached.nbytes)
        return (there != values).any(0) if values.ndim > 1 else there != values
    places = np.flatnonzero(race.wrong)
    _, first, same = np.unique(offsets, return_index=True, return_inverse=True)
    differs = values != values[..., first[same]]
    differs = differs.any(0) if values.ndim > 1 else differs
    result = np.zeros(offsets.shape, bool)
    result[places] = np.isin(offsets[places], offsets[differs])
    return result


@lru_cache(maxsize=64)
def _everyone(shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The indices of all elements of an array of a shape."""
    return np.nonzero(np.ones(shape, bool))


class _Reached:
    """The accesses of an instruction's lanes that take part, one after another.

    Attributes:
        addresses: [n].
        waves, lanes: int64 [n], of each: its wavefront in the group, its lane in that.
    """

    def __init__(self, group: Wavefronts, touch: Touch):
        self.group, self.touch, self.nbytes = group, touch, touch.nbytes
        shape = touch.addresses.shape
        found = _everyone(shape) if touch.lanes is None else np.nonzero(touch.lanes)
        self.addresses = touch.addresses.ravel() if touch.lanes is None else touch.addresses[touch.lanes]
        self.waves: Array = found[0]
        self.lanes: Array = found[-1]
        self._mine: Array | slice = slice(None)

    @property
    def values(self) -> Array:
        """What is stored, in the form that `gather` gives for the addresses."""
        assert self.touch.values is not None
        values, lanes = self.touch.values, self.touch.lanes
        chosen = values.reshape(*values.shape[:-2], -1) if lanes is None else values[..., lanes]
        return np.ascontiguousarray(chosen[..., self._mine])

    def only(self, mine: Array) -> _Reached:
        """Some of them."""
        part: Any = object.__new__(_Reached)
        part.group, part.touch, part.nbytes = self.group, self.touch, self.nbytes
        part.addresses, part.waves, part.lanes = self.addresses[mine], self.waves[mine], self.lanes[mine]
        part._mine = mine
        return part
