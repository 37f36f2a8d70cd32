"""Read the JSON and text files of a checkpoint, within limits, as `Values` or text."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aot_runtime.texts import shown

MAX_BYTES = 1 << 24
"""Default maximum size of a text file, in bytes."""
MOST_FAULTS = 100
"""Maximum number of faults that an error lists."""


class CheckpointError(ValueError):
    """A checkpoint is incomplete, damaged or unsupported."""


class Values:
    """The keys of a JSON object. `values[key]` raises `CheckpointError` if the key is absent or null.

    Attributes:
        found: the object.
        path: the file, for errors.
    """

    def __init__(self, found: Mapping[str, Any], path: Path = Path("config.json")):
        self.found, self.path = found, path

    @classmethod
    def read(cls, path: Path) -> Values:
        """Read a file. Raises `CheckpointError` as `read_json` does."""
        return cls(read_json(path), path)

    def __getitem__(self, key: str) -> Any:
        if self.found.get(key) is None:
            raise CheckpointError(f"{self.path}: there is no '{key}'")
        return self.found[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default if the key is absent or null."""
        value = self.found.get(key)
        return default if value is None else value

    def but(self, **changes: Any) -> Values:
        """A copy in which some keys have other values."""
        return self.part({**self.found, **changes})

    def part(self, found: Mapping[str, Any]) -> Values:
        """An object in the same file."""
        return Values(found, self.path)

    def demand(self, holds: bool, given: str, known: Iterable[str]) -> None:
        if not holds:
            raise CheckpointError(f"{self.path}: {given} is not supported; supported: {', '.join(known)}")


def said(value: Any) -> str:
    """A value as an error shows it; short printable texts have no quotes."""
    return value if isinstance(value, str) and value.isprintable() and len(value) < 80 else shown(value)


def joined(faults: Sequence[str]) -> str:
    """Faults joined in one line, shortened after `MOST_FAULTS`."""
    more = [f"and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
    return "; ".join([*faults[:MOST_FAULTS], *more])


def read_json(path: Path, most: int = MAX_BYTES) -> dict[str, Any]:
    """Read a file that holds a JSON object. Raises `CheckpointError` if it does not, and as `read_text` does."""
    try:
        found = json.loads(read_text(path, most))
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: invalid JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return found


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Read a regular file.

    Raises:
        CheckpointError: the file is missing, longer than `most` bytes, or not UTF-8.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            check_regular(path, os.fstat(file.fileno()))
            content = file.read(most + 1)
        if len(content) > most:
            raise CheckpointError(f"{path}: more than {most} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: not UTF-8") from None


def check_regular(path: Path, status: os.stat_result) -> None:
    """Raise `CheckpointError` unless a path is a regular file: reading a pipe, for example, may never end."""
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: not a regular file")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
