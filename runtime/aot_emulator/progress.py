"""Progress of long launches, as a status line on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from aot_emulator.machine.launch_options import Options
from aot_runtime.terminal import write_status

_FIRST_S, _EVERY_S = 3.0, 0.5
"""Delay before the line appears, and interval between its updates."""


@contextmanager
def shown_progress(kernel: str, options: Options) -> Iterator[Options]:
    """Yield `options` extended by a progress line for `kernel`, if stderr is a terminal."""
    if options.progress is not None or not sys.stderr.isatty():
        yield options
        return
    progress = TerminalProgress(kernel)
    try:
        yield replace(options, progress=progress)
    finally:
        progress.erase()


class TerminalProgress:
    """Progress callback that shows completed and total workgroups of a kernel on stderr."""

    def __init__(self, kernel: str):
        self._kernel, self._begin = kernel, time.monotonic()
        self._next = self._begin + _FIRST_S
        self._is_shown = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now < self._next:
            return
        if done == total:
            self.erase()
            return
        self._next = now + _EVERY_S
        left = (now - self._begin) * (total - done) / done
        write_status(f"emulating {self._kernel}: {done} of {total} workgroups, {left:.0f} s left")
        self._is_shown = True

    def erase(self) -> None:
        """Erase the line if it is shown."""
        if self._is_shown:
            write_status("")
        self._is_shown = False
