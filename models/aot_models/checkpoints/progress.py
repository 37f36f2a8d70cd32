"""A progress bar for reading a checkpoint, shown on terminals only."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 30
EVERY = 0.1
"""Seconds between two updates."""


class Progress:
    """A bar on a stream that is a terminal; otherwise nothing is written."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream if stream is not None and stream.isatty() else None
        self._done, self._shown = 0, 0.0

    def add(self, nbytes: int, total: int) -> None:
        """Note that `nbytes` of `total` bytes more were read."""
        self._done = min(self._done + nbytes, total)
        now = time.monotonic()
        if self._stream is None or not total or (now - self._shown < EVERY and self._done < total):
            return
        self._shown = now
        filled = WIDTH * self._done // total
        bar = "#" * filled + "." * (WIDTH - filled)
        end = "\n" if self._done == total else ""
        self._stream.write(f"\rweights [{bar}] {self._done / 1e9:.2f} of {total / 1e9:.2f} GB{end}")
        self._stream.flush()


SILENT = Progress()


def on_terminal() -> Progress:
    """A bar on standard error."""
    return Progress(sys.stderr)
