"""The file of times of a run. A line is added as soon as a trial is timed, so that an interrupted run resumes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot_runtime.errors import AotError
from aot_runtime.regular_files import open_regular


class ResultsError(AotError):
    """The file of results cannot be read or written."""


@dataclass(frozen=True)
class Timed:
    """The outcome of a trial: its time, or why it has none."""

    seconds: float | None
    fault: str = ""


class Results:
    """Known times, by the identity of a trial and by its timer."""

    def __init__(self, path: Path):
        """Read the file, if it exists. Raises `ResultsError`."""
        self.path = path
        self._found: dict[tuple[str, str], Timed] = {}
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise ResultsError(f"{path} cannot be read: {error.strerror}") from None
        whole = content[: content.rfind(b"\n") + 1]  # a run that was killed may have left a part of a line
        self._size = len(whole)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entry = json.loads(line)
                key, timed = (entry["trial"], entry["by"]), Timed(entry["seconds"], entry["fault"])
            except (ValueError, KeyError, TypeError):
                raise ResultsError(f"{path}:{number}: not a result of `aotbuild tune`") from None
            self._found[key] = timed

    def get(self, trial: str, by: str) -> Timed | None:
        return self._found.get((trial, by))

    def add(self, trial: str, by: str, timed: Timed, told: dict[str, Any]) -> None:
        """Add a time. told: a description of the trial for readers of the file."""
        self._found[trial, by] = timed
        entry = {**told, "seconds": timed.seconds, "fault": timed.fault, "by": by, "trial": trial}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.truncate(self._size)
                self._size += file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise ResultsError(f"{self.path} cannot be written: {error.strerror}") from None
