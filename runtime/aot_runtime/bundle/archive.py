"""A bundle in one file: a zip archive in a canonical layout, with stored, page-aligned entries.

The names, sizes, checksums and contents of the entries determine every byte of the archive. A reader verifies this and
rejects anything else: a comment, a gap, another order, a duplicate name or a wrong size. Entries are read on demand,
from where they are. They are not memory-mapped: checked bytes must not change, and a mapped file that is truncated
crashes the process.

A code object may be compressed. Its entry then has the suffix `.zst` and is a zstd frame. Readers see the plain file,
and only as many bytes as requested are decompressed.
"""

from __future__ import annotations

import errno
import operator
import os
import re
import stat
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from aot_runtime.contract.records import CODE_FOLDER, INDEX
from aot_runtime.errors import BundleError
from aot_runtime.regular_files import open_regular

from .files import ARCHIVE_MAGIC
from .zstd import compress, decompress, longest_frame

PAGE = 4096
MAX_BYTES = 2**32 - 2
"""Maximum size of an archive, in bytes; larger ones would need Zip64."""
MAX_ENTRIES = 2**16 - 2
CHUNK_BYTES = 1 << 20
"""Bytes to copy at a time."""
_MAX_NAME = 255
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*+(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*+)*+")
_COMPRESSED = ".zst"
_IS_COMPRESSED = re.compile(rf"{CODE_FOLDER}/[^/]+\{_COMPRESSED}")
_LOCAL = struct.Struct("<4s5H3I2H")
_LISTED = struct.Struct("<16s3IH12sI")
"""A directory entry: constant, checksum, size, size, name length, constant, offset."""
_END = struct.Struct("<4s4H2IH")
_PADDING = struct.Struct("<3H")
_PADDING_ID = 0xD935
"""Extra field for padding, as Android's zipalign uses it: its length, the alignment, zeros."""
_VERSION, _UNIX = 20, 3 << 8
_DATE = 1 << 5 | 1
"""1 January 1980, the earliest date in a zip. It makes archives reproducible."""
_MODE = (stat.S_IFREG | 0o644) << 16
_BEFORE = struct.pack("<4s6H", b"PK\x01\x02", _VERSION | _UNIX, _VERSION, 0, 0, 0, _DATE)
_AFTER = struct.pack("<4HI", 0, 0, 0, 0, _MODE)


class Entry(NamedTuple):
    """A file in an archive."""

    name: str
    crc: int
    size: int


class Content(NamedTuple):
    """Content that may be too large for memory: size, checksum, and a function that yields its bytes."""

    size: int
    crc: int
    chunks: Callable[[], Iterable[bytes]]


_Kept = TypeVar("_Kept", bound="bytes | Content", covariant=True)


class Files(Mapping[str, _Kept]):
    """Files by name. Each is read on access and not cached."""

    def __init__(self, names: Iterable[str], read: Callable[[str], _Kept]):
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> _Kept:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return self.keys() == other.keys() and all(self[name] == other[name] for name in self)

    __hash__ = None  # type: ignore[assignment]


def header(entry: Entry, offset: int) -> bytes:
    """Return the local header of an entry at an offset, padded to align the data to a page."""
    name = entry.name.encode("ascii")
    padding = -(offset + _LOCAL.size + len(name) + _PADDING.size) % PAGE
    extra = _PADDING.size + padding
    fields = (_VERSION, 0, 0, 0, _DATE, entry.crc, entry.size, entry.size, len(name), extra)
    return _LOCAL.pack(ARCHIVE_MAGIC, *fields) + name + _PADDING.pack(_PADDING_ID, 2 + padding, PAGE) + bytes(padding)


def directory(entries: Sequence[Entry]) -> tuple[list[int], bytes]:
    """Return (offset of each entry, bytes after the last one). Raises `BundleError` if a limit is exceeded."""
    offsets, records, end = [], [], 0
    for entry in entries:
        name = entry.name.encode("ascii")
        offsets.append(end)
        records.append(_LISTED.pack(_BEFORE, entry.crc, entry.size, entry.size, len(name), _AFTER, end) + name)
        end = _end_of(end, len(name), entry.size)
        _check_size(end, len(offsets))
    listed = b"".join(records)
    return offsets, listed + _end(len(offsets), len(listed), end)


def _check_size(end: int, count: int) -> None:
    if end > MAX_BYTES or count > MAX_ENTRIES:
        raise BundleError(f"an archive has at most {MAX_BYTES} bytes and {MAX_ENTRIES} files")


def _end_of(offset: int, name_length: int, size: int) -> int:
    unpadded = offset + _LOCAL.size + name_length + _PADDING.size
    return unpadded + -unpadded % PAGE + size


