"""Processes of this machine, as /proc lists them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that these started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        parents.setdefault(int(_status(int(path.name))[1]), []).append(int(path.name))
    found: list[int] = []
    level = parents.get(pid, [])
    while level:
        found += level
        level = [below for child in level for below in parents.get(child, [])]
    return found


def gone(pid: int) -> bool:
    """A process has ended, whether or not its parent has waited for it."""
    return _status(pid)[0] in "ZX"


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Kill a process, and all that it started."""
    for each in [pid, *descendants(pid)]:
        kill(each)


def _status(pid: int) -> tuple[str, str]:
    """(state, parent) of a process."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it may end at any moment
        return "X", "0"
    return state, parent
