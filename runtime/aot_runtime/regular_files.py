"""Read files at untrusted paths. Pipes and devices are errors, and opening one does not block."""

from __future__ import annotations

import errno
import os
import stat

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a regular file for reading, following links. Returns its descriptor.

    Raises `OSError` if the file cannot be opened, or is a folder, a pipe or a device.
    """
    descriptor = os.open(path, _FLAGS)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a regular file, at most `limit` + 1 bytes of it. Raises `OSError` as `open_regular` does."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(limit + 1)
