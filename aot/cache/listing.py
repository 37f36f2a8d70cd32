"""List the entries of a cache by kind, size and last use; remove or share some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from aot.errors import described

from .layered_cache import CAPTURED, COMPILED, VECTORS, default_cache_dir, sealed, unsealed
from .shared_cache import CacheError, CacheSettings, SharedCache, SharedSettings
from .stores import FolderStore, Store, StoredFile, open_store, shown

KINDS = {COMPILED: "kernels", VECTORS: "selftest vectors", CAPTURED: "captured kernels"}
"""Folder of the cache → kind of its entries."""
STALE = "of older versions"


@dataclass(frozen=True)
class CacheListing:
    """The entries of a cache, and where it is."""

    place: str
    store: Store
    entries: tuple[StoredFile, ...]

    def by_kind(self) -> dict[str, list[StoredFile]]:
        kinds: dict[str, list[StoredFile]] = {}
        for entry in self.entries:
            kinds.setdefault(kind_of(entry), []).append(entry)
        return kinds

    def remove(self, entries: Iterable[StoredFile]) -> None:
        """Remove entries. Raises `CacheError`."""
        try:
            self.store.remove(entry.name for entry in entries)
        except Exception as error:  # a store raises anything
            raise CacheError(f"entries of the cache {self.place} cannot be removed: {described(error)}") from error


def kind_of(entry: StoredFile) -> str:
    return KINDS.get(entry.name.partition("/")[0], STALE)


def list_local(settings: CacheSettings) -> CacheListing:
    """List the local cache, without other files in its folder. Raises `CacheError`."""
    path = settings.folder or default_cache_dir()
    return _listed(str(path), FolderStore(path, marks_use=False))


def list_shared(settings: SharedSettings) -> CacheListing:
    """List a shared cache. Raises `CacheError`."""
    place = shown(settings.url)
    try:
        store = open_store(settings.url)
    except Exception as error:
        raise CacheError(f"cache {place} cannot be opened: {described(error)}") from error
    return _listed(place, store)


def _listed(place: str, store: Store) -> CacheListing:
    try:
        return CacheListing(place, store, tuple(store.files()))
    except Exception as error:
        raise CacheError(f"cache {place} cannot be listed: {described(error)}") from error


def select_entries(
    entries: Sequence[StoredFile], max_size: int | None, horizon: float | None
) -> tuple[StoredFile, ...]:
    """Select entries to remove: those of older versions, those last used before `horizon`, and then the least recently
    used until at most `max_size` bytes are left."""
    gone = {entry for entry in entries if kind_of(entry) == STALE or (horizon is not None and entry.used < horizon)}
    kept = sorted((entry for entry in entries if entry not in gone), key=lambda entry: entry.used)
    excess = 0 if max_size is None else sum(entry.size for entry in kept) - max_size
    for entry in kept:
        if excess <= 0:
            break
        gone.add(entry)
        excess -= entry.size
    return tuple(entry for entry in entries if entry in gone)


def push_missing(local: CacheListing, shared: CacheListing, settings: SharedSettings) -> int:
    """Write the local entries that a shared cache lacks to it; returns their number. Raises `CacheError`."""
    there = {entry.name for entry in shared.entries}
    with SharedCache(replace(settings, required=True)) as cache:
        for entry in local.entries:
            if kind_of(entry) != STALE and entry.name not in there:
                key, body = entry.name.rpartition("/")[2], _body(local.store, entry)
                if body is not None:
                    cache.write(entry.name, sealed(key, body, settings.secret))
    return cache.written


def _body(store: Store, entry: StoredFile) -> bytes | None:
    with suppress(OSError):
        return unsealed(entry.name.rpartition("/")[2], store.read(entry.name) or b"")
    return None
