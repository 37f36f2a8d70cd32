"""What took long to make (kernels, selftest vectors), each entry under the hash of all that decides it: in a folder of
this machine, and behind it in a cache that machines share, if there is one."""

from __future__ import annotations

import hashlib
import hmac
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from .jobs import CompiledKernel
from .keys import recipe_key
from .shared_cache import CacheError, SharedCache
from .stores import FolderStore

T = TypeVar("T")

COMPILED, VECTORS = "v2", "vectors-v1"
"""Folders of the cache: of compiled kernels, of selftest vectors. Another one, once the encoding changes."""


def default_cache_dir() -> Path:
    """`$AOTBUILD_CACHE_DIR`, else `$XDG_CACHE_HOME/aotbuild`, else `~/.cache/aotbuild`."""
    if explicit := os.environ.get("AOTBUILD_CACHE_DIR"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotbuild"


class Cache(Generic[T]):
    """Entries of one type, under keys that say all that decides them. Any number of processes may use one at once.

    An entry is the SHA-256 of its key and body, then the body; in a shared cache with a secret, the HMAC-SHA256. One
    that is truncated, altered, of another format or no file is a miss, and the next `put` replaces it, or says why it
    cannot.
    """

    def __init__(self, path: Path | str | None, folder: str, kind: type[T], shared: SharedCache | None = None):
        """Open or create the directory; None: `default_cache_dir()`. Raises `CacheError` if it cannot be written.

        Args:
            folder: of this type, below the cache's directory.
            shared: what is not in the directory is looked for there, and what is put is written there, too.
        """
        self.path = Path(path) if path is not None else default_cache_dir()
        self._folder, self._kind, self._shared = folder, kind, shared
        self._local = FolderStore(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise self._error(error) from error

    def get(self, key: str) -> T | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, T]:
        """The entries that there are, by key, in the order of the keys. Raises `CacheError`."""
        found = {key: self._get_local(key) for key in keys}
        if self._shared is not None:
            found |= self._get_shared(self._shared, [key for key, value in found.items() if value is None])
        return {key: value for key, value in found.items() if value is not None}

    def put(self, key: str, value: T) -> None:
        """Store an entry. Raises `CacheError`."""
        body = msgspec.msgpack.encode(value)
        self._put_local(key, body)
        if self._shared is not None:
            self._shared.write(self._name(key), sealed(key, body, self._shared.settings.secret))

    def fits(self, key: str, value: T) -> bool:
        """Whether a value can be what its key stands for, as far as it says so itself."""
        return True

    def _get_local(self, key: str) -> T | None:
        try:
            entry = self._local.read(self._name(key))
        except OSError:
            return None
        body = None if entry is None else unsealed(key, entry)
        return None if body is None else self._value(key, body)

    def _get_shared(self, shared: SharedCache, keys: Sequence[str]) -> dict[str, T]:
        by_name = {self._name(key): key for key in keys}
        found: dict[str, T] = {}

        def take(name: str, entry: bytes) -> str:
            key, secret = by_name[name], shared.settings.secret
            body = unsealed(key, entry, secret)
            if body is None:
                return f"is damaged, or was {'not written with this key' if secret else 'written with a key'}"
            value = self._value(key, body)
            if value is None:
                return "is not what it is named as"
            self._put_local(key, body)
            found[key] = value
            return ""

        shared.read([*by_name], take)
        return found

    def _put_local(self, key: str, body: bytes) -> None:
        try:
            self._local.write(self._name(key), sealed(key, body))
        except OSError as error:
            raise self._error(error, self.path / self._name(key)) from error

    def _value(self, key: str, body: bytes) -> T | None:
        try:
            value = msgspec.msgpack.decode(body, type=self._kind)
        except msgspec.MsgspecError:
            return None
        return value if self.fits(key, value) else None

    def _name(self, key: str) -> str:
        return f"{self._folder}/{key[:2]}/{key}"

    def _error(self, error: OSError, entry: Path | None = None) -> CacheError:
        place = f": {entry}" if entry else ""
        return CacheError(f"compile cache {self.path} cannot be written: {error.strerror or error}{place}")


class CompileCache(Cache[CompiledKernel]):
    """Compiled kernels by key (`keys.JobKeys`), which is the hash of what a kernel was made of."""

    def __init__(self, path: Path | str | None = None, shared: SharedCache | None = None):
        super().__init__(path, COMPILED, CompiledKernel, shared)

    def fits(self, key: str, value: CompiledKernel) -> bool:
        return recipe_key(value.recipe) == key


def sealed(key: str, body: bytes, secret: bytes = b"") -> bytes:
    """An entry: its digest, then its body."""
    return _digest(key, body, secret) + body


def unsealed(key: str, entry: bytes, secret: bytes = b"") -> bytes | None:
    """The body of an entry; None where the entry is not what was written under this key, and with this secret."""
    digest, body = entry[:32], entry[32:]
    return body if hmac.compare_digest(digest, _digest(key, body, secret)) else None


def _digest(key: str, body: bytes, secret: bytes) -> bytes:
    text = key.encode() + b"\0" + body
    return hmac.digest(secret, text, "sha256") if secret else hashlib.sha256(text).digest()
