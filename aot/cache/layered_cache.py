"""Cache compiled kernels and selftest vectors in a local folder, and optionally in a shared cache.

Keys are hashes of everything that determines an entry.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from aot.compile.jobs import CompiledKernel
from aot.compile.keys import recipe_key

from .shared_cache import CacheError, Refusals, SharedCache
from .stores import EntryError, FolderStore

T = TypeVar("T")
Judge = Callable[[str, T], str]
"""Returns the reason to refuse the value under a key; empty if it may be used."""
NOT_ITS_NAME = "is not what it is named as"
DIGEST_BYTES = 32
"""Bytes of the digest, with which an entry begins."""


class _RefusedError(Exception):
    """An entry is refused, for the reason given."""


COMPILED, VECTORS, CAPTURED = "v2", "vectors-v1", "captured-v1"
"""Folders in a cache: compiled kernels, selftest vectors, captured kernels. Renamed when the encoding changes."""


def default_cache_dir() -> Path:
    """`$AOTBUILD_CACHE_DIR`, else `$XDG_CACHE_HOME/aotbuild`, else `~/.cache/aotbuild`."""
    if explicit := os.environ.get("AOTBUILD_CACHE_DIR"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotbuild"


class Cache(Generic[T]):
    """Entries of one type, by key. Any number of processes may use a cache at once.

    An entry is the SHA-256 of its key and body, then the body; in a shared cache with a secret, the HMAC-SHA256.
    Anybody
    who may write to a cache can forge entries, so each is checked when it is read. An entry that is truncated, altered,
    in
    another format, or not a value of its key is refused with a warning, and replaced by the next `put`.
    """

    def __init__(self, path: Path | str | None, folder: str, kind: type[T], shared: SharedCache | None = None):
        """Open the directory, or create it. Raises `CacheError` if it cannot be written.

        Args:
            path: defaults to `default_cache_dir()`.
            folder: the folder of this type in the directory.
            shared: read for entries that the directory lacks, and written to by `put`.
        """
        self.path = Path(path) if path is not None else default_cache_dir()
        self._folder, self._kind, self.shared = folder, kind, shared
        self._local, self._refusals = FolderStore(self.path), Refusals(self)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise self._error(error) from error

    def __str__(self) -> str:
        return f"compile cache {self.path}"

    def get(self, key: str) -> T | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str], fault: Judge[T] | None = None) -> dict[str, T]:
        """Return the entries that exist, by key, in the order of the keys. Raises `CacheError`.

        Args:
            fault: an additional check of each value.
        """
        judges = [self.fault] if fault is None else [self.fault, fault]
        found = self._get_local(keys, judges)
        if self.shared is not None:
            found |= self._get_shared(self.shared, [key for key, value in found.items() if value is None], judges)
        return {key: value for key, value in found.items() if value is not None}

    def put(self, key: str, value: T) -> None:
        """Store an entry. Raises `CacheError`."""
        body = msgspec.msgpack.encode(value)
        self._put_local(key, body)
        if self.shared is not None:
            self.shared.write(self._name(key), sealed(key, body, self.shared.settings.secret))

    def fault(self, key: str, value: T) -> str:
        """Return why a value, by its own content, cannot be that of its key; empty if it can."""
        return ""

    def _get_local(self, keys: Iterable[str], judges: Sequence[Judge[T]]) -> dict[str, T | None]:
        found: dict[str, T | None] = {}
        refused = {}
        for key in keys:
            found[key], name = None, self._name(key)
            try:
                entry = self._local.read(name)
                found[key] = None if entry is None else self._value(key, entry, b"", judges)
            except OSError as error:
                refused[name] = f"cannot be read ({error.strerror or error})"
            except _RefusedError as error:
                refused[name] = str(error)
        self._refusals.tell(refused, "not used")
        return found

    def _get_shared(self, shared: SharedCache, keys: Sequence[str], judges: Sequence[Judge[T]]) -> dict[str, T]:
        by_name = {self._name(key): key for key in keys}
        found: dict[str, T] = {}

        def take(name: str, entry: bytes) -> str:
            key = by_name[name]
            try:
                found[key] = self._value(key, entry, shared.settings.secret, judges, shared=True)
            except _RefusedError as error:
                return str(error)
            self._put_local(key, entry[DIGEST_BYTES:])
            return ""

        shared.read([*by_name], take)
        return found

    def _put_local(self, key: str, body: bytes) -> None:
        try:
            self._local.write(self._name(key), sealed(key, body))
        except EntryError as error:
            self._refusals.tell({self._name(key): f"cannot be written ({error})"}, "left out")
        except OSError as error:
            raise self._error(error, self.path / self._name(key)) from error

    def _value(
        self, key: str, entry: bytes, secret: bytes, judges: Sequence[Judge[T]], shared: bool = False
    ) -> T:  # fmt: skip
        """Decode and check an entry. Raises `_RefusedError`."""
        body = unsealed(key, entry, secret)
        if body is None:
            writer = f", or was {'not written with this key' if secret else 'written with a key'}" if shared else ""
            raise _RefusedError(f"is damaged{writer}")
        try:
            value = msgspec.msgpack.decode(body, type=self._kind)
        except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
            raise _RefusedError(f"holds unexpected content ({type(error).__name__})") from None
        for judge in judges:
            if reason := judge(key, value):
                raise _RefusedError(reason)
        return value

    def _name(self, key: str) -> str:
        return f"{self._folder}/{key[:2]}/{key}"

    def _error(self, error: OSError, entry: Path | None = None) -> CacheError:
        place = f": {entry}" if entry else ""
        return CacheError(f"compile cache {self.path} cannot be written: {error.strerror or error}{place}")


class CompileCache(Cache[CompiledKernel]):
    """Compiled kernels by key (`keys.JobKeys`): the hash of the recipe that a kernel was made from."""

    def __init__(self, path: Path | str | None = None, shared: SharedCache | None = None):
        super().__init__(path, COMPILED, CompiledKernel, shared)

    def fault(self, key: str, value: CompiledKernel) -> str:
        return "" if recipe_key(value.recipe) == key else NOT_ITS_NAME


def sealed(key: str, body: bytes, secret: bytes = b"") -> bytes:
    """Prefix the body of an entry with its digest."""
    return _digest(key, body, secret) + body


def unsealed(key: str, entry: bytes, secret: bytes = b"") -> bytes | None:
    """Return the body of an entry; None unless it was written under this key and with this secret."""
    digest, body = entry[:DIGEST_BYTES], entry[DIGEST_BYTES:]
    return body if hmac.compare_digest(digest, _digest(key, body, secret)) else None


def _digest(key: str, body: bytes, secret: bytes) -> bytes:
    text = key.encode() + b"\0" + body
    return hmac.digest(secret, text, "sha256") if secret else hashlib.sha256(text).digest()
