"""Ownership of driver resources: release them after their owners are gone, safely under interrupts.

Finalisers are not safe places to release resources: they run in any thread, at any point, and an interrupt (Ctrl-C) may
end them before their first line. Instead, each resource has a `Holding`, a weak reference to its owner that is created
before the resource. When the owner dies, C code, which cannot be interrupted, queues the holding. `Holdings.settle`
then releases queued resources, one at a time and in one thread at a time.

Python handles interrupts after calls, on function entry and in loops. So driver calls store their results where the
holding finds them (`made`, `gone`) from within C, and lines that must not be separated make no calls. After an
interrupt, each step was thus either done or not, and can be resumed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from aot_runtime.errors import DeviceError
from aot_runtime.logs import log

from .drivers import handle_of

if TYPE_CHECKING:
    from .protocol import Capture

_H = TypeVar("_H", bound="Holding")


class Holding(ref[Any]):
    """A driver resource: a weak reference to its owner.

    Attributes:
        made: result of the driver call that creates it, stored by the call. See `Driver`.
        gone: result of the driver call that destroys it, stored by the call.
        destroy: function that destroys it, given the device, the handle and `gone`.
        trigger: weak reference that calls `settle` when the owner dies.
    """

    __slots__ = ("destroy", "device", "gone", "made", "trigger")
    made: list[Any]
    gone: list[Any]
    device: int
    destroy: Callable[[int, int, list[Any]], None]
    trigger: ref[Any] | None

    def give_back(self) -> None:
        """Release the resource if it was created. Called again after an interrupt."""
        handle = handle_of(self.made)
        if handle and not self.gone:
            self.destroy(self.device, handle, self.gone)


class Holdings:
    """The driver resources of one device. Safe to use from any thread and from finalisers.

    In a forked process, finalisers release nothing: the resources are the parent's, and HIP and CUDA cannot be called.

    Attributes:
        lock: held while resources are released. Hold it to use a resource that may be released meanwhile.
        captures: captures in progress, by stream. Nothing is released during one, since that would break it.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.lock = threading.RLock()
        self.captures: dict[int, Capture] = {}
        self.dropped: deque[Holding] = deque()
        """Holdings whose owners are gone, in order."""
        self._held: dict[int, Holding] = {}
        """All holdings, by id."""
        self._is_settling = False
        self._process = os.getpid()

    def hold(self, kind: type[_H], owner: object) -> _H:
        """Return a new holding for an owner, to be passed to `add` once its attributes are set."""
        trigger = ref(owner, self._settle_for)  # created first: callbacks run in reverse order
        holding = kind(owner, self.dropped.append)
        holding.trigger, holding.device = trigger, self.device
        return holding

    def add(self, holding: Holding) -> list[Any]:
        """Register a holding before its resource is created. Returns its `made` list."""
        made: list[Any] = []
        holding.gone, holding.made = [], made
        self._held[id(holding)] = holding
        return made

    def hold_handle(self, owner: object, destroy: Callable[[int, int, list[Any]], None]) -> list[Any]:
        """Register a holding for a resource that `destroy` releases. Returns its `made` list."""
        holding = self.hold(Holding, owner)
        holding.destroy = destroy
        return self.add(holding)

    def settle(self) -> None:
        """Release all resources without owners.

        Does nothing during a capture, or if another thread is settling, which then checks the queue again.
        """
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
            if hasattr(holding, "made"):  # else interrupted before the resource was created
                holding.give_back()
        except DeviceError as error:  # leaked: a foreign stream was destroyed, or the device is lost
            log("not given back: %s", error)
        self._held.pop(id(holding), None)
        del self.dropped[0]  # last, and without a call that could be interrupted

    def _settle_for(
        self, _: object, is_finalizing: Callable[[], bool] = sys.is_finalizing, process: Callable[[], int] = os.getpid
    ) -> None:
        if not is_finalizing() and process() == self._process:
            self.settle()

    def _end_captures(self) -> None:
        for capture in list(self.captures.values()) if self.captures else ():
            if capture.is_over:
                capture.end()
