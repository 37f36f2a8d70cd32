"""Read the files of an untrusted bundle, with a limit on each read.

A bundle is a folder, an archive, or a part of an archive for several architectures. Each is read through a `Source`. In
a folder, only regular files are read and links are not followed. The path of the folder or archive itself is trusted
and may contain links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aot_runtime.errors import BundleError

if TYPE_CHECKING:
    from .multi_archive import MultiArchive
    from .source import Place, Source

SUFFIX = ".aotb"
"""Suffix of archives."""
ARCHIVE_MAGIC = b"PK\x03\x04"
_HAS_FOLDERS = os.open in os.supports_dir_fd
"""True if files can be opened relative to a folder's descriptor.

False on Windows, where nobody else may change a bundle's folder while it is read.
"""
# If a file is replaced after it was checked, opening it neither follows a link nor blocks.
_FLAGS = (os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK) if _HAS_FOLDERS else getattr(os, "O_BINARY", 0)


def source_of(place: Place, arch: str | None = None) -> Source:
    """Open a bundle for reading. `arch` selects one in a file for several architectures.

    Raises `BundleError` for a malformed archive, or if `arch` is None and there are several bundles.
    """
    if not isinstance(place, Path):
        return place
    found = open_place(place)
    if isinstance(found, Folder):
        return found
    from .multi_archive import one_bundle

    return one_bundle(found, place, arch)


def open_place(path: Path) -> Source | MultiArchive:
    """Open the bundle at a path, or a file with bundles for several architectures.

    A bundle within such a file has a path such as `rows.aotb/gfx942`. Raises `BundleError` for a malformed archive.
    """
    if not is_archive(path) and not is_archive(path.parent):
        return Folder(path)
    from .multi_archive import open_archive  # not needed for a bundle in a folder

    return open_archive(path)


def is_archive(path: Path) -> bool:
    """Return True for an archive, by the start of its content."""
    if not path.is_file():
        return False
    from aot_runtime.regular_files import read_regular

    return read_regular(path, len(ARCHIVE_MAGIC)).startswith(ARCHIVE_MAGIC)


class Folder:
    """A bundle in a folder."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def arch(self) -> None:
        """See `Source`."""

    def read(self, name: str, limit: int) -> bytes:
        """See `Source`. Raises `OSError` also for irregular files and for paths with links."""
        with _opened(self.path, name) as descriptor, open(descriptor, "rb", closefd=False) as file:
            return file.read(min(os.fstat(descriptor).st_size, limit) + 1)

    def names(self, folder: str = "") -> list[str]:
        """See `Source`. Lists everything but folders, at any depth, and unreadable folders. Links are not followed."""
        from .search import names_in  # not needed to open a bundle

        return names_in(self.path, folder)

    def writable_by_all(self, names: Iterable[str]) -> Iterator[str]:
        """See `Source`."""
        from .search import writable_in

        return writable_in(self.path, names)


def named(name: str) -> str:
    """Return a file's name for messages, in ASCII if it is not printable."""
    return name if name.isprintable() else ascii(name)


def unreadable(what: str, path: Path, error: OSError) -> BundleError:
    """Return the error for an unreadable file. `what` is the kind of file."""
    return BundleError(f"{what} {path} cannot be read: {error.strerror}".lstrip())


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[int]:
    *parents, last = name.split("/")
    if {"", ".", ".."} & {*parents, last}:
        raise OSError(errno.EINVAL, "not a path in the bundle")
    held: list[int] = []
    try:
        if _HAS_FOLDERS:
            held.append(os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY))
            for part in parents:
                held.append(_open(part, held[-1], stat.S_ISDIR, "folder"))
            held.append(_open(last, held[-1], stat.S_ISREG, "regular file"))
        else:
            for depth in range(1, len(parents) + 1):
                _check(str(folder.joinpath(*parents[:depth])), None, stat.S_ISDIR, "folder")
            held.append(_open(str(folder / name), None, stat.S_ISREG, "regular file"))
        yield held[-1]
    finally:
        for descriptor in held:
            os.close(descriptor)


def _check(part: str, parent: int | None, is_wanted: Callable[[int], bool], kind: str) -> None:
    """Raise `OSError` if `part` in a folder is not of the wanted kind."""
    mode = os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode) and not is_wanted(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not is_wanted(mode):
        found = "a symbolic link" if stat.S_ISLNK(mode) else f"not a {kind}"
        raise OSError(
            errno.EINVAL, f"'{named(Path(part).name)}' is {found}; only a bundle's own regular files are read"
        )


def _open(part: str, parent: int | None, is_wanted: Callable[[int], bool], kind: str) -> int:
    """Open `part` of a folder if it is of the wanted kind. Others are not opened, since devices may react to that."""
    _check(part, parent, is_wanted, kind)
    descriptor = os.open(part, os.O_RDONLY | _FLAGS, dir_fd=parent)
    if is_wanted(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"'{named(part)}' was replaced while it was opened")
