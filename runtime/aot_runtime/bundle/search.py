"""Find bundles in a folder or archive, and the files of a bundle in a folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from aot_runtime.contract.records import INDEX
from aot_runtime.errors import BundleError
from aot_runtime.folders import opened_folder

from .files import SUFFIX, Merged, is_archive, open_place


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


def _bundles_of(path: Path) -> list[Path]:
    """Return the bundles in a file, or the file itself if it is malformed, to raise when it is read."""
    try:
        found = open_place(path)
    except BundleError:
        return [path]
    return [path / arch for arch in found.archs] if isinstance(found, Merged) else [path]


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
