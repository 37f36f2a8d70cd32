"""A folder of what took long to make (kernels, selftest vectors), each entry under the hash of all that decides it."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from aot_runtime.errors import AotError

from .jobs import CompiledKernel

T = TypeVar("T")

COMPILED, VECTORS = "v2", "vectors-v1"
"""Folders of the cache: of compiled kernels, of selftest vectors. Another one, once the encoding changes."""
MAX_ENTRY_BYTES = 1 << 28
"""Size of an entry, of which the largest are selftest vectors."""


class CacheError(AotError):
    """The cache directory cannot be created or written."""


def default_cache_dir() -> Path:
    """`$AOTBUILD_CACHE_DIR`, else `$XDG_CACHE_HOME/aotbuild`, else `~/.cache/aotbuild`."""
    if explicit := os.environ.get("AOTBUILD_CACHE_DIR"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotbuild"


class Cache(Generic[T]):
    """Entries of one type, under keys that say all that decides them. Any number of processes may use one at once.

    An entry is the SHA-256 of its key and body, then the body. One that is truncated, altered, of another format or no
    file is a miss, and the next `put` replaces it, or says why it cannot; writes go to a temporary file that is renamed
    into place.
    """

    def __init__(self, path: Path | str | None, folder: str, kind: type[T]):
        """Open or create the directory; None: `default_cache_dir()`. Raises `CacheError` if it cannot be written.

        Args:
            folder: of this type, below the cache's directory.
        """
        self.path = Path(path) if path is not None else default_cache_dir()
        self._folder, self._kind = folder, kind
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise self._error(error) from error

    def get(self, key: str) -> T | None:
        try:
            entry = _regular_content(self._entry(key))
        except OSError:
            return None
        digest, body = entry[:32], entry[32:]
        if digest != _digest(key, body):
            return None
        try:
            return msgspec.msgpack.decode(body, type=self._kind)
        except msgspec.MsgspecError:
            return None

    def put(self, key: str, value: T) -> None:
        """Store an entry. Raises `CacheError`."""
        entry = self._entry(key)
        body = msgspec.msgpack.encode(value)
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=entry.parent, prefix=".new-")
            temporary = Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_digest(key, body) + body)
                temporary.replace(entry)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._error(error, entry) from error

    def _entry(self, key: str) -> Path:
        return self.path / self._folder / key[:2] / key

    def _error(self, error: OSError, entry: Path | None = None) -> CacheError:
        place = f": {entry}" if entry else ""
        return CacheError(f"compile cache {self.path} cannot be written: {error.strerror or error}{place}")


class CompileCache(Cache[CompiledKernel]):
    """Compiled kernels by key (`keys.JobKeys`)."""

    def __init__(self, path: Path | str | None = None):
        super().__init__(path, COMPILED, CompiledKernel)


def _regular_content(path: Path) -> bytes:
    """The bytes of a regular file that is not too large. Raises OSError, for a pipe or a device too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # which does not wait for who writes to a pipe
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_ENTRY_BYTES:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        with suppress(OSError):  # a cache that is only read
            os.utime(descriptor)  # when it was last used, by which the cache is pruned
        return file.read(status.st_size)


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + body).digest()
