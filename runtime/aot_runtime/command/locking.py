"""What lock files have of bundles, and whether that is still there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.reading import read_index_bytes
from aot_runtime.errors import BundleError, LockError
from aot_runtime.installed import Installed, installed_bundles, is_name
from aot_runtime.trust.lock import Lock, LockedBundle
from aot_runtime.trust.reader import index_reader

from .listing import find_bundles


def find_locked(given: Iterable[str], folder: Path) -> Iterator[LockedBundle]:
    """What a lock file in a folder has of bundles, by their paths or names. Raises `BundleError`."""
    for text in given:
        if is_name(text) and (found := installed_bundles(text)):
            yield from map(_of_installed, found)
        else:
            for path in find_bundles([Path(text)]):
                named = path if path.is_absolute() else Path(os.path.relpath(path, folder))
                yield _locked(path, path=named.as_posix())


def lock_faults(lock: Lock, given: Iterable[str], folder: Path) -> Iterator[str]:
    """What is not as a lock file in a folder says, in words: of bundles that it has, and of those that are given."""
    for item in lock.bundles:
        try:
            found = _again(item, folder)
        except LockError as error:
            yield str(error)
            continue
        if found != item:
            parts = [name for name in item.__struct_fields__ if getattr(found, name) != getattr(item, name)]
            yield f"bundle '{item.name}' for {item.arch} ({item.place}) has changed: another {', '.join(parts)}"
    ids = {item.id for item in lock.bundles}
    try:
        for found in find_locked(given, folder):
            if found.id not in ids:
                yield f"bundle '{found.name}' for {found.arch} ({found.place}) is not in {lock.source}"
    except BundleError as error:
        yield str(error)


def _again(item: LockedBundle, folder: Path) -> LockedBundle:
    """What is where a locked bundle was found. Raises `LockError`."""
    try:
        if item.path:
            return _locked(folder / item.path, path=item.path)
        found = [other for other in installed_bundles(item.name) if other.arch == item.arch]
        if same := [other for other in found if other.distribution == item.distribution] or found:
            return _of_installed(same[0])
    except BundleError as error:
        what = f"bundle '{item.name}' for {item.arch} ({item.place})"
        raise LockError(f"{what} is not there any more, or damaged: {error}", "missing") from None
    raise LockError(f"bundle '{item.name}' for {item.arch} ({item.distribution}) is not installed any more", "missing")


def _of_installed(item: Installed) -> LockedBundle:
    places = find_bundles([Path(item.path)])
    place = next((place for place in places if place.name == item.arch), places[0])
    return _locked(place, distribution=item.distribution)


def _locked(place: Path, path: str = "", distribution: str = "") -> LockedBundle:
    """Raises `BundleError`."""
    source = source_of(place)
    index = index_reader()(source)
    digest = hashlib.sha256(read_index_bytes(source)).hexdigest()
    return LockedBundle(index.name, index.target.arch, index.id, digest, index.version, distribution, path)
