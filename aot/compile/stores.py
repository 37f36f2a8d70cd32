"""Places that keep the entries of a cache: a folder, and anything that fsspec opens. An entry is bytes under a name.

A name has three parts: the folder of its kind, two letters of its key, and the key (`v2/ab/abcd…`).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

MAX_ENTRY_BYTES = 1 << 28
"""Size of an entry, of which the largest are selftest vectors."""
_KIND = re.compile(r"v\d+|vectors-v\d+")
"""Of folders that any version of the builder makes."""
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")
"""What file systems of fsspec call the time at which a file was written."""


@dataclass(frozen=True)
class StoredFile:
    """An entry as its store lists it. size: bytes; used: when it was last used, seconds since the epoch. Where a store
    does not know that, it is when the entry was written."""

    name: str
    size: int
    used: float


class Store(Protocol):
    """Every method raises whatever its place does, OSError as a rule."""

    def read(self, name: str, most: int = MAX_ENTRY_BYTES) -> bytes | None:
        """The content of an entry; None where there is none. Of one with more bytes than `most`, an error or a part."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write an entry, over an older one."""
        ...

    def exists(self) -> bool:
        """Whether the place itself is there."""
        ...

    def files(self) -> Iterator[StoredFile]:
        """All entries, of older versions too. Other files are none of the cache."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove entries; those that are gone already are no error."""
        ...


class FolderStore:
    """Files below a folder. A file is written aside and renamed, so that nobody ever reads a part of it."""

    def __init__(self, path: Path, marks_use: bool = True):
        """`marks_use`: whether reading an entry sets its time, by which the cache is pruned."""
        self.path, self._marks_use = path, marks_use

    def read(self, name: str, most: int = MAX_ENTRY_BYTES) -> bytes | None:
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for a pipe's writer
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            if self._marks_use:
                with suppress(OSError):  # a cache that is only read
                    os.utime(descriptor)
            return file.read(status.st_size)

    def write(self, name: str, content: bytes) -> None:
        path = self.path / name
        try:
            path.parent.mkdir(exist_ok=True)
        except FileNotFoundError:
            for folder in (self.path, path.parent.parent, path.parent):
                folder.mkdir(exist_ok=True)
        aside = path.with_name(f".new-{secrets.token_hex(8)}")
        try:
            with aside.open("xb") as file:  # for whom the umask allows it, unlike what tempfile makes
                file.write(content)
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def exists(self) -> bool:
        return self.path.is_dir()

    def files(self) -> Iterator[StoredFile]:
        for folder in self._kinds():
            for path in sorted(folder.glob("*/*")):
                status = os.lstat(path)
                if not path.is_dir():
                    yield StoredFile(str(path.relative_to(self.path)), status.st_size, status.st_mtime)

    def remove(self, names: Iterable[str]) -> None:
        """Remove entries, and folders that are empty then."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        for folder in self._kinds():
            for below in (*folder.glob("*/"), folder):
                if not any(below.iterdir()):
                    below.rmdir()

    def _kinds(self) -> list[Path]:
        return [path for path in sorted(self.path.glob("*/")) if _KIND.fullmatch(path.name) and not path.is_symlink()]


class FsspecStore:
    """Files below a URL. A write is one request where the place has such (S3, GCS, Azure), and atomic then."""

    def __init__(self, url: str):
        import fsspec

        self._fs, root = fsspec.url_to_fs(url)
        self._root = root.rstrip("/")

    def read(self, name: str, most: int = MAX_ENTRY_BYTES) -> bytes | None:
        try:
            content: bytes = self._fs.cat_file(self._path(name), start=0, end=most + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:  # the range that was asked for: it is empty
                return b""
            raise
        return content

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
            kinds = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return
        for kind in sorted(path.rstrip("/") for path in kinds):
            if _KIND.fullmatch(kind.rpartition("/")[2]):
                for path, info in self._fs.find(kind, maxdepth=2, detail=True).items():
                    yield StoredFile(path.removeprefix(self._root).lstrip("/"), info["size"] or 0, _written(info))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def open_store(url: str, readonly: bool = False) -> Store:
    """The store at a path or a URL that `check_url` takes. Nothing is connected to yet, as a rule."""
    folder = _folder(url)
    return FsspecStore(url) if folder is None else FolderStore(folder, marks_use=not readonly)


def check_url(url: str) -> None:
    """Raises ValueError for what is neither a path nor a URL that the installed packages can open."""
    if not url:
        raise ValueError("is empty; a folder or a URL is needed")
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
    """A URL without the name and password that it may have."""
    return re.sub(r"://[^/@]*@", "://", url)


def _folder(url: str) -> Path | None:
    """The folder that a path or a URL of a local file stands for; None for other URLs."""
    if "://" not in url:
        return Path(url).expanduser()
    protocol, _, rest = url.partition("://")
    return Path(rest) if protocol in ("file", "local") else None


def _written(info: Mapping[str, Any]) -> float:
    """When a file was written, of what a file system of fsspec says about it; now, where it does not say it."""
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
