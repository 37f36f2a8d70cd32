"""Switch the current device of a thread (HIP's device index, CUDA's context) and restore it afterwards."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec


class Selector(msgspec.Struct, frozen=True):
    """The functions that make a device current in the calling thread. Foreign functions return a status."""

    kind: type[Any]
    """ctypes type of a device index or context."""
    get: Callable[[Any], int]
    """Foreign function that stores the current index or context."""
    set: Callable[[Any], int]
    wanted: Any
    """The device's index or context, a value of `kind`."""
    is_only: bool = False
    """There is no other device, so it may stay current in a thread that had none."""

    def enter(self) -> tuple[int, Any]:
        """Make the device current. Return (status, previous index or context; None if nothing was changed)."""
        found = self.kind()
        status = self.get(ctypes.byref(found))
        if status or found.value == self.wanted.value:
            return status, None
        status = self.set(self.wanted)
        return status, None if status or (self.is_only and found.value is None) else found

    def leave(self, before: Any) -> None:
        """Restore the index or context that `enter` returned."""
        if before is not None:
            self.set(before)


class Current:
    """A context manager, for use once, in which a device is current. `error` makes the exception for a status."""

    __slots__ = ("_before", "_error", "_selector")

    def __init__(self, selector: Selector, error: Callable[[int], Exception]):
        self._selector, self._error = selector, error

    def __enter__(self) -> None:
        status, self._before = self._selector.enter()
        if status:
            raise self._error(status)

    def __exit__(self, *_: object) -> None:
        self._selector.leave(self._before)


def checked_call(call: Callable[[], int], there: Callable[[], int], selector: Selector) -> Callable[[], int]:
    """Wrap a launch: use `there` if another device is current. The lookup reuses the same buffer."""
    found, wanted = selector.kind(), selector.wanted.value
    look = partial(selector.get, ctypes.byref(found))
    return lambda: there() if look() or found.value != wanted else call()


def call_there(call: Callable[[], int], selector: Selector) -> int:
    """Make a call with the selector's device current. Return its status, or that of making the device current."""
    status, before = selector.enter()
    if status:
        return status
    try:
        return call()
    finally:
        selector.leave(before)
