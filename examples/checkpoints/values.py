"""The keys of a config.json, and the error of a checkpoint that lacks something."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


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

    def with_defaults(self, **defaults: Any) -> Values:
        """The same with keys that the file leaves out; what it says to be null stays so."""
        return self.part({**defaults, **self.found})

    def but(self, **changes: Any) -> Values:
        """The same with other values of these keys."""
        return self.part({**self.found, **changes})

    def part(self, found: Mapping[str, Any] | None) -> Values:
        """An object in the same file."""
        return Values(found or {}, self.path)

    def demand(self, holds: bool, given: str, known: Iterable[str]) -> None:
        if not holds:
            raise CheckpointError(f"{self.path}: {given} is not supported; supported: {', '.join(known)}")


def read_json(path: Path) -> dict[str, Any]:
    """Raises `CheckpointError`: no such file, no JSON, or JSON that is no object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: no JSON object")
    return found
