"""Processes of this machine, as /proc lists them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the processes that a process started."""
    return _by_parent().get(pid, [])


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that these started."""
    by_parent = _by_parent()
    found = level = by_parent.get(pid, [])
    while level:
        level = [below for child in level for below in by_parent.get(child, [])]
        found = [*found, *level]
    return found


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def gone(pid: int) -> bool:
    """Tell whether a process has ended, whether or not its parent has waited for it."""
    return _status(pid)[0] in "ZX"


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Kill a process, and all that it started."""
    for each in [pid, *descendants(pid)]:
        kill(each)


def _by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        found.setdefault(int(_status(pid)[1]), []).append(pid)
    return found


def _status(pid: int) -> tuple[str, str]:
    """Return (state, parent) of a process."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it may end at any moment
        return "X", "0"
    return state, parent
