"""A bundle in one file: a zip whose entries are stored and begin at multiples of a page, in one layout only.

What entries there are, with their sizes and checksums, decides every other byte. So a reader makes the directory
anew and compares it, and an archive with anything else in it (a comment, a gap, another order, a name twice, a size
that is not so) is refused. Entries are read where they are, each when it is asked for. They are read and not mapped,
since bytes that were checked must stay what they are, and a mapped file that becomes shorter ends the process.

A code object may be compressed: then the entry is its name with `.zst`, a frame of zstd. Who reads the archive sees the
file without that, and no more of its content than asked for.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from aot_runtime.contract.records import CODE_FOLDER, INDEX
from aot_runtime.errors import BundleError

from .zstd import compress, decompress, longest_frame

SUFFIX = ".aotb"
PAGE = 4096
MAX_BYTES = 2**32 - 2
"""Size of an archive; more would need another form of zip."""
MAX_ENTRIES = 2**16 - 2
_MAX_NAME = 255
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_COMPRESSED = ".zst"
_IS_COMPRESSED = re.compile(rf"{CODE_FOLDER}/[^/]+\{_COMPRESSED}")
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_PADDING = struct.Struct("<3H")
_PADDING_ID = 0xD935
"""The extra field that Android's zipalign pads with: its length, the alignment, zeros."""
_VERSION, _UNIX = 20, 3 << 8
_DATE = 1 << 5 | 1
"""1 January 1980, the first day that a zip can say: nothing of an archive tells when it was made."""
_MODE = (stat.S_IFREG | 0o644) << 16
MAGIC = b"PK\x03\x04"


class Entry(NamedTuple):
    """A file in an archive."""

    name: str
    crc: int
    size: int


def header(entry: Entry, offset: int) -> bytes:
    """What stands before the data of an entry at an offset: so much that the data begin at a page."""
    name = entry.name.encode("ascii")
    padding = -(offset + _LOCAL.size + len(name) + _PADDING.size) % PAGE
    fields = (MAGIC, _VERSION, 0, 0, 0, _DATE, entry.crc, entry.size, entry.size, len(name), _PADDING.size + padding)
    return _LOCAL.pack(*fields) + name + _PADDING.pack(_PADDING_ID, 2 + padding, PAGE) + bytes(padding)


def directory(entries: Sequence[Entry]) -> tuple[list[int], bytes]:
    """(the offset of each entry, all that follows the last one). Raises `BundleError` where there is too much."""
    offsets, records, end = [], [], 0
    for entry in entries:
        name = entry.name.encode("ascii")
        offsets.append(end)
        sizes = (entry.crc, entry.size, entry.size, len(name))
        fields = (b"PK\x01\x02", _VERSION | _UNIX, _VERSION, 0, 0, 0, _DATE, *sizes, 0, 0, 0, 0, _MODE, end)
        records.append(_CENTRAL.pack(*fields) + name)
        unpadded = end + _LOCAL.size + len(name) + _PADDING.size
        end = unpadded + -unpadded % PAGE + entry.size
        if end > MAX_BYTES or len(offsets) > MAX_ENTRIES:
            raise BundleError(f"an archive has at most {MAX_BYTES} bytes and {MAX_ENTRIES} files")
    listed = b"".join(records)
    count = len(offsets)
    return offsets, listed + _END.pack(b"PK\x05\x06", 0, 0, count, count, len(listed), end, 0)


def in_order(names: Iterable[str]) -> list[str]:
    """The order of entries: the index, so that it is read first, and then by name."""
    ordered = sorted(names)
    if INDEX in ordered:
        ordered.remove(INDEX)
        ordered.insert(0, INDEX)
    return ordered


def parts(files: Mapping[str, bytes]) -> Iterator[bytes]:
    """The bytes of an archive, in parts: the same files give the same bytes. Raises `BundleError`."""
    names = in_order(files)
    for name in names:
        _check_name(name)
    entries = [Entry(name, zlib.crc32(files[name]), len(files[name])) for name in names]
    offsets, end = directory(entries)
    for entry, offset in zip(entries, offsets, strict=True):
        yield header(entry, offset)
        yield files[entry.name]
    yield end