def _end(count: int, length: int, start: int) -> bytes:
    """Return the end record of a directory with `count` entries in `length` bytes at `start`."""
    return _END.pack(b"PK\x05\x06", 0, 0, count, count, length, start, 0)


def in_order(names: Iterable[str]) -> list[str]:
    """Sort entries by name, with the index first."""
    ordered = sorted(names)
    if INDEX in ordered:
        ordered.remove(INDEX)
        ordered.insert(0, INDEX)
    return ordered


def parts(files: Mapping[str, bytes | Content], compress_code: bool = False) -> Iterator[bytes]:
    """Yield the bytes of an archive of files. The result is reproducible. Files are read one at a time.

    Args:
        compress_code: compress the code objects that get shorter by a page at least.

    Raises:
        BundleError: a name is invalid, a limit is exceeded, or the library for compression is missing.
    """
    names = in_order(files)
    _check_names(names)
    _check_together(names)
    entries: list[Entry] = []
    end = 0
    for name in names:
        entry, chunks = _entry_of(name, files[name], compress_code)
        entries.append(entry)
        before = header(entry, end)
        end += len(before) + entry.size
        _check_size(end, len(entries))
        yield before
        yield from chunks()
        del chunks  # free the bytes before reading the next file
    yield directory(entries)[1]


def _entry_of(name: str, content: bytes | Content, compress_code: bool) -> tuple[Entry, Callable[[], Iterable[bytes]]]:
    """Return (entry of a file, function that yields its bytes)."""
    if isinstance(content, Content):
        return Entry(name, content.crc, content.size), content.chunks
    if compress_code:
        ((name, content),) = compressed({name: content}).items()
    return Entry(name, zlib.crc32(content), len(content)), lambda: (content,)


