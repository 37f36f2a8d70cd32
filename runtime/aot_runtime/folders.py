"""Folders that are listed, written to and cleared, whatever others put into them.

The path of a folder is the word of whoever gives it, and may lead through links. Below it nothing does: each folder is
opened in the one above it by its descriptor and not through a link, and files are named in a folder that is open. So
what is listed, read, written or removed lies in the folder that was given, also where somebody changes it meanwhile.
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
"""True where a folder can be opened, and files be named in it: not on Windows, where nobody else may change a folder
that is written to."""
_FILE = (os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK) if _BY_DESCRIPTOR else getattr(os, "O_BINARY", 0)
_FOLDER = (os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY) if _BY_DESCRIPTOR else 0
_NO_LINK = os.O_NOFOLLOW if _BY_DESCRIPTOR else 0
FOR_ALL = 0o644
"""Permissions of a file that others may read, whatever the umask says."""
ASIDE = ".new-"
"""The beginning of a file's name while it is written; it is renamed once it is whole."""


class InTheWayError(OSError):
    """Something else lies where a file or a folder was looked for: a link, say, or a pipe."""

    def __init__(self, path: Path, found: str):
        super().__init__(errno.EINVAL, f"{found} is in its place", str(path))


class OpenFolder:
    """A folder that is open. The names that methods take are those of what lies in it, each of one part.

    Where something else than the named kind of file is there, they raise `InTheWayError`, and `OSError` where the
    system refuses something.
    """

    def __init__(self, path: Path, descriptor: int | None):
        """`path`: for messages, and where there are no descriptors."""
        self.path, self._descriptor = path, descriptor

    @contextmanager
    def below(self, names: str, make: bool = False, over_links: bool = False) -> Iterator[OpenFolder]:
        """Open a folder within, by the names on the way to it (`lib/cmake`); an empty text is this folder itself.

        Args:
            make: make folders that are not there.
            over_links: remove links in their place first; nothing that these lead to changes.
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
        """The names of all that is in it, in order."""
        return sorted(os.listdir(self.path if self._descriptor is None else self._descriptor))  # noqa: PTH208

    def status(self, name: str) -> os.stat_result | None:
        """The status of a file or folder, of a link its own; None where nothing has that name."""
        try:
            return os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, name: str) -> int:
        """A descriptor that reads a regular file. What is something else is not opened: a device may act on that."""
        self._check(name, stat.S_IFREG)
        descriptor = self._opened(name, os.O_RDONLY | _FILE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InTheWayError(self.path / name, "another file")
        return descriptor

    def create(self, name: str, content: Iterable[bytes], mode: int | None = None) -> int:
        """Write a file that is not there yet. Returns its size.

        Args:
            mode: its permissions; None: as the umask has them.
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
        """Write files that are not there yet, in folders within as their names say (`code/0123.hsaco`)."""
        for file, content in files.items():
            folders, _, name = file.rpartition("/")
            with self.below(folders, make=True) as folder:
                folder.create(name, [content], mode)

    def write(self, name: str, content: Iterable[bytes], mode: int | None = None) -> int:
        """Write a file as `aside` does. Returns its size; `mode` as for `create`."""
        with self.aside(name, mode) as file:
            return sum(file.write(part) for part in content)

    @contextmanager
    def aside(self, name: str, mode: int | None = None) -> Iterator[IO[bytes]]:
        """Open a file that is put in the place of what has its name, be that a link, when the context ends without an
        error. Nobody sees a part of it. `mode` as for `create`."""
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
        """Put a file into another folder on the same disk, in the place of what has its name there."""
        os.replace(self._at(name), other._at(name), src_dir_fd=self._descriptor, dst_dir_fd=other._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file or a link; one that is gone already is no error."""
        try:
            os.unlink(self._at(name), dir_fd=self._descriptor)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            raise InTheWayError(self.path / name, "a folder") from None

    def remove_empty(self, name: str) -> bool:
        """Remove a folder that is empty. Returns whether it was; a link is none."""
        try:
            os.rmdir(self._at(name), dir_fd=self._descriptor)
        except OSError:
            return False
        return True

    def remove_tree(self, name: str) -> None:
        """Remove a folder with all that is in it, as far as that is possible; of a link the link itself."""
        status = self.status(name)
        if status is not None and stat.S_ISLNK(status.st_mode):
            self.remove(name)
        elif status is not None:
            shutil.rmtree(self._at(name), ignore_errors=True, dir_fd=self._descriptor)

    def _at(self, name: str) -> str:
        """Give the path of a name for the system, beside the descriptor. Raises OSError for what is no name."""
        if name in ("", ".", "..") or "/" in name or "\0" in name or os.sep in name:
            raise OSError(errno.EINVAL, "no name of a file", name)
        return name if self._descriptor is not None else str(self.path / name)

    def _open(self, name: str, make: bool, over_links: bool) -> int | None:
        """The descriptor of a folder within; None where there are none."""
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
        """Open what was looked at before; where somebody has put a link in its place, that is in the way."""
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
    """Open the folder that a path names, through whatever links that has."""
    if not _BY_DESCRIPTOR:
        yield OpenFolder(path, None)
        return
    descriptor = os.open(path, _FOLDER)
    try:
        yield OpenFolder(path, descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: Iterable[bytes], mode: int | None = None) -> int:
    """Write the file of a path, as `OpenFolder.write` does."""
    with opened_folder(path.parent) as folder:
        return folder.write(path.name, content, mode)
