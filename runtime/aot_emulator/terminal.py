"""How far a launch is, in a line of a terminal."""

from __future__ import annotations

import time

from aot_runtime.terminal import write_status

_FIRST_S, _EVERY_S = 3.0, 0.5
"""When the line appears, and how often it changes: short launches show nothing."""


class TerminalProgress:
    """Called with the workgroups that are done and all of a launch; shows them on stderr where that is a terminal.

    kernel: the launch's.
    """

    def __init__(self, kernel: str):
        self._kernel, self._begin = kernel, time.monotonic()
        self._next = self._begin + _FIRST_S
        self._width = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now < self._next:
            return
        if done == total:
            self._show("")
            return
        self._next = now + _EVERY_S
        left = (now - self._begin) * (total - done) / done
        self._show(f"emulating {self._kernel}: {done} of {total} workgroups, {left:.0f} s left")

    def _show(self, text: str) -> None:
        if self._width or text:
            write_status(text)
        self._width = len(text)
