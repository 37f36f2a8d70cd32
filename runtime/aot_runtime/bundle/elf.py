"""Read 64-bit little-endian ELF images from untrusted sources.

Every offset is checked before use. The total amount read is bounded by the image's size or a constant, since many small
parts may overlap.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from aot_runtime.errors import BundleError

SHT_NOTE = 7
STT_FUNC = 2
_PT_LOAD = 1
_PF_X = 1
_SYMTAB = 2
_NOBITS = 8
_SECTION_HEADER, _PROGRAM_HEADER = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IIQQQQQQ")
_MAX_LOADED = 1 << 28
"""Maximum size of a loaded image, in bytes."""
_MAX_SEGMENTS = 64
_MAX_NAME = 4096
"""Maximum size of a section's or symbol's name, in bytes."""
_MAX_NAMES = 16 << 20
"""Maximum size of all names together, in bytes, as they may overlap in their table."""


class Segment(msgspec.Struct, frozen=True):
    """A loaded segment of an image."""

    address: int
    """Offset from the start of the loaded image."""
    size: int
    """Size in bytes. Bytes beyond `data` are 0."""
    data: bytes
    executable: bool


class LoadedImage(msgspec.Struct, frozen=True):
    """The segments and symbols of an image, for a loader."""

    segments: tuple[Segment, ...]
    symbols: Mapping[str, tuple[int, int]]
    """(address, size) by name. Addresses are as in `Segment`."""

    @property
    def size(self) -> int:
        """Size of the loaded image in bytes."""
        return max((segment.address + segment.size for segment in self.segments), default=0)


class Section(msgspec.Struct, frozen=True):
    name: str
    type: int
    address: int
    offset: int
    size: int
    link: int
    info: int


class Symbol(msgspec.Struct, frozen=True):
    name: str
    type: int
    other: int
    section: int
    value: int
    size: int

    @property
    def is_undefined(self) -> bool:
        """True if the symbol is to be defined by another image."""
        return self.section == 0 and self.name != ""


class Elf:
    """Sections and symbols of an ELF64 image."""

    def __init__(self, image: bytes):
        self.image = image
        self._named = 0
        segments, table = struct.unpack_from("<QQ", image, 32)
        segment_entry, segment_count, entry, count, names = struct.unpack_from("<HHHHH", image, 54)
        if entry != _SECTION_HEADER.size or names >= count:
            raise BundleError(f"malformed ELF section table ({count} entries of {entry} bytes, names in {names})")
        self._check(segments, segment_entry * segment_count)
        headers = [h[:8] for h in _SECTION_HEADER.iter_unpack(self.slice(table, count * entry))]
        strings = self.slice(headers[names][4], headers[names][5])
        self.sections = [Section(self._string(strings, h[0]), h[1], *h[3:]) for h in headers]
        self._by_name = {section.name: section for section in reversed(self.sections)}
        for section in self.sections:
            if section.type != _NOBITS:
                self._check(section.offset, section.size)
        self._check(*self._program_headers())
        self._check_sum("sections", sum(section.size for section in self.sections if section.type != _NOBITS))

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments to load, ordered by address."""
        headers = _PROGRAM_HEADER.iter_unpack(self.slice(*self._program_headers()))
        loaded = [header for header in headers if header[0] == _PT_LOAD]
        if len(loaded) > _MAX_SEGMENTS:
            raise BundleError(f"a code object has {len(loaded)} segments; at most {_MAX_SEGMENTS} are loaded")
        self._check_sum("segments", sum(header[5] for header in loaded))
        end = 0
        for _, _, _, address, _, file_size, size, _ in loaded:
            if address < end or address + size > _MAX_LOADED or file_size > size:
                raise BundleError(f"segment of a code object at {address:#x} has {file_size} of {size} bytes")
            end = address + size
        return tuple(
            Segment(address, size, self.slice(offset, file_size), bool(flags & _PF_X))
            for _, flags, offset, address, _, file_size, size, _ in loaded
        )

    def _program_headers(self) -> tuple[int, int]:
        table = struct.unpack_from("<Q", self.image, 32)[0]
        entry, count = struct.unpack_from("<HH", self.image, 54)
        if count and entry != _PROGRAM_HEADER.size:
            raise BundleError(f"malformed ELF program header table ({count} entries of {entry} bytes)")
        return table, entry * count

    def slice(self, offset: int, size: int) -> bytes:
        self._check(offset, size)
        return self.image[offset : offset + size]

    def _check(self, offset: int, size: int) -> None:
        if offset + size > len(self.image):
            raise BundleError(f"code object is truncated: {offset + size} bytes needed, {len(self.image)} given")

    def _check_sum(self, what: str, size: int) -> None:
        if size > len(self.image):
            raise BundleError(f"{what} of a code object overlap: {size} bytes of {len(self.image)}")

    def data(self, section: Section) -> bytes:
        return b"" if section.type == _NOBITS else self.slice(section.offset, section.size)

    def section(self, name: str) -> Section | None:
        """Return the first section with a name, or None."""
        return self._by_name.get(name)

    def symbols(self) -> list[Symbol]:
        """Return the symbol table in order, since other records refer to it by position."""
        table = next((section for section in self.sections if section.type == _SYMTAB), None)
        if table is None or table.link >= len(self.sections):
            raise BundleError("code object has no symbol table")
        strings = self.data(self.sections[table.link])
        entries = self.data(table)
        if len(entries) % 24:
            raise BundleError(f"malformed ELF symbol table of {len(entries)} bytes")
        return [
            Symbol(self._string(strings, name), info & 0xF, other, section, value, size)
            for name, info, other, section, value, size in struct.iter_unpack("<IBBHQQ", entries)
        ]

    def _string(self, table: bytes, offset: int) -> str:
        end = table.find(b"\0", offset, offset + _MAX_NAME + 1)
        if end < 0:
            end = len(table)
        self._named += max(0, end - offset)
        if end - offset > _MAX_NAME or self._named > _MAX_NAMES:
            raise BundleError(
                f"a name in a code object has over {_MAX_NAME} bytes, or all together have over {_MAX_NAMES}"
            )
        return table[offset:end].decode("utf-8", "replace")
