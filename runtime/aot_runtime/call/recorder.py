"""The active recording of this process, if any, and the ops whose plans it invalidates when it begins or ends."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakSet

RECORD_VARIABLE = "AOTBUILD_RECORD"
"""Environment variable that names the calls file to record to."""

_lock = threading.Lock()
_now: Any = None
_watched: WeakSet[Any] = WeakSet()


def current() -> Any:
    """Return the active `Recording`, or None."""
    return _now


def watch(op: Any) -> None:
    """Register an op, whose method `forget` is to drop its plans whenever a recording begins or ends."""
    with _lock:
        _watched.add(op)


def swap(old: Any, new: Any) -> bool:
    """Replace the recording `old`, or None, by another and drop all plans. Returns False if `old` is not active."""
    global _now
    with _lock:
        if _now is not old:
            return False
        _now = new
        ops = [*_watched]
    for op in ops:
        op.forget()
    return True
