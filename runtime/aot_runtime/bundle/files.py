"""The files of a bundle, which may come from anywhere: only regular ones are read, through no link in the bundle, and
no more of one than was asked for. The bundle's own folder is the caller's word, and may be reached through links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aot_runtime.errors import BundleError

_HAS_FOLDERS = os.open in os.supports_dir_fd
"""Whether a folder can be opened and its files by it: not on Windows, where a bundle's folder must not be changed by
others while it is read."""
# Where something is put in a file's place after it was looked at, opening it neither follows a link nor waits.
_FLAGS = (os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK) if _HAS_FOLDERS else getattr(os, "O_BINARY", 0)


def read_file(folder: Path, name: str, limit: int) -> bytes:
    """The content of a bundle's file `name`, such as `code/0123.hsaco`: of a longer one, the first `limit` + 1 bytes.

    Raises `OSError` for a file that is not there, that is no regular one, or that is reached through a link.
    """
    with _opened(folder, name) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read(min(os.fstat(descriptor).st_size, limit) + 1)


def unreadable(what: str, path: Path, error: OSError) -> BundleError:
    """The error of a file that cannot be read; `what` says what it is."""
    return BundleError(f"{what} {path} cannot be read: {error.strerror}".lstrip())


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[int]:
    """The descriptor of a regular file, opened component by component."""
    *parents, last = name.split("/")
    if {"", ".", ".."} & {*parents, last}:
        raise OSError(errno.EINVAL, "that is no path in the bundle")
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
    """Raises `OSError` where what is called `part` in a folder is something else than what is wanted."""
    mode = os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode) and not is_wanted(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not is_wanted(mode):
        found = "a symbolic link" if stat.S_ISLNK(mode) else f"no {kind}"
        raise OSError(errno.EINVAL, f"'{Path(part).name}' is {found}; only a bundle's own regular files are read")


def _open(part: str, parent: int | None, is_wanted: Callable[[int], bool], kind: str) -> int:
    """A descriptor of what is called `part` in a folder. What is not wanted is not opened: a device may act on that."""
    _check(part, parent, is_wanted, kind)
    descriptor = os.open(part, os.O_RDONLY | _FLAGS, dir_fd=parent)
    if is_wanted(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"'{part}' was replaced while it was opened")


def writable_by_all(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Of a bundle's folder (called `.`) and files, those that every user of the machine may write to."""
    for name in names:
        try:
            mode = os.lstat(folder / name).st_mode
        except OSError:
            continue
        if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
            yield name
