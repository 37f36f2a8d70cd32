"""How much of a checkpoint has been read, on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 30
EVERY = 0.1
"""Seconds between two bars."""


class Progress:
    """A bar on a stream, where that is a terminal; nothing elsewhere."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream if stream is not None and stream.isatty() else None
        self._done, self._shown = 0, 0.0

    def add(self, nbytes: int, total: int) -> None:
        """So many bytes more were read, of so many in all."""
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
    """On standard error."""
    return Progress(sys.stderr)
