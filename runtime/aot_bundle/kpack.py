"""Read AMD's kpack, an archive of code objects by name and architecture.

The format read here, and written by `kpack_writer`, follows the public description of version 1 in ROCm's
`rocm-systems`, `multi_arch_packaging_with_kpack.md` (docs/howto/kpack.md says which revision, and what it leaves open):

    magic "KPAK", version (uint32), offset of the table of contents (uint64), all little-endian
    padding to 64 bytes, and the code objects
    to the end of the file the table of contents, in MessagePack: name → architecture → ordinal of a code object

With the scheme `none`, the table has the offset and size of each code object. With `zstd-per-kernel`, the code objects
are zstd frames in one run: their number, then the size and bytes of each.

Files are untrusted, so every read is bounded: the table by its size and number of entries, each code object by the
file's size and `MAX_CODE_BYTES`.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from aot_runtime.bundle.files import unreadable
from aot_runtime.bundle.reading import MAX_CODE_BYTES
from aot_runtime.bundle.zstd import decompress
from aot_runtime.errors import BundleError
from aot_runtime.regular_files import open_regular
from aot_runtime.texts import shown

MAGIC, VERSION = b"KPAK", 1
ALIGNMENT = 64
PLAIN, ZSTD = "none", "zstd-per-kernel"
"""Compression schemes."""
MAX_TOC_BYTES = 16 << 20
MAX_OBJECTS = 1 << 16
"""Maximum number of code objects in an archive, and of pairs of a name and an architecture in its table of contents."""
MAX_ARCHS = 64
HEADER = struct.Struct("<4sIQ")
UINT32 = struct.Struct("<I")

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Place(msgspec.Struct, frozen=True):
    """Offset and size of a stored code object."""

    offset: _Size
    size: _Size


class Entry(msgspec.Struct, frozen=True):
    """An entry of the table of contents, for one name and architecture.

    Attributes:
        ordinal: position of the code object. Entries may share one.
        original_size: size of the code object in bytes, or None if not recorded.
        metadata: any MessagePack map.
    """

    ordinal: _Size
    type: str = "hsaco"
    original_size: _Size | None = None
    metadata: msgspec.Raw = msgspec.Raw()

    @property
    def said(self) -> Said:
        """Return the known metadata; empty if it has another form."""
        try:
            return msgspec.msgpack.decode(self.metadata, type=Said)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return Said()


class Said(msgspec.Struct, frozen=True):
    """Commonly written metadata of an entry: the kernel's symbol and the code object's SHA-256."""

    symbol: str = ""
    sha256: str = ""


class Contents(msgspec.Struct, frozen=True):
    """The table of contents. Writers may leave out all but the first two fields and add others.

    Attributes:
        toc: undecoded entries by name; see `Kpack.entries`.
    """

    toc: Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=MAX_OBJECTS)]
    gfx_arches: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_OBJECTS)] = ()
    compression_scheme: str = PLAIN
    group_name: str = ""
    gfx_arch_family: str = ""
    format_version: int = VERSION
    blobs: Annotated[tuple[Place, ...], msgspec.Meta(max_length=MAX_OBJECTS)] = ()
    zstd_offset: _Size = 0
    zstd_size: _Size = 0


class Kpack:
    """An open archive, see `open_kpack`. Not thread-safe.

    Attributes:
        path: its name in messages.
        contents: its table of contents.
        places: offset and size of each code object, by ordinal.
    """

    def __init__(self, path: Path, file: BinaryIO):
        self.path, self._file = path, file
        try:
            self.contents, end = self._read_contents(os.fstat(file.fileno()).st_size)
            self._entries = _decode_entries(self.contents)
            self.places = self._find_places(end)
            for found in self.entries():
                self._check(*found)
        except BundleError as error:
            raise BundleError(f"{path} is not a supported kpack archive: {error}") from None

    def entries(self) -> Iterator[tuple[str, str, Entry]]:
        """Yield (name, architecture, entry) of all entries."""
        return ((name, arch, entry) for name, archs in self._entries.items() for arch, entry in archs.items())

    def read(self, name: str, arch: str = "") -> bytes:
        """Read a code object by name, and by architecture if the name has several.

        Raises `BundleError` if it is missing, cannot be decompressed, or differs from its entry.
        """
        archs = self._entries.get(name)
        if not archs:
            raise BundleError(f"{self.path} has no entry named {shown(name)}")
        if (not arch and len(archs) > 1) or (arch and arch not in archs):
            there = ", ".join(map(shown, archs))
            raise BundleError(f"{shown(name)} is available for {there}; pass one of them, not {shown(arch)}")
        entry = archs[arch or next(iter(archs))]
        try:
            return self._object(entry)
        except BundleError as error:
            raise BundleError(f"{self.path}: {shown(name)}: {error}") from None

    def _object(self, entry: Entry) -> bytes:
        place = self.places[entry.ordinal]
        content = self._read(place.offset, place.size)
        if self.contents.compression_scheme == ZSTD:
            content = decompress(content, entry.original_size or 0)
        if entry.original_size not in (None, len(content)):
            raise BundleError(f"it has {len(content)} bytes or more; its entry says {entry.original_size}")
        if entry.said.sha256 not in ("", hashlib.sha256(content).hexdigest()):
            raise BundleError("it was altered: its sha256 is not what the table of contents says")
        return content

    def _read_contents(self, size: int) -> tuple[Contents, int]:
        if size < HEADER.size:
            raise BundleError("it is too short for a header")
        magic, version, start = HEADER.unpack(self._read(0, HEADER.size))
        if magic != MAGIC:
            raise BundleError(f"it begins with {magic!r}, not with {MAGIC!r}")
        if version != VERSION:
            raise BundleError(f"it is of version {version}; version {VERSION} is read")
        if not HEADER.size <= start < size or size - start > MAX_TOC_BYTES:
            raise BundleError(
                f"its table of contents is at {start} of {size} bytes; it is behind the header, of at most "
                f"{MAX_TOC_BYTES} bytes"
            )
        try:
            contents = msgspec.msgpack.decode(self._read(start, size - start), type=Contents)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise BundleError(f"its table of contents: {error}") from None
        if contents.format_version != VERSION:
            raise BundleError(f"its table of contents is of version {contents.format_version}")
        return contents, start

    def _find_places(self, end: int) -> Sequence[Place]:
        """Return the places of the code objects, checked to lie between the header and the table at `end`."""
        scheme = self.contents.compression_scheme
        if scheme not in (PLAIN, ZSTD):
            raise BundleError(f"it is stored as {shown(scheme)}; {PLAIN} and {ZSTD} are read")
        places = self.contents.blobs if scheme == PLAIN else tuple(self._frames(end))
        for place in places:
            _check_place(place, end)
            if place.size > MAX_CODE_BYTES:
                raise BundleError(f"a code object has {place.size} bytes; {MAX_CODE_BYTES} are allowed")
        return places

    def _frames(self, end: int) -> Iterator[Place]:
        run = Place(self.contents.zstd_offset, self.contents.zstd_size)
        _check_place(run, end)
        at, end = run.offset, run.offset + run.size
        count = self._uint32(at, end)
        if count > MAX_OBJECTS:
            raise BundleError(f"it has {count} code objects; {MAX_OBJECTS} are allowed")
        at += UINT32.size
        for _ in range(count):
            size = self._uint32(at, end)
            at += UINT32.size
            yield Place(at, size)
            at += size
        if at != end:
            raise BundleError(f"its zstd frames end at {at}, but their section at {end}")

    def _uint32(self, at: int, end: int) -> int:
        if at + UINT32.size > end:
            raise BundleError("its zstd frames do not fit in their section")
        (number,) = UINT32.unpack(self._read(at, UINT32.size))
        return int(number)

    def _check(self, name: str, arch: str, entry: Entry) -> None:
        fault = ""
        if entry.ordinal >= len(self.places):
            fault = f"is code object {entry.ordinal} of {len(self.places)}"
        elif self.contents.compression_scheme == ZSTD and entry.original_size is None:
            fault = "does not say how long it is"
        elif (entry.original_size or 0) > MAX_CODE_BYTES:
            fault = f"has {entry.original_size} bytes; {MAX_CODE_BYTES} are allowed"
        if fault:
            raise BundleError(f"{shown(name)} for {shown(arch)} {fault}")

    def _read(self, offset: int, size: int) -> bytes:
        try:
            self._file.seek(offset)
            content = self._file.read(size)
        except OSError as error:
            raise BundleError(f"it cannot be read: {error.strerror}") from None
        if len(content) != size:
            raise BundleError("it was truncated while it was read")
        return content


def _decode_entries(contents: Contents) -> dict[str, dict[str, Entry]]:
    """Decode entries by name and architecture. They are counted on the way, so memory stays bounded."""
    decoder = msgspec.msgpack.Decoder(Annotated[dict[str, Entry], msgspec.Meta(max_length=MAX_ARCHS)])
    found: dict[str, dict[str, Entry]] = {}
    count = 0
    for name, archs in contents.toc.items():
        try:
            found[name] = decoder.decode(archs)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise BundleError(f"its table of contents: {shown(name)}: {error}") from None
        count += len(found[name])
        if count > MAX_OBJECTS:
            raise BundleError(f"its table of contents has more than {MAX_OBJECTS} entries")
    return found


def _check_place(place: Place, end: int) -> None:
    if place.offset < HEADER.size or place.offset + place.size > end:
        raise BundleError(f"{place.size} bytes at {place.offset} are not between its header and the table at {end}")


@contextmanager
def open_kpack(path: Path) -> Iterator[Kpack]:
    """Open an archive for the duration of a context. Raises `BundleError` if it is malformed."""
    try:
        file = os.fdopen(open_regular(path), "rb")
    except OSError as error:
        raise unreadable("", path, error) from None
    with file:
        yield Kpack(path, file)
