"""List, write and clear folders that others may modify at the same time.

The path of a top folder is trusted and may contain links. Below it, links are not followed: each folder is opened
relative to its parent's descriptor, and files are accessed relative to an open folder. So operations stay within the
top folder, even if somebody changes it meanwhile.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_BY_DESCRIPTOR = os.open in os.supports_dir_fd
"""True if files can be accessed relative to a folder's descriptor.

False on Windows, where nobody else may change a folder that is written to.
"""
_FILE = (os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK) if _BY_DESCRIPTOR else getattr(os, "O_BINARY", 0)
_FOLDER = (os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY) if _BY_DESCRIPTOR else 0
_NO_LINK = os.O_NOFOLLOW if _BY_DESCRIPTOR else 0
FOR_ALL = 0o644
"""Permissions of a file that others may read, whatever the umask."""
ASIDE = ".new-"
"""Prefix of a temporary file, which is renamed once it is complete."""


class InTheWayError(OSError):
    """A path is not the expected kind of file, but for example a link or a pipe."""

    def __init__(self, path: Path, found: str):
        super().__init__(errno.EINVAL, f"{found} is in its place", str(path))


class OpenFolder:
    """An open folder. Methods take the names of its immediate entries.

    They raise `InTheWayError` if an entry is not of the expected kind, and `OSError` for failures of the system.
    """

    def __init__(self, path: Path, descriptor: int | None):
        """Wrap an open descriptor. `path` is for messages, and for systems without descriptors of folders."""
        self.path, self._descriptor = path, descriptor

    @contextmanager
    def below(self, names: str, make: bool = False, over_links: bool = False) -> Iterator[OpenFolder]:
        """Open a subfolder by its relative path (`lib/cmake`). An empty path is this folder itself.

        Args:
            make: create missing folders.
            over_links: replace links by folders. The targets of the links are not changed.
        """
        if not names:
            yield self
            return
        name, _, rest = names.partition("/")
        descriptor = self._open(name, make, over_links)
        try:
            with OpenFolder(self.path / name, descriptor).below(rest, make, over_links) as folder:
                yield folder
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def names(self) -> list[str]:
        """Return the sorted names of all entries."""
        return sorted(os.listdir(self.path if self._descriptor is None else self._descriptor))  # noqa: PTH208

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of an entry, without following links, or None if it does not exist."""
        try:
            return os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, name: str) -> int:
        """Open a regular file for reading. Others are not opened, since devices may react to that."""
        self._check(name, stat.S_IFREG)
        descriptor = self._opened(name, os.O_RDONLY | _FILE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InTheWayError(self.path / name, "another file")
        return descriptor

    def create(self, name: str, content: Iterable[bytes], mode: int | None = None) -> int:
        """Write a new file. Returns its size.

        Args:
            mode: permissions. Defaults to the umask's.
        """
        with self._created(name, mode) as file:
            return sum(file.write(part) for part in content)

    def _created(self, name: str, mode: int | None) -> IO[bytes]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
        descriptor = os.open(self._at(name), flags, 0o666, dir_fd=self._descriptor)
        if mode is not None:
            os.chmod(descriptor if _BY_DESCRIPTOR else self._at(name), mode)  # noqa: PTH101
        return open(descriptor, "wb")  # noqa: PTH123 it is open already

    def create_all(self, files: Mapping[str, bytes], mode: int | None = None) -> None:
        """Write new files, in subfolders given by their names (`code/0123.hsaco`)."""
        for file, content in files.items():
            folders, _, name = file.rpartition("/")
            with self.below(folders, make=True) as folder:
                folder.create(name, [content], mode)

    def write(self, name: str, content: Iterable[bytes], mode: int | None = None) -> int:
        """Write or replace a file atomically, see `aside`. Returns its size."""
        with self.aside(name, mode) as file:
            return sum(file.write(part) for part in content)

    @contextmanager
    def aside(self, name: str, mode: int | None = None) -> Iterator[IO[bytes]]:
        """Open a temporary file that atomically replaces the file or link `name` when the context ends without error.

        `mode` is as for `create`.
        """
        target = self._at(name)
        aside = f"{ASIDE}{secrets.token_hex(8)}"
        try:
            with self._created(aside, mode) as file:
                yield file
            os.replace(self._at(aside), target, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            self.remove(aside)
            raise

    def move(self, name: str, other: OpenFolder) -> None:
        """Move a file to another folder on the same file system, replacing any file of that name."""
        os.replace(self._at(name), other._at(name), src_dir_fd=self._descriptor, dst_dir_fd=other._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file or link, if it exists."""
        try:
            os.unlink(self._at(name), dir_fd=self._descriptor)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            raise InTheWayError(self.path / name, "a folder") from None

    def remove_empty(self, name: str) -> bool:
        """Remove a folder if it is empty. Returns True if it was removed. Links are left alone."""
        try:
            os.rmdir(self._at(name), dir_fd=self._descriptor)
        except OSError:
            return False
        return True

    def remove_tree(self, name: str) -> None:
        """Remove a folder with its contents, ignoring errors. A link is removed itself."""
        status = self.status(name)
        if status is not None and stat.S_ISLNK(status.st_mode):
            self.remove(name)
        elif status is not None:
            shutil.rmtree(self._at(name), ignore_errors=True, dir_fd=self._descriptor)

    def _at(self, name: str) -> str:
        """Return the path to pass to the system along with the descriptor. Raises OSError for an invalid name."""
        if name in ("", ".", "..") or "/" in name or "\0" in name or os.sep in name:
            raise OSError(errno.EINVAL, "no name of a file", name)
        return name if self._descriptor is not None else str(self.path / name)

    def _open(self, name: str, make: bool, over_links: bool) -> int | None:
        """Open a subfolder's descriptor, or return None if descriptors are not supported."""
        status = self.status(name)
        if over_links and status is not None and stat.S_ISLNK(status.st_mode):
            self.remove(name)
            status = None
        if make and status is None:
            with suppress(FileExistsError):
                os.mkdir(self._at(name), dir_fd=self._descriptor)
        self._check(name, stat.S_IFDIR)
        if self._descriptor is None:
            return None
        return self._opened(name, _FOLDER | _NO_LINK)

    def _opened(self, name: str, flags: int) -> int:
        """Open an entry that was checked before. Raises `InTheWayError` if it was replaced by a link meanwhile."""
        try:
            return os.open(self._at(name), flags, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise InTheWayError(self.path / name, "another file") from None

    def _check(self, name: str, wanted: int) -> None:
        mode = os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False).st_mode
        if stat.S_IFMT(mode) != wanted:
            raise InTheWayError(self.path / name, _KINDS.get(stat.S_IFMT(mode), "a device"))


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


@contextmanager
def opened_folder(path: Path) -> Iterator[OpenFolder]:
    """Open the folder at a path, following links."""
    if not _BY_DESCRIPTOR:
        yield OpenFolder(path, None)
        return
    descriptor = os.open(path, _FOLDER)
    try:
        yield OpenFolder(path, descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: Iterable[bytes], mode: int | None = None) -> int:
    """Write or replace the file at a path atomically. See `OpenFolder.write`."""
    with opened_folder(path.parent) as folder:
        return folder.write(path.name, content, mode)
