"""What lies in the cache's folder: its entries by kind, size and last use, and removing some of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cache import COMPILED, VECTORS, CacheError, default_cache_dir

KINDS = {COMPILED: "kernels", VECTORS: "selftest vectors"}
"""Folder of the cache → what its entries are."""
STALE = "of older versions"
_FOLDER = re.compile(r"v\d+|vectors-v\d+")
"""Of folders that any version of the builder makes."""


@dataclass(frozen=True)
class Entry:
    """A file of the cache. size: bytes; used: when it was last used, seconds since the epoch."""

    path: Path
    kind: str
    size: int
    used: float


@dataclass(frozen=True)
class CacheListing:
    """The entries of a cache."""

    path: Path
    entries: tuple[Entry, ...]

    def by_kind(self) -> dict[str, list[Entry]]:
        kinds: dict[str, list[Entry]] = {}
        for entry in self.entries:
            kinds.setdefault(entry.kind, []).append(entry)
        return kinds

    def remove(self, entries: Iterable[Entry]) -> None:
        """Remove entries, and folders that are empty then. Raises `CacheError`."""
        for entry in entries:
            try:
                entry.path.unlink(missing_ok=True)
            except OSError as error:
                raise CacheError(f"cache entry {entry.path} cannot be removed: {error.strerror}") from error
        for folder in _folders(self.path):
            for below in (*folder.glob("*/"), folder):
                if not any(below.iterdir()):
                    below.rmdir()


def list_cache(path: Path | None = None) -> CacheListing:
    """What is in a cache; None: `default_cache_dir()`. Other files in its folder are none of it."""
    root = default_cache_dir() if path is None else path
    return CacheListing(root, tuple(entry for folder in _folders(root) for entry in _entries(folder)))


def select_entries(entries: Sequence[Entry], max_size: int | None, horizon: float | None) -> tuple[Entry, ...]:
    """The entries to remove: those of older versions; those last used before `horizon`; and then those used longest ago
    until no more than `max_size` bytes are left.
    """
    gone = {entry for entry in entries if entry.kind == STALE or (horizon is not None and entry.used < horizon)}
    kept = sorted((entry for entry in entries if entry not in gone), key=lambda entry: entry.used)
    excess = 0 if max_size is None else sum(entry.size for entry in kept) - max_size
    for entry in kept:
        if excess <= 0:
            break
        gone.add(entry)
        excess -= entry.size
    return tuple(entry for entry in entries if entry in gone)


def _folders(root: Path) -> list[Path]:
    return [path for path in sorted(root.glob("*/")) if _FOLDER.fullmatch(path.name) and not path.is_symlink()]


def _entries(folder: Path) -> Iterator[Entry]:
    kind = KINDS.get(folder.name, STALE)
    for path in sorted(folder.glob("*/*")):
        status = os.lstat(path)
        if not path.is_dir():
            yield Entry(path, kind, status.st_size, status.st_mtime)
