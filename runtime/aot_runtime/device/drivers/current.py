"""The device that is current in a thread: HIP's number, CUDA's context. It is the caller's, so it is put back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import msgspec


class Selector(msgspec.Struct, frozen=True):
    """How one device is made current in the calling thread. Foreign functions return a status."""

    kind: type[Any]
    """The ctypes type of what is current."""
    get: Callable[[Any], int]
    """Fills in what is current."""
    set: Callable[[Any], int]
    wanted: Any
    """What is current where the device is: a value of `kind`."""
    is_only: bool = False
    """Whether there is no other device: a thread that had none current may keep it, since no other is meant."""

    def enter(self) -> tuple[int, Any]:
        """Make the device current: (status, what was current before, None where nothing was changed)."""
        found = self.kind()
        status = self.get(ctypes.byref(found))
        if status or found.value == self.wanted.value:
            return status, None
        status = self.set(self.wanted)
        return status, None if status or (self.is_only and found.value is None) else found

    def leave(self, before: Any) -> None:
        """Put back what `enter` gave."""
        if before is not None:
            self.set(before)


class Current:
    """A context in which a device is current; it is used once. Raises what `error` makes of a status."""

    __slots__ = ("_before", "_error", "_selector")

    def __init__(self, selector: Selector, error: Callable[[int], Exception]):
        self._selector, self._error = selector, error

    def __enter__(self) -> None:
        status, self._before = self._selector.enter()
        if status:
            raise self._error(status)

    def __exit__(self, *_: object) -> None:
        self._selector.leave(self._before)