def compressed(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files with each code object compressed of which the archive has a page less then.

    Raises `BundleError` where the library is missing.
    """
    stored = {}
    for name, content in files.items():
        short = f"{name}{_COMPRESSED}"
        frame = compress(content) if _IS_COMPRESSED.fullmatch(short) else content
        saves = -(-len(frame) // PAGE) < -(-len(content) // PAGE)
        stored[short if saves else name] = frame if saves else content
    return stored


def _plain(name: str) -> str:
    """The file that an entry has the content of."""
    return name.removesuffix(_COMPRESSED) if _IS_COMPRESSED.fullmatch(name) else name


def _check_name(name: str) -> None:
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise BundleError(f"{name[:_MAX_NAME]!r} is no name of a file in an archive")


class _File:
    """A regular file that is open, for as long as this object is there. Threads may share it."""

    def __init__(self, path: Path):
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self._lock = threading.Lock()
        if not stat.S_ISREG(self.status().st_mode):
            raise OSError(errno.EINVAL, "that is no regular file")

    def status(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def read(self, start: int, size: int) -> bytes:
        """What is there of so many bytes."""
        read = []
        while size > 0:
            part = self._read_some(start, size)
            if not part:
                break
            read.append(part)
            start, size = start + len(part), size - len(part)
        return b"".join(read)

    def _read_some(self, start: int, size: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size, start)
        with self._lock:  # Windows
            os.lseek(self._descriptor, start, os.SEEK_SET)
            return os.read(self._descriptor, size)


class Archive:
    """An archive that is open, for as long as this object is there: a file, or an entry of another archive.

    Attributes:
        path: what it is called in messages.
        arch: None, see `Source`.

    Raises:
        BundleError: it is no archive of a bundle.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, inside: tuple[_File, int, int] | None = None):
        """inside: the file that it is in, where it begins there, and its size; by default the file is all of it."""
        self.path, self.arch = path, None
        if inside is None:
            file = _File(path)
            inside = file, 0, file.status().st_size
        self._file, self._start, size = inside
        try:
            self._entries = self._read_directory(size)
        except BundleError as error:
            raise BundleError(f"{path}: {error}") from None

    def _read_directory(self, size: int) -> dict[str, tuple[Entry, int]]:
        """File → its entry, and where that is."""
        end = self._read(max(size - _END.size, 0), _END.size)
        if len(end) < _END.size or size > MAX_BYTES or end[:4] != b"PK\x05\x06":
            raise BundleError("the archive has no end: it is truncated, or something follows it")
        *_, length, start, _ = _END.unpack(end)
        if start + length + _END.size != size or length > MAX_ENTRIES * (_CENTRAL.size + _MAX_NAME):
            raise BundleError("the archive's directory is not where its end says")
        stored = self._read(start, length + _END.size)
        entries = list(_listed(stored[:length]))
        names = [entry.name for entry in entries]
        if names != in_order(set(names)) or len({_plain(name) for name in names}) < len(names):
            raise BundleError("the archive's entries are not in order, or one is there twice")
        offsets, expected = directory(entries)
        if stored != expected:
            raise BundleError("the archive is not laid out as `aotbundle pack` does it")
        return {_plain(entry.name): (entry, offset) for entry, offset in zip(entries, offsets, strict=True)}

    def _read(self, start: int, size: int) -> bytes:
        return self._file.read(self._start + start, size)

    def names(self, folder: str = "") -> list[str]:
        """The files, or those below a folder."""
        return [name for name in self._entries if not folder or name.startswith(f"{folder}/")]

    @property
    def is_compressed(self) -> bool:
        """Whether some of its code objects are."""
        return any(entry.name != name for name, (entry, _) in self._entries.items())

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read(self, name: str, limit: int) -> bytes:
        """The content of a file: of a longer one, the first `limit` + 1 bytes. Raises `BundleError`, `OSError`."""
        entry, offset = self._entry(name)
        if entry.name == name:
            return self._content(entry, offset, limit)
        frame = self._content(entry, offset, longest_frame(limit + 1))
        try:
            return decompress(frame, limit)
        except BundleError as error:
            raise BundleError(f"{self.path}: {entry.name}: {error}") from None

    def stored(self) -> dict[str, bytes]:
        """All entries as they are in the archive."""
        return {entry.name: self._content(entry, offset, MAX_BYTES) for entry, offset in self._entries.values()}

    def _content(self, entry: Entry, offset: int, limit: int) -> bytes:
        before = header(entry, offset)
        found = self._read(offset, len(before) + min(entry.size, limit + 1))
        content = found[len(before) :]
        if not found.startswith(before):
            raise self._misplaced(entry.name)
        if entry.size <= limit and (len(content), zlib.crc32(content)) != (entry.size, entry.crc):
            message = f"{entry.name} was altered: its checksum is not what the archive's directory says"
            raise BundleError(f"{self.path}: {message}")
        return content

    def opened(self, name: str, path: Path) -> Archive:
        """An entry that is an archive itself, called `path` in messages; no more of it is read than what opening reads.
        Raises as `read` does."""
        entry, offset = self._entry(name)
        before = header(entry, offset)
        if self._read(offset, len(before)) != before:
            raise self._misplaced(name)
        return Archive(path, (self._file, self._start + offset + len(before), entry.size))

    def _entry(self, name: str) -> tuple[Entry, int]:
        if name not in self._entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._entries[name]

    def _misplaced(self, name: str) -> BundleError:
        return BundleError(f"{self.path}: {name} is not where the archive's directory says")

    def writable_by_all(self, names: Iterable[str]) -> Iterator[str]:
        """`.` where every user of the machine may write to the archive."""
        if self._file.status().st_mode & stat.S_IWOTH:
            yield "."


def _listed(listed: bytes) -> Iterator[Entry]:
    """The entries that a directory has."""
    at = 0
    while at < len(listed):
        if len(listed) - at < _CENTRAL.size:
            raise BundleError("the archive's directory is truncated")
        fields = _CENTRAL.unpack_from(listed, at)
        crc, size, length = fields[7], fields[8], fields[10]
        at += _CENTRAL.size
        name = listed[at : at + length].decode("ascii", "replace")
        _check_name(name)
        at += length
        yield Entry(name, crc, size)
