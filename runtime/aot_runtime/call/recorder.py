"""The active recording of this process, if any, and the ops whose plans it invalidates when it begins or ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakSet

from aot_runtime.errors import ArgumentError

RECORD_VARIABLE = "AOTBUILD_RECORD"
"""Environment variable that names the calls file to record to."""


class Recorder(Protocol):
    """A recording.

    Attributes:
        launch: True if calls are also launched.
    """

    launch: bool

    def plan(self, caller: Any, layouts: Mapping[str, Any], scalars: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the decision on a new call and a note that counts it. See `recording.Recording`."""


class Planned(Protocol):
    """An op that caches plans."""

    def forget(self) -> None:
        """Drop all plans."""


_lock = threading.Lock()
_now: Recorder | None = None
_watched: WeakSet[Any] = WeakSet()


def current() -> Recorder | None:
    """Return the active recording, or None."""
    return _now


def watch(op: Planned) -> None:
    """Register an op to drop its plans whenever a recording begins or ends."""
    with _lock:
        _watched.add(op)


def begin(recording: Recorder) -> None:
    """Activate a recording. Raises `ArgumentError` if another one is active."""
    global _now
    with _lock:
        if _now is not None:
            raise ArgumentError(f"{_now} runs already; close it first")
        _now = recording
        ops = [*_watched]
    for op in ops:
        op.forget()


def end(recording: Recorder) -> bool:
    """End a recording. Returns False if it was not active."""
    global _now
    with _lock:
        if _now is not recording:
            return False
        _now = None
        ops = [*_watched]
    for op in ops:
        op.forget()
    return True
