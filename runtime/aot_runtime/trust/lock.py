"""Lock files: which bundles a program was tried with, by their ids, so that it opens no others.

A bundle's id is a hash of its index, which has the hash of all else that is read. So a bundle whose id is locked is the
one that was locked, wherever it lies.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from aot_runtime.contract.records import Index
from aot_runtime.errors import LockError
from aot_runtime.regular_files import read_regular
from aot_runtime.texts import ID_LENGTH

FORMAT = 1
MAX_BYTES = 1 << 20
_HEADING = """\
# Bundles as they were when `aotbundle lock` wrote this. `aotbundle lock --check` finds out whether they still are;
# open_bundle(..., lock=...) and the environment variable AOTBUNDLE_LOCK open no others.
"""

_Hash = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class LockedBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bundle in a lock file.

    Attributes:
        id: what the index says; sha256: that of the index as a file.
        distribution: by which it was installed, with its version; "" for one that was found by its path.
        path: where it was found, from the folder of the lock file on; "" for one that was found by its name.
    """

    name: str
    arch: str
    id: _Hash
    sha256: _Hash
    version: str = ""
    distribution: str = ""
    path: str = ""

    @property
    def place(self) -> str:
        """Where it was found, in words."""
        return self.distribution or self.path


class _LockFile(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal[1]
    bundle: tuple[LockedBundle, ...] = ()


@dataclass(frozen=True)
class Lock:
    """The bundles that may be opened. source: where the lock comes from, for messages."""

    bundles: tuple[LockedBundle, ...]
    source: str = "the lock"

    def hold(self, index: Index, place: object) -> None:
        """Hold a bundle that was found at a place to the lock. Raises `LockError`."""
        what = f"bundle '{index.name}' for {index.target.arch}"
        locked = [item for item in self.bundles if (item.name, item.arch) == (index.name, index.target.arch)]
        if not locked:
            raise LockError(f"{what} ({place}) is not in {self.source}; there: {self._contents()}", "unlocked")
        if index.id not in [item.id for item in locked]:
            ids = " or ".join(f"{item.id[:ID_LENGTH]}{_version(item.version)}" for item in locked)
            found = f"{index.id[:ID_LENGTH]}{_version(index.version)}"
            raise LockError(f"{what} ({place}) has id {found}, and {self.source} has {ids}", "changed")

    def _contents(self) -> str:
        return ", ".join(f"{item.name} for {item.arch}" for item in self.bundles) or "nothing"


def _version(version: str) -> str:
    return f" (version {version})" if version else ""


def find_lock(lock: Lock | str | os.PathLike[str]) -> Lock:
    """A lock, or the one in a file. Raises `LockError`."""
    return lock if isinstance(lock, Lock) else read_lock(lock)


def read_lock(path: str | os.PathLike[str]) -> Lock:
    """Read a lock file. Raises `LockError`, so that nothing is opened by a lock that cannot be read."""
    what = f"lock file {os.fspath(path)}"
    try:
        data = read_regular(path, MAX_BYTES)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is over {MAX_BYTES} bytes")
        said = tomllib.loads(data.decode())
        if said.get("format") != FORMAT:
            raise ValueError(f"it is of format {said.get('format')!r}; this version of aotbuild reads format {FORMAT}")
        return Lock(msgspec.convert(said, _LockFile).bundle, what)
    except OSError as error:
        raise LockError(f"{what} cannot be read: {error.strerror}", "malformed") from None
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8 and msgspec, too
        raise LockError(f"{what}: {error}", "malformed") from None


def lock_text(bundles: Iterable[LockedBundle]) -> str:
    """What a lock file says: the same for the same bundles, in whatever order they are."""
    tables = [f"format = {FORMAT}\n"]
    for bundle in sorted(set(bundles), key=lambda item: (item.name, item.arch, item.version, item.id, item.place)):
        fields = {name: getattr(bundle, name) for name in bundle.__struct_fields__}
        lines = [f"{name} = {_quoted(value)}" for name, value in fields.items() if value]
        tables.append("\n".join(["[[bundle]]", *lines, ""]))
    return _HEADING + "\n".join(tables)


def _quoted(text: str) -> str:
    return json.dumps(text).replace("\x7f", "\\u007f")
