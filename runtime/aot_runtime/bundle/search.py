"""Find bundles in a folder or archive, and the files of a bundle in a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from aot_runtime.contract.records import INDEX, Index
from aot_runtime.errors import BundleError
from aot_runtime.folders import opened_folder

from .files import SUFFIX, is_archive, open_place, source_of
from .multi_archive import MultiArchive
from .source import Source


def bundles_at(path: Path) -> list[Path]:
    """Return the bundles at a path: a single bundle, or all bundles in a folder or file."""
    if os.path.lexists(path / INDEX) or is_archive(path.parent):
        return [path]
    return _bundles_of(path) if path.is_file() else bundles_in(path)


def bundles_in(folder: Path) -> list[Path]:
    """Return the bundles in a folder, those in subfolders first."""
    folders = sorted(index.parent for index in folder.glob(f"*/{INDEX}"))
    files = sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file())
    return [*folders, *(bundle for path in files for bundle in _bundles_of(path))]


def distinct_bundles(folder: Path, read: Callable[[Source], Index]) -> list[tuple[str, Source, Index]]:
    """Return (file name, source, index) of a folder's bundles. A bundle and an archive of it count once."""
    found: dict[str, tuple[str, Source, Index]] = {}
    for path in bundles_in(folder):
        source = source_of(path)
        index = read(source)
        found.setdefault(index.id, (path.name, source, index))
    if not found:
        raise BundleError(f"{folder} is not a bundle and contains none")
    return [*found.values()]


def _bundles_of(path: Path) -> list[Path]:
    """Return the bundles in a file, or the file itself if it is malformed, to raise when it is read."""
    try:
        found = open_place(path)
    except BundleError:
        return [path]
    return [path / arch for arch in found.archs] if isinstance(found, MultiArchive) else [path]


def names_in(path: Path, folder: str) -> list[str]:
    """Return the files of the bundle in a folder, or those below one of its folders. See `Folder.names`."""
    found: list[str] = []
    folders = [folder]
    try:
        with opened_folder(path) as top:
            while folders:
                place = folders.pop()
                try:
                    with top.below(place) as opened:
                        for name in opened.names():
                            status = opened.status(name)
                            is_folder = status is not None and stat.S_ISDIR(status.st_mode)
                            (folders if is_folder else found).append(f"{place}/{name}" if place else name)
                except FileNotFoundError:
                    continue
                except OSError:
                    found.append(place or ".")
    except FileNotFoundError:
        return []
    except OSError:
        return ["."]
    return sorted(found)


def writable_in(path: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield the names in a folder, and `.` for itself, that every user may write to. See `Source.writable_by_all`."""
    names = [*names]
    folders = dict.fromkeys((".", *(name.rpartition("/")[0] for name in names if "/" in name)))
    for name in (*folders, *names):
        try:
            mode = os.lstat(path / name).st_mode
        except OSError:
            continue
        if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
            yield name
