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
"""Size of an archive; more would need another form of zip."""
MAX_ENTRIES = 2**16 - 2
CHUNK_BYTES = 1 << 20
"""Bytes that are read at once of an entry that is copied and not looked at."""
_MAX_NAME = 255
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*+(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*+)*+")
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


class Entry(NamedTuple):
    """A file in an archive."""

    name: str
    crc: int
    size: int


class Content(NamedTuple):
    """The content of an entry that may be too large for memory: its size, its checksum, and what yields its bytes."""

    size: int
    crc: int
    chunks: Callable[[], Iterable[bytes]]


_Kept = TypeVar("_Kept", bound="bytes | Content", covariant=True)


class Files(Mapping[str, _Kept]):
    """Files by their names, each read when it is asked for, so that memory holds no more of them than are looked at."""

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
    """What stands before the data of an entry at an offset: so much that the data begin at a page."""
    name = entry.name.encode("ascii")
    padding = -(offset + _LOCAL.size + len(name) + _PADDING.size) % PAGE
    extra = _PADDING.size + padding
    fields = (_VERSION, 0, 0, 0, _DATE, entry.crc, entry.size, entry.size, len(name), extra)
    return _LOCAL.pack(ARCHIVE_MAGIC, *fields) + name + _PADDING.pack(_PADDING_ID, 2 + padding, PAGE) + bytes(padding)


def directory(entries: Sequence[Entry]) -> tuple[list[int], bytes]:
    """(the offset of each entry, all that follows the last one). Raises `BundleError` where there is too much."""
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
    """What follows the directory, which has so many entries and bytes, and begins there."""
    return _END.pack(b"PK\x05\x06", 0, 0, count, count, length, start, 0)


def in_order(names: Iterable[str]) -> list[str]:
    """The order of entries: the index, so that it is read first, and then by name."""
    ordered = sorted(names)
    if INDEX in ordered:
        ordered.remove(INDEX)
        ordered.insert(0, INDEX)
    return ordered


def parts(files: Mapping[str, bytes | Content], compress_code: bool = False) -> Iterator[bytes]:
    """The bytes of an archive, in parts: the same files give the same bytes. One file after the other is asked for.

    compress_code: compress each code object of which the archive has a page less then.

    Raises `BundleError` for names that no archive can have, for too much, and where a library is missing.
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
        del chunks  # so that its bytes are gone before the next file is read
    yield directory(entries)[1]


def _entry_of(name: str, content: bytes | Content, compress_code: bool) -> tuple[Entry, Callable[[], Iterable[bytes]]]:
    """(the entry of a file, what yields its bytes)."""
    if isinstance(content, Content):
        return Entry(name, content.crc, content.size), content.chunks
    if compress_code:
        ((name, content),) = compressed({name: content}).items()
    return Entry(name, zlib.crc32(content), len(content)), lambda: (content,)


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
    is_compressed = name.endswith(_COMPRESSED) and _IS_COMPRESSED.fullmatch(name)
    return name.removesuffix(_COMPRESSED) if is_compressed else name


def _check_names(names: Collection[str]) -> None:
    if not all(map(_NAME.fullmatch, names)) or max(map(len, names), default=0) > _MAX_NAME:
        wrong = next(name for name in names if len(name) > _MAX_NAME or not _NAME.fullmatch(name))
        raise BundleError(f"{wrong[:_MAX_NAME]!r} is no name of a file in an archive")


def _check_together(names: Collection[str]) -> None:
    """Raise `BundleError` for files that no folder can have together: one is a folder of another, or they, or folders
    of theirs, differ by case alone, which some file systems do not tell apart."""
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
    """A regular file that is open, for as long as this object is there. Threads may share it."""

    def __init__(self, path: Path):
        self._descriptor = open_regular(path)
        weakref.finalize(self, os.close, self._descriptor)
        self._lock = threading.Lock()

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
        self._file, self._start, self._size = inside
        try:
            self._entries = self._read_directory(self._size)
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
        _check_together(files)
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

    def stored(self) -> Files[bytes]:
        """All entries as they are in the archive, by their own names."""
        entries = {entry.name: (entry, offset) for entry, offset in map(self._entry, self._entries)}
        return Files(entries, lambda name: self._content(*entries[name], MAX_BYTES))

    def content(self, name: str) -> Content:
        """An entry as it is in the archive, to be copied. Its checksum is compared at its end. Raises as `read` does,
        also while it is copied."""
        entry, offset = self._entry(name)
        return Content(entry.size, entry.crc, lambda: self._chunks(entry, offset))

    def chunks(self) -> Iterator[bytes]:
        """The bytes of the archive itself. Raises `OSError`."""
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
        """Return the place of an entry's content, whose header is what the directory says. Raises `BundleError`."""
        before = header(entry, offset)
        if self._read(offset, len(before)) != before:
            raise BundleError(f"{self.path}: {entry.name} is not where the archive's directory says")
        return offset + len(before)

    def _altered(self, entry: Entry) -> BundleError:
        message = f"{entry.name} was altered: its checksum is not what the archive's directory says"
        return BundleError(f"{self.path}: {message}")

    def opened(self, name: str, path: Path) -> Archive:
        """An entry that is an archive itself, called `path` in messages; no more of it is read than what opening reads.
        Raises as `read` does."""
        entry, offset = self._entry(name)
        return Archive(path, (self._file, self._start + self._start_of(entry, offset), entry.size))

    def _entry(self, name: str) -> tuple[Entry, int]:
        if name not in self._entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        stored, crc, size, offset = self._entries[name]
        return Entry(stored, crc, size), offset

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
