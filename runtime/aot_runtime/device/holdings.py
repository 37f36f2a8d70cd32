"""Things that the driver made for objects of this library, and how they are given back once the objects are gone.

A finaliser runs wherever an object dies: in any thread, in the middle of anything, and an interrupt (Ctrl-C) may end it
before its first line. So none gives anything back. Each thing of the driver's has a `Holding`: a weak reference to the
object that owns it, which is there before the thing is made. When the owner dies, C code that no interrupt enters puts
the holding into a queue, and `Holdings.settle` gives back what is in it: one thing at a time, in one thread at a time.

An interrupt comes after a call, at the start of a function or in a loop of Python code. So a call of the driver leaves
its outcome where the holding finds it (`made`, `gone`) in the call of C itself, and lines that belong together make no
call. Whatever was interrupted was therefore done or was not, and is gone on with.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import ref

from aot_runtime.errors import DeviceError
from aot_runtime.logs import log

from .drivers.base import handle_of

_H = TypeVar("_H", bound="Holding")


class Capture(Protocol):
    """A capture in progress."""

    is_over: bool
    """Tell whether nothing is left of it but to end it."""

    def end(self) -> None:
        """End it; once more where that was interrupted."""

    def workspace(self, nbytes: int) -> int:
        """The address of new memory, which lives as long as what is captured."""

    def need(self, thing: Any) -> None:
        """Keep something as long as what is captured."""


class Holding(ref[Any]):
    """A thing of the driver's, and a weak reference to the object that owns it.

    Attributes:
        made: what the driver's call that makes it leaves there: see `Driver`.
        gone: what the call that gives it back leaves there.
        destroy: that call, given the device, the handle and `gone`.
        trigger: has the queue looked at when the owner dies.
    """

    __slots__ = ("destroy", "device", "gone", "made", "trigger")
    made: list[Any]
    gone: list[Any]
    device: int
    destroy: Callable[[int, int, list[Any]], None]
    trigger: ref[Any] | None

    def give_back(self) -> None:
        """Give the thing back, if it was made. Called again where it was interrupted."""
        handle = handle_of(self.made)
        if handle and not self.gone:
            self.destroy(self.device, handle, self.gone)


class Holdings:
    """The things that the driver made for the objects of one device. Used from any thread, and from finalisers.

    Attributes:
        lock: held while things are given back. Whoever makes something of a thing that may be given back meanwhile
            holds it, too.
        captures: those in progress, by their stream. Meanwhile nothing is given back, as that would break them.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.lock = threading.RLock()
        self.captures: dict[int, Capture] = {}
        self.dropped: deque[Holding] = deque()
        """Holdings whose owners are gone, in this order."""
        self._held: dict[int, Holding] = {}
        """Holdings that are there, by their own id."""
        self._is_settling = False

    def hold(self, kind: type[_H], owner: object) -> _H:
        """A new holding for an owner, to be completed by `add`."""
        trigger = ref(owner, self._settle_for)  # before the other: what was made last is called first
        holding = kind(owner, self.dropped.append)
        holding.trigger, holding.device = trigger, self.device
        return holding

    def add(self, holding: Holding) -> list[Any]:
        """Take a holding that has all of its facts; the thing itself is made next. Returns its `made`."""
        made: list[Any] = []
        holding.gone, holding.made = [], made
        self._held[id(holding)] = holding
        return made

    def hold_handle(self, owner: object, destroy: Callable[[int, int, list[Any]], None]) -> list[Any]:
        """Hold what one call gives back; returns the holding's `made`."""
        holding = self.hold(Holding, owner)
        holding.destroy = destroy
        return self.add(holding)

    def settle(self) -> None:
        """Give back what nobody owns any more. Nothing happens during a capture, and where another thread is at it: it
        looks again when it is done."""
        self._end_captures()
        while self.dropped and not self._is_settling and not self.captures:
            with self.lock:
                if self._is_settling:
                    return
                self._is_settling = True
                try:
                    while self.dropped:
                        self._settle_one(self.dropped[0])
                finally:
                    self._is_settling = False

    def _settle_one(self, holding: Holding) -> None:
        try:
            if hasattr(holding, "made"):  # else it was interrupted before anything was made
                holding.give_back()
        except DeviceError as error:  # the driver keeps it: a stream of another library is gone, or the device is lost
            log("not given back: %s", error)
        self._held.pop(id(holding), None)
        del self.dropped[0]  # last, and by no call

    def _settle_for(self, _: object, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.settle()

    def _end_captures(self) -> None:
        for capture in list(self.captures.values()) if self.captures else ():
            if capture.is_over:
                capture.end()
