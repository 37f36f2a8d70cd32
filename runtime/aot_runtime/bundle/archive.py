"""A bundle in one file: a zip whose entries are stored and begin at multiples of a page, in one layout only.

What entries there are, with their sizes and checksums, decides every other byte. A reader compares each with what it
has to be, and an archive with anything else in it (a comment, a gap, another order, a name twice, a size that is not
so) is refused. Entries are read where they are, each when it is asked for. They are read and not mapped,
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
_LISTED = struct.Struct("<16s3IH12sI")
"""An entry in the directory: what is always the same, checksum, size, size, length of the name, the same, offset."""
_END = struct.Struct("<4s4H2IH")
_PADDING = struct.Struct("<3H")
_PADDING_ID = 0xD935
"""The extra field that Android's zipalign pads with: its length, the alignment, zeros."""
_VERSION, _UNIX = 20, 3 << 8
_DATE = 1 << 5 | 1
"""1 January 1980, the first day that a zip can say: nothing of an archive tells when it was made."""
_MODE = (stat.S_IFREG | 0o644) << 16
_BEFORE = struct.pack("<4s6H", b"PK\x01\x02", _VERSION | _UNIX, _VERSION, 0, 0, 0, _DATE)
_AFTER = struct.pack("<4HI", 0, 0, 0, 0, _MODE)
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
        records.append(_LISTED.pack(_BEFORE, entry.crc, entry.size, entry.size, len(name), _AFTER, end) + name)
        end = _end_of(end, len(name), entry.size)
        if end > MAX_BYTES or len(offsets) > MAX_ENTRIES:
            raise BundleError(f"an archive has at most {MAX_BYTES} bytes and {MAX_ENTRIES} files")
    listed = b"".join(records)
    return offsets, listed + _end(len(offsets), len(listed), end)


def _end_of(offset: int, name_length: int, size: int) -> int:
    """Where an entry ends that begins at an offset."""
    unpadded = offset + _LOCAL.size + name_length + _PADDING.size
    return unpadded + -unpadded % PAGE + size


def _end(count: int, length: int, start: int) -> bytes:
    """What follows the directory, which has so many entries and bytes, and begins there."""
    return _END.pack(b"PK\x05\x06", 0, 0, count, count, length, start, 0)


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
    is_compressed = name.endswith(_COMPRESSED) and _IS_COMPRESSED.fullmatch(name)
    return name.removesuffix(_COMPRESSED) if is_compressed else name


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

    def _read_directory(self, size: int) -> dict[str, tuple[str, int, int, int]]:
        """File → the name of its entry, and the entry's checksum, size and offset."""
        end = self._read(max(size - _END.size, 0), _END.size)
        if len(end) < _END.size or size > MAX_BYTES or end[:4] != b"PK\x05\x06":
            raise BundleError("the archive has no end: it is truncated, or something follows it")
        *_, length, start, _ = _END.unpack(end)
        if start + length + _END.size != size or length > MAX_ENTRIES * (_LISTED.size + _MAX_NAME):
            raise BundleError("the archive's directory is not where its end says")
        entries, ended = _listed(self._read(start, length))
        if ended != start or end != _end(len(entries), length, start):
            raise BundleError(_OTHER_LAYOUT)
        files = {_plain(entry[0]): entry for entry in entries}
        if len(files) != len(entries):
            raise BundleError(_DISORDER)
        return files

    def _read(self, start: int, size: int) -> bytes:
        return self._file.read(self._start + start, size)

    def names(self, folder: str = "") -> list[str]:
        """The files, or those below a folder."""
        return [name for name in self._entries if not folder or name.startswith(f"{folder}/")]

    @property
    def is_compressed(self) -> bool:
        """Whether some of its code objects are."""
        return any(entry[0] != name for name, entry in self._entries.items())

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
        entries = map(self._entry, self._entries)
        return {entry.name: self._content(entry, offset, MAX_BYTES) for entry, offset in entries}

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
        stored, crc, size, offset = self._entries[name]
        return Entry(stored, crc, size), offset

    def _misplaced(self, name: str) -> BundleError:
        return BundleError(f"{self.path}: {name} is not where the archive's directory says")

    def writable_by_all(self, names: Iterable[str]) -> Iterator[str]:
        """`.` where every user of the machine may write to the archive."""
        if self._file.status().st_mode & stat.S_IWOTH:
            yield "."


_DISORDER = "the archive's entries are not in order, or one is there twice"
_OTHER_LAYOUT = "the archive is not laid out as `aotbundle pack` does it"


def _listed(listed: bytes) -> tuple[list[tuple[str, int, int, int]], int]:
    """(name, checksum, size and offset of the entries that a directory has; where the last one ends).

    Raises `BundleError` for a directory that is not as `directory` makes it.
    """
    entries: list[tuple[str, int, int, int]] = []
    at, end, is_ours = 0, 0, True
    while at < len(listed):
        if len(listed) - at < _LISTED.size:
            raise BundleError("the archive's directory is truncated")
        before, crc, size, again, length, after, offset = _LISTED.unpack_from(listed, at)
        at += _LISTED.size + length
        name = listed[at - length : at].decode("ascii", "replace")
        _check_name(name)
        is_ours = is_ours and before == _BEFORE and after == _AFTER and again == size and offset == end
        entries.append((name, crc, size, offset))
        end = _end_of(end, length, size)
    names = [name for name, *_ in entries]
    if names != in_order(set(names)):
        raise BundleError(_DISORDER)
    if not is_ours or at != len(listed):
        raise BundleError(_OTHER_LAYOUT)
    return entries, end
