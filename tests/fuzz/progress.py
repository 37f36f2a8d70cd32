"""How far a long run is: a line now and then, with the rate and the time that is left."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

EVERY_S = 10.0


@dataclass
class Progress:
    """Lines on stderr: one every `EVERY_S` seconds."""

    what: str
    total: int
    minutes: float | None = None
    started: float = field(default_factory=time.monotonic)
    shown: float = field(default_factory=time.monotonic)

    def at(self, done: int, failures: int) -> bool:
        """Tell how far it is; whether the time is over."""
        now = time.monotonic()
        if now - self.shown >= EVERY_S:
            self.shown = now
            rate = done / (now - self.started)
            left = (self.total - done) / rate if rate else 0.0
            text = (
                f"{self.what}: {done:,} of {self.total:,}, {rate:,.1f}/s, {left / 60:.1f} min left, {failures} failed"
            )
            print(text, file=sys.stderr, flush=True)
        return self.minutes is not None and now - self.started > 60 * self.minutes

    def summary(self, done: int) -> str:
        seconds = time.monotonic() - self.started
        return f"{done:,} {self.what} in {seconds:,.0f} s, {done / seconds:,.1f}/s"
