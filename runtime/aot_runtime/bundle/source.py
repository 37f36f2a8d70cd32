"""The protocol of a bundle's files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeAlias


class Source(Protocol):
    """The files of a bundle, by names such as `code/0123.hsaco`."""

    @property
    def path(self) -> Path:
        """The bundle's path, for messages."""

    @property
    def arch(self) -> str | None:
        """The architecture that it is stored under, or None if only the index has it."""

    def read(self, name: str, limit: int) -> bytes:
        """Read a file, at most `limit` + 1 bytes of it.

        Raises `OSError` if the file is missing or unreadable, `BundleError` for an altered archive.
        """

    def names(self, folder: str = "") -> list[str]:
        """Return the names of all files, or of those below a folder."""

    def writable_by_all(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the names, and `.` for the source itself, that every user of the machine may write to."""


Place: TypeAlias = Path | Source
"""A bundle's path, or an open bundle."""
