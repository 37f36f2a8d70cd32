"""Reading files whose paths come from anywhere: a pipe or a device in place of a regular file is an error, and nothing
waits for whoever writes to it."""

from __future__ import annotations

import errno
import os
import stat

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a regular file to read it, also through a link. Returns its descriptor.

    Raises `OSError` where the file cannot be opened, or is a folder, a pipe or a device.
    """
    descriptor = os.open(path, _FLAGS)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """The content of a regular file: of a longer one, the first `limit` + 1 bytes. Raises `OSError` as `open_regular`
    does."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(limit + 1)
