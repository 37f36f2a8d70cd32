"""Failing file systems for fsspec, each registered under its own protocol."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class _Faulty(MemoryFileSystem):
    """A file system in which every access, except those in `healthy`, has `fault`."""

    cachable = False
    healthy: frozenset[str] = frozenset()

    def fault(self) -> None:
        raise NotImplementedError

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> bytes:
        if "read" not in self.healthy:
            self.fault()
        content: bytes = super().cat_file(path, *arguments, **options)
        return content

    def ls(self, *arguments: Any, **options: Any) -> Any:
        self.fault()
        return super().ls(*arguments, **options)

    def pipe_file(self, path: str, value: bytes, *arguments: Any, **options: Any) -> None:
        if "write" not in self.healthy:
            self.fault()
        super().pipe_file(path, value, *arguments, **options)


class Hanging(_Faulty):
    protocol = "hanging"

    def fault(self) -> None:
        time.sleep(600)


class Unreachable(_Faulty):
    protocol = "unreachable"

    def fault(self) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


class Denying(_Faulty):
    protocol = "denying"

    def fault(self) -> None:
        raise PermissionError("Access Denied")


class Full(_Faulty):
    protocol = "full"
    healthy = frozenset({"read"})

    def fault(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Crashing(_Faulty):
    protocol = "crashing"

    def fault(self) -> None:
        os._exit(3)


def register() -> None:
    """Make fsspec know them in this process, and in those that are forked off it."""
    for kind in (Hanging, Unreachable, Denying, Full, Crashing):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
