"""Files of a checkpoint that are JSON or another text, and the error of a checkpoint that lacks something."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aot_runtime.texts import shown

MAX_BYTES = 1 << 24
"""Size of a text, unless its reader says otherwise."""
MOST_FAULTS = 100
"""Faults that an error names."""


class CheckpointError(ValueError):
    """A checkpoint lacks something, or is of another kind."""


class Values:
    """Keys and what config.json says of them; `values[key]` demands that it says something.

    Attributes:
        found: the keys.
        path: of the file, for errors.
    """

    def __init__(self, found: Mapping[str, Any], path: Path = Path("config.json")):
        self.found, self.path = found, path

    @classmethod
    def read(cls, path: Path) -> Values:
        """Raises `CheckpointError`: there is no such file, or it is no JSON."""
        return cls(read_json(path), path)

    def __getitem__(self, key: str) -> Any:
        if self.found.get(key) is None:
            raise CheckpointError(f"{self.path}: there is no '{key}'")
        return self.found[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The default where the key is not there, or null."""
        value = self.found.get(key)
        return default if value is None else value

    def but(self, **changes: Any) -> Values:
        """The same with other values of these keys."""
        return self.part({**self.found, **changes})

    def part(self, found: Mapping[str, Any]) -> Values:
        """An object in the same file."""
        return Values(found, self.path)

    def demand(self, holds: bool, given: str, known: Iterable[str]) -> None:
        if not holds:
            raise CheckpointError(f"{self.path}: {given} is not supported; supported: {', '.join(known)}")


def said(value: Any) -> str:
    """A value as a message shows it: texts that can be printed without quotes."""
    return value if isinstance(value, str) and value.isprintable() and len(value) < 80 else shown(value)


def joined(faults: Sequence[str]) -> str:
    """Faults in one line: of very many the first ones, and how many more there are."""
    more = [f"and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
    return "; ".join([*faults[:MOST_FAULTS], *more])


def read_json(path: Path, most: int = MAX_BYTES) -> dict[str, Any]:
    """Raises `CheckpointError`: no such file, one that `read_text` refuses, no JSON, or JSON that is no object."""
    try:
        found = json.loads(read_text(path, most))
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: no JSON object")
    return found


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """The text of a regular file.

    Raises `CheckpointError`: there is none, it is longer than `most` bytes, or no UTF-8.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            check_regular(path, os.fstat(file.fileno()))
            content = file.read(most + 1)
        if len(content) > most:
            raise CheckpointError(f"{path}: it has more than {most} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: it is no UTF-8") from None


def check_regular(path: Path, status: os.stat_result) -> None:
    """Raise `CheckpointError` where something else than a regular file is at a path: a pipe, say, may never end."""
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: it is no regular file")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
