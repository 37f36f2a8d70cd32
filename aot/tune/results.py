"""The file of times of a run: a line is added as soon as a trial is timed, and a run that was ended goes on from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot_runtime.errors import AotError


class ResultsError(AotError):
    """The file of results cannot be read or written."""


@dataclass(frozen=True)
class Timed:
    """What came of a trial: its time, or why it has none."""

    seconds: float | None
    fault: str = ""


class Results:
    """The times that are known, by the identity of a trial and by who timed it."""

    def __init__(self, path: Path):
        self.path = path
        self._found: dict[tuple[str, str], Timed] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise ResultsError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        for number, line in enumerate(lines, 1):
            self._take(line, number, last=number == len(lines))

    def _take(self, line: str, number: int, last: bool) -> None:
        try:
            entry = json.loads(line)
            key, timed = (entry["trial"], entry["by"]), Timed(entry["seconds"], entry.get("fault", ""))
        except (ValueError, KeyError, TypeError):
            if last:  # of a run that was killed as it wrote
                return
            raise ResultsError(f"{self.path}:{number}: no result of `aotbuild tune`") from None
        self._found[key] = timed

    def get(self, trial: str, by: str) -> Timed | None:
        return self._found.get((trial, by))

    def add(self, trial: str, by: str, timed: Timed, told: dict[str, Any]) -> None:
        """told: what the trial is, for who reads the file."""
        self._found[trial, by] = timed
        entry = {**told, "seconds": timed.seconds, "fault": timed.fault, "by": by, "trial": trial}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                file.seek(0, 2)
                if file.tell() and not self._ends_in_newline():
                    file.write(b"\n")
                file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise ResultsError(f"{self.path} cannot be written: {error.strerror}") from None

    def _ends_in_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"
