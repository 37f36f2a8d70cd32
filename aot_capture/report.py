"""The log of a guarded run: one JSON object a line from any number of processes, and the report made of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Optional

KERNEL, MODULE, AUTOTUNE = "kernel", "C module", "autotune result"
INGREDIENTS = "ingredients"  # of the keys: an event of its own, where they differ from a cache's


@dataclass(frozen=True)
class Event:
    """A look-up in Triton's cache. A miss tells why: `differences` from the nearest captured kernel."""

    hit: bool
    what: str  # KERNEL, MODULE, AUTOTUNE or INGREDIENTS
    name: str
    key: str  # the folder in the cache
    pid: int
    file: Optional[str] = None
    line: Optional[int] = None
    site: Optional[str] = None
    target: Optional[str] = None
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.what == INGREDIENTS:
            return "\n".join(self.differences)
        place = f" ({self.file}:{self.line})" if self.file else ""
        verb = {KERNEL: "would compile", MODULE: "would be compiled by the C compiler", AUTOTUNE: "is measured again"}
        lines = [f"{self.name}{place} {verb[self.what]}{f' for {self.target}' if self.target else ''}"]
        if self.site:
            lines.append(f"  launched at {self.site}")
        return "\n".join(lines + [f"  {difference}" for difference in self.differences])


def log(path: str, event: Event) -> None:
    """Append an event by one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, (json.dumps(vars(event)) + "\n").encode())
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Report:
    """A guarded run: each kernel, C module and autotune result once, over all processes."""

    events: list[Event]
    processes: int

    def of(self, what: str, hit: bool) -> list[Event]:
        """Return the hits or the misses of one sort."""
        return [event for event in self.events if event.what == what and event.hit == hit]

    @property
    def misses(self) -> list[Event]:
        """The look-ups that would compile. An autotuner that measures again compiles nothing by that alone."""
        return self.of(KERNEL, False) + self.of(MODULE, False)

    def as_json(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {
            "processes": self.processes,
            "hits": {what: len(self.of(what, True)) for what in (KERNEL, MODULE, AUTOTUNE)},
            "misses": [_miss(event) for event in self.misses],
            "ingredients": [line.strip() for event in self.of(INGREDIENTS, False) for line in event.differences],
            "measured": [_miss(event) for event in self.of(AUTOTUNE, False)],
        }


def _miss(event: Event) -> dict[str, Any]:
    return {name: value for name, value in vars(event).items() if name not in ("hit", "pid")}


def read_report(path: str) -> Report:
    """Read a log. What one process compiled and another found is a miss. Half a line of a killed process is skipped."""
    found: dict[tuple[str, str, bool], Event] = {}
    pids = set()
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        try:
            event = Event(**json.loads(line))
        except (ValueError, TypeError):
            continue
        pids.add(event.pid)
        found.setdefault((event.what, event.key, event.hit), event)
    events = [event for (what, key, hit), event in found.items() if not hit or (what, key, False) not in found]
    return Report(events, len(pids))
