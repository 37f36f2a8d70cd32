"""Stores of cache entries: a folder, or anything that fsspec opens. An entry is bytes under a name.

A name has three parts: the folder of its kind, two letters of its key, and the key (`v2/ab/abcd…`).
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from aot_runtime.folders import ASIDE, InTheWayError, OpenFolder, opened_folder

MAX_ENTRY_BYTES = 1 << 28
"""Largest entry that is read; selftest vectors are the largest."""
_KIND = re.compile(r"v\d+|vectors-v\d+|captured-v\d+")
"""Names of folders of entries, for any version of the builder."""
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""The other parts of an entry's name. Files that are still being written have other names."""
LEFTOVER_S = 86400.0
"""Seconds after which a file that is still being written belongs to a writer that was killed."""
_GONE = (FileNotFoundError, PermissionError, InTheWayError)
"""Errors of files that are gone, or not entries."""
_TRIES = 10
"""Attempts to make a folder that others remove while it is empty."""
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")
"""Names of the modification time in fsspec's file systems."""


@dataclass(frozen=True)
class StoredFile:
    """An entry as its store lists it. size: bytes; used: the time of last use, or of writing where the store does not
    know it."""

    name: str
    size: int
    used: float


class EntryError(OSError):
    """An entry cannot be read or written, but its store works: something else is in its place, for example."""


class Store(Protocol):
    """A place that entries are stored in.

    Methods raise OSError as a rule, or whatever else the place raises, and `EntryError` for a fault of one entry.
    """

    def read(self, name: str, most: int = MAX_ENTRY_BYTES) -> bytes | None:
        """Return the content of an entry; None if there is none. For one larger than `most` bytes, raise `EntryError`
        or return the first `most` + 1."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write an entry, replacing an older one."""
        ...

    def exists(self) -> bool:
        """Tell if the store itself exists."""
        ...

    def files(self) -> Iterator[StoredFile]:
        """Yield all entries, those of older versions included, and no other files."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove entries; entries that are gone already are not an error."""
        ...