def compressed(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Compress the code objects that get shorter by a page at least. Other files are returned unchanged.

    Raises `BundleError` if the library is missing.
    """
    stored = {}
    for name, content in files.items():
        short = f"{name}{_COMPRESSED}"
        frame = compress(content) if _IS_COMPRESSED.fullmatch(short) else content
        saves = -(-len(frame) // PAGE) < -(-len(content) // PAGE)
        stored[short if saves else name] = frame if saves else content
    return stored


def _plain(name: str) -> str:
    is_compressed = name.endswith(_COMPRESSED) and _IS_COMPRESSED.fullmatch(name)
    return name.removesuffix(_COMPRESSED) if is_compressed else name


def _check_names(names: Collection[str]) -> None:
    if not all(map(_NAME.fullmatch, names)) or max(map(len, names), default=0) > _MAX_NAME:
        wrong = next(name for name in names if len(name) > _MAX_NAME or not _NAME.fullmatch(name))
        raise BundleError(f"{wrong[:_MAX_NAME]!r} is not a valid file name in an archive")


def _check_together(names: Collection[str]) -> None:
    """Raise `BundleError` for names that cannot coexist in a folder.

    Either one is a parent folder of another, or two differ by case only, which some file systems ignore.
    """
    folders: set[str] = set()
    for parent in {name.rpartition("/")[0] for name in names}:
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    if len({*map(str.lower, names), *map(str.lower, folders)}) == len(names) + len(folders):
        return
    seen: dict[str, str] = {}
    for place in (*sorted(folders), *names):
        if (other := seen.get(place.lower())) is not None:
            raise BundleError(f"{other!r} and {place!r} are names that one folder cannot have together")
        seen[place.lower()] = place


class _File:
    """An open regular file, closed with the object. Thread-safe."""

    def __init__(self, path: Path):
        self._descriptor = open_regular(path)
        weakref.finalize(self, os.close, self._descriptor)
        self._lock = threading.Lock()

    def status(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def read(self, start: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer at the end of the file."""
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
    """An open archive, in a file or in an entry of another archive. The file is closed with the object.

    Attributes:
        path: its name in messages.
        arch: None, see `Source`.

    Raises:
        BundleError: the file is not an archive of a bundle.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, inside: tuple[_File, int, int] | None = None):
        """Open an archive. `inside` is (file, offset, size) of one within another file. Defaults to a whole file."""
        self.path, self.arch = path, None
        if inside is None:
            file = _File(path)
            inside = file, 0, file.status().st_size
        self._file, self._start, self._size = inside
        try:
            self._entries = self._read_directory(self._size)
        except BundleError as error:
            raise BundleError(f"{path}: {error}") from None

    def _read_directory(self, size: int) -> dict[str, tuple[str, int, int, int]]:
        """Return (entry name, checksum, size, offset) by file name."""
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
        _check_together(files)
        return files

    def _read(self, start: int, size: int) -> bytes:
        return self._file.read(self._start + start, size)

    def names(self, folder: str = "") -> list[str]:
        """Return the names of all files, or of those below a folder."""
        return [name for name in self._entries if not folder or name.startswith(f"{folder}/")]

    @property
    def is_compressed(self) -> bool:
        """True if any code object is compressed."""
        return any(entry[0] != name for name, entry in self._entries.items())

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read(self, name: str, limit: int) -> bytes:
        """Read a file, at most `limit` + 1 bytes of it. Raises `BundleError`, `OSError`."""
        entry, offset = self._entry(name)
        if entry.name == name:
            return self._content(entry, offset, limit)
        frame = self._content(entry, offset, longest_frame(limit + 1))
        try:
            return decompress(frame, limit)
        except BundleError as error:
            raise BundleError(f"{self.path}: {entry.name}: {error}") from None

    def stored(self) -> Files[bytes]:
        """Return all entries as stored, by entry name."""
        entries = {entry.name: (entry, offset) for entry, offset in map(self._entry, self._entries)}
        return Files(entries, lambda name: self._content(*entries[name], MAX_BYTES))

    def content(self, name: str) -> Content:
        """Return an entry as stored, to be copied. The checksum is verified at its end.

        Raises as `read` does, also while it is copied.
        """
        entry, offset = self._entry(name)
        return Content(entry.size, entry.crc, lambda: self._chunks(entry, offset))

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the archive itself. Raises `OSError`."""
        yield from self._between(0, self._size)

    def _chunks(self, entry: Entry, offset: int) -> Iterator[bytes]:
        start, size, crc = self._start_of(entry, offset), 0, 0
        for chunk in self._between(start, start + entry.size):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            yield chunk
        if (size, crc) != (entry.size, entry.crc):
            raise self._altered(entry)

    def _between(self, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, end, CHUNK_BYTES):
            yield self._read(at, min(CHUNK_BYTES, end - at))

    def _content(self, entry: Entry, offset: int, limit: int) -> bytes:
        content = self._read(self._start_of(entry, offset), min(entry.size, limit + 1))
        if entry.size <= limit and (len(content), zlib.crc32(content)) != (entry.size, entry.crc):
            raise self._altered(entry)
        return content

    def _start_of(self, entry: Entry, offset: int) -> int:
        """Return the offset of an entry's content, after comparing header and directory. Raises `BundleError`."""
        before = header(entry, offset)
        if self._read(offset, len(before)) != before:
            raise BundleError(f"{self.path}: {entry.name} is not where the archive's directory says")
        return offset + len(before)

    def _altered(self, entry: Entry) -> BundleError:
        message = f"{entry.name} was altered: its checksum is not what the archive's directory says"
        return BundleError(f"{self.path}: {message}")

    def opened(self, name: str, path: Path) -> Archive:
        """Open an entry that is an archive itself, without reading its contents. Raises as `read` does.

        Args:
            path: its name in messages.
        """
        entry, offset = self._entry(name)
        return Archive(path, (self._file, self._start + self._start_of(entry, offset), entry.size))

    def _entry(self, name: str) -> tuple[Entry, int]:
        if name not in self._entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        stored, crc, size, offset = self._entries[name]
        return Entry(stored, crc, size), offset

    def writable_by_all(self, names: Iterable[str]) -> Iterator[str]:
        """Yield `.` if every user of the machine may write to the archive."""
        if self._file.status().st_mode & stat.S_IWOTH:
            yield "."


_DISORDER = "the archive's entries are not in order, or one is there twice"
_OTHER_LAYOUT = "the archive is not laid out as `aotbundle pack` does it"


def _listed(listed: bytes) -> tuple[list[tuple[str, int, int, int]], int]:
    """Parse a directory. Returns ((name, checksum, size, offset) of each entry, end of the last one).

    Raises `BundleError` for a directory that `directory` would not write.
    """
    entries: list[tuple[str, int, int, int]] = []
    at, end, is_ours = 0, 0, True
    while at < len(listed):
        if len(listed) - at < _LISTED.size:
            raise BundleError("the archive's directory is truncated")
        before, crc, size, again, length, after, offset = _LISTED.unpack_from(listed, at)
        at += _LISTED.size + length
        name = listed[at - length : at].decode("ascii", "replace")
        is_ours = is_ours and before == _BEFORE and after == _AFTER and again == size and offset == end
        entries.append((name, crc, size, offset))
        end = _end_of(end, length, size)
    names = [name for name, *_ in entries]
    _check_names(names)
    others = names[1:] if names[:1] == [INDEX] else names
    if INDEX in others or not all(map(operator.lt, others, others[1:])):
        raise BundleError(_DISORDER)
    if not is_ours or at != len(listed):
        raise BundleError(_OTHER_LAYOUT)
    return entries, end
