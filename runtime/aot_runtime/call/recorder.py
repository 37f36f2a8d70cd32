"""The recording that runs in this process, if any, and the ops that have to plan anew when that changes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakSet

from aot_runtime.errors import ArgumentError


class Recorder(Protocol):
    """A recording.

    Attributes:
        launch: whether calls are launched, too.
    """

    launch: bool

    def plan(self, caller: Any, layouts: Mapping[str, Any], scalars: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the decision on a new call and a note that counts it. See `recording.Recording`."""


class Planned(Protocol):
    """An op that keeps plans of its calls."""

    def forget(self) -> None:
        """Drop all plans."""


_lock = threading.Lock()
_now: Recorder | None = None
_watched: WeakSet[Any] = WeakSet()


def current() -> Recorder | None:
    """Return the recording that runs now."""
    return _now


def watch(op: Planned) -> None:
    """Have an op plan every call anew whenever a recording begins or ends."""
    with _lock:
        _watched.add(op)


def begin(recording: Recorder) -> None:
    """Make this the recording that runs. Raises `ArgumentError` if another one runs."""
    global _now
    with _lock:
        if _now is not None:
            raise ArgumentError(f"{_now} runs already; close it first")
        _now = recording
        ops = [*_watched]
    for op in ops:
        op.forget()


def end(recording: Recorder) -> bool:
    """End a recording. Returns False if it was not running."""
    global _now
    with _lock:
        if _now is not recording:
            return False
        _now = None
        ops = [*_watched]
    for op in ops:
        op.forget()
    return True