class FolderStore:
    """Files in a folder. Links in it are not followed (`aot_runtime.folders`).

    A file is written aside and renamed, so that no reader sees a part of it. Others may write and remove at the same
    time.
    """

    def __init__(self, path: Path, marks_use: bool = True):
        """`marks_use`: whether reading an entry sets its time, by which the cache is pruned."""
        self.path, self._marks_use = path, marks_use

    def read(self, name: str, most: int = MAX_ENTRY_BYTES) -> bytes | None:
        folders, _, key = name.rpartition("/")
        try:
            with opened_folder(self.path) as top:
                descriptor = _open(top, folders, key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            if size > most:
                raise EntryError(f"it has {size} bytes; the limit is {most}")
            if self._marks_use:
                with suppress(OSError):  # a cache that is only read
                    os.utime(descriptor)
            return file.read(size)

    def write(self, name: str, content: bytes) -> None:
        folders, _, key = name.rpartition("/")
        with suppress(FileExistsError):
            self.path.mkdir()
        for left in reversed(range(_TRIES)):
            try:
                with opened_folder(self.path) as top, top.below(folders, make=True, over_links=True) as folder:
                    _put(folder, key, content)
                return
            except InTheWayError as error:
                raise EntryError(f"{error.strerror}: {error.filename}") from None
            except FileNotFoundError:  # the folder was empty, and somebody removed it
                if not left:
                    raise

    def exists(self) -> bool:
        return self.path.is_dir()

    def files(self) -> Iterator[StoredFile]:
        for kind, letters, folder in self._folders():
            with suppress(*_GONE):
                for key in folder.names():
                    name = f"{kind}/{letters}/{key}"
                    status = folder.status(key)
                    if status is not None and stat.S_ISREG(status.st_mode) and is_entry(name):
                        yield StoredFile(name, status.st_size, status.st_mtime)

    def remove(self, names: Iterable[str]) -> None:
        """Remove entries, leftovers of writers that were killed, and folders that are empty then."""
        for name in names:
            folders, _, key = name.rpartition("/")
            gone = suppress(FileNotFoundError, InTheWayError)
            with gone, opened_folder(self.path) as top, top.below(folders) as folder:
                folder.remove(key)
        for _, _, folder in self._folders():
            with suppress(*_GONE):
                _remove_leftovers(folder)
        with suppress(FileNotFoundError), opened_folder(self.path) as top:
            for kind in filter(_KIND.fullmatch, top.names()):
                with suppress(*_GONE), top.below(kind) as folder:
                    for letters in folder.names():
                        folder.remove_empty(letters)
                top.remove_empty(kind)

    def _folders(self) -> Iterator[tuple[str, str, OpenFolder]]:
        """Yield (kind, letters, folder) of each folder that may have entries."""
        with suppress(FileNotFoundError), opened_folder(self.path) as top:
            for kind in filter(_KIND.fullmatch, top.names()):
                with suppress(*_GONE), top.below(kind) as middle:
                    for letters in middle.names():
                        with suppress(*_GONE), middle.below(letters) as folder:
                            yield kind, letters, folder


def _open(top: OpenFolder, folders: str, key: str) -> int:
    """Open an entry. Raises `EntryError` if something else is in its place, or it cannot be accessed."""
    try:
        with top.below(folders) as folder:
            return folder.open(key)
    except (InTheWayError, PermissionError) as error:
        raise EntryError(str(error.strerror)) from None


def _put(folder: OpenFolder, key: str, content: bytes) -> None:
    """Write an entry, replacing anything in its place except a folder that is not empty."""
    try:
        folder.write(key, [content])  # for whom the umask allows it
    except IsADirectoryError:
        if not folder.remove_empty(key):
            raise InTheWayError(folder.path / key, "a folder that is not empty") from None
        folder.write(key, [content])


def _remove_leftovers(folder: OpenFolder) -> None:
    for name in folder.names():
        status = folder.status(name) if name.startswith(ASIDE) else None
        if status is not None and stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > LEFTOVER_S:
            folder.remove(name)


class FsspecStore:
    """Files below a URL. On S3, GCS and Azure, a write is a single request, and therefore atomic."""

    def __init__(self, url: str):
        import fsspec

        self._fs, root = fsspec.url_to_fs(url)
        self._root = root.rstrip("/")

    def read(self, name: str, most: int = MAX_ENTRY_BYTES) -> bytes | None:
        try:
            content = self._beginning(self._path(name), most + 1)
        except FileNotFoundError:
            return None
        except (IsADirectoryError, NotADirectoryError) as error:
            raise EntryError(str(error)) from None
        except OSError as error:
            if error.errno == errno.EINVAL:  # the range that was asked for: it is empty
                return b""
            raise
        return content

    def _beginning(self, path: str, size: int) -> bytes:
        """Read at most the first `size` bytes of a file."""
        if "http" not in self._fs.protocol:
            content: bytes = self._fs.cat_file(path, start=0, end=size)
            return content
        parts = bytearray()  # a web server may send all of a file, or more, whatever part is asked for
        with self._fs.open(path, block_size=0, size=1) as file:  # as a stream, of which the size does not matter
            while len(parts) < size and (part := file.read(size - len(parts))):
                parts += part
        return bytes(parts)

    def write(self, name: str, content: bytes) -> None:
        try:
            self._fs.pipe_file(self._path(name), content)
        except FileNotFoundError:  # a place that has folders
            kind, letters, _ = name.split("/")
            for folder in (kind, f"{kind}/{letters}"):
                with suppress(FileExistsError):
                    self._fs.mkdir(self._path(folder), create_parents=False)  # which makes no bucket
            self._fs.pipe_file(self._path(name), content)

    def exists(self) -> bool:
        has_folders = "://" not in self._root  # what is read by HTTP has none
        return not has_folders or bool(self._fs.exists(self._root))

    def files(self) -> Iterator[StoredFile]:
        self._fs.invalidate_cache()
        try:
            kinds = self._fs.ls(self._root, detail=True)
        except FileNotFoundError:
            return
        for kind in sorted(info["name"].rstrip("/") for info in kinds if not info.get("islink")):
            if _KIND.fullmatch(kind.rpartition("/")[2]):
                for path, info in self._fs.find(kind, maxdepth=2, detail=True).items():
                    name = path.removeprefix(self._root).lstrip("/")
                    if is_entry(name) and info["type"] == "file" and not info.get("islink"):
                        yield StoredFile(name, int(info["size"] or 0), _written(info))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def is_entry(name: str) -> bool:
    """Tell whether a file's name is that of an entry, of any version."""
    kind, *parts = name.split("/")
    return bool(_KIND.fullmatch(kind)) and len(parts) == 2 and all(map(_PART.fullmatch, parts))


def open_store(url: str, readonly: bool = False) -> Store:
    """Open the store at a path or a URL that `check_url` accepts. As a rule this connects to nothing yet."""
    folder = _folder(url)
    return FsspecStore(url) if folder is None else FolderStore(folder, marks_use=not readonly)


def check_url(url: str) -> None:
    """Raise ValueError unless this is a path, or a URL that the installed packages can open."""
    if not url:
        raise ValueError("is empty; expected a folder or a URL")
    if _folder(url) is not None:
        return
    try:
        import fsspec
    except ImportError:
        raise ValueError(f"{shown(url)} needs fsspec: pip install 'aotbuild[cluster]'") from None
    try:
        for part in url.split("::"):  # a chain, as fsspec has them
            fsspec.get_filesystem_class(part.partition("://")[0])
    except (ImportError, ValueError) as error:
        raise ValueError(f"{shown(url)} cannot be opened: {error}") from None


def shown(url: str) -> str:
    """Remove the name and password from a URL."""
    return re.sub(r"://[^/@]*@", "://", url)


def _folder(url: str) -> Path | None:
    """Return the folder of a path or of a URL of a local file; None for other URLs."""
    if "://" not in url:
        return Path(url).expanduser()
    protocol, _, rest = url.partition("://")
    return Path(rest) if protocol in ("file", "local") else None


def _written(info: Mapping[str, Any]) -> float:
    """Return the time of writing, from fsspec's description of a file; now, if it has none."""
    for name in _TIMES:
        match info.get(name):
            case datetime() as moment:
                return moment.timestamp()
            case float() | int() as seconds:
                return float(seconds)
            case str() as text:
                with suppress(ValueError):
                    return datetime.fromisoformat(text).timestamp()
    return time.time()
