"""64-bit little-endian ELF images, which may come from anywhere: every offset is checked before it is used."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import msgspec

from aot_runtime.errors import BundleError

SHT_NOTE = 7
STT_FUNC = 2
_PT_LOAD = 1
_PF_X = 1
_SYMTAB = 2
_NOBITS = 8
_MAX_LOADED = 1 << 28
"""Bytes that a loaded image may take."""


class Segment(msgspec.Struct, frozen=True):
    """A part of an image as it is loaded."""

    address: int
    """Where it goes, from the start of the loaded image."""
    size: int
    """Bytes there; those beyond `data` are 0."""
    data: bytes
    executable: bool


class LoadedImage(msgspec.Struct, frozen=True):
    """What a loader needs of an image."""

    segments: tuple[Segment, ...]
    symbols: Mapping[str, tuple[int, int]]
    """(address, size) by name, addresses as in `Segment`."""

    @property
    def size(self) -> int:
        """Bytes of the loaded image."""
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


class Elf:
    """Sections and symbols of an ELF64 image."""

    def __init__(self, image: bytes):
        self.image = image
        segments, table = struct.unpack_from("<QQ", image, 32)
        segment_entry, segment_count, entry, count, names = struct.unpack_from("<HHHHH", image, 54)
        if entry != 64 or names >= count:
            raise BundleError(f"malformed ELF section table ({count} entries of {entry} bytes, names in {names})")
        self._check(segments, segment_entry * segment_count)
        headers = [h[:8] for h in struct.iter_unpack("<IIQQQQIIQQ", self.slice(table, count * entry))]
        strings = self.slice(headers[names][4], headers[names][5])
        self.sections = [Section(_string(strings, h[0]), h[1], *h[3:]) for h in headers]
        for section in self.sections:
            if section.type != _NOBITS:
                self._check(section.offset, section.size)

    def segments(self) -> Iterator[Segment]:
        """What the program headers say is loaded."""
        table = struct.unpack_from("<Q", self.image, 32)[0]
        entry, count = struct.unpack_from("<HH", self.image, 54)
        for at in range(table, table + entry * count, entry or 1):
            kind, flags, offset, address, _, file_size, size = struct.unpack_from("<IIQQQQQ", self.image, at)
            if kind != _PT_LOAD:
                continue
            if address + size > _MAX_LOADED or file_size > size:
                raise BundleError(f"segment of a code object at {address:#x} has {file_size} of {size} bytes")
            yield Segment(address, size, self.slice(offset, file_size), bool(flags & _PF_X))

    def slice(self, offset: int, size: int) -> bytes:
        self._check(offset, size)
        return self.image[offset : offset + size]

    def _check(self, offset: int, size: int) -> None:
        if offset + size > len(self.image):
            raise BundleError(f"code object is truncated: {offset + size} bytes needed, {len(self.image)} given")

    def data(self, section: Section) -> bytes:
        return b"" if section.type == _NOBITS else self.slice(section.offset, section.size)

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def symbols(self) -> list[Symbol]:
        """The symbol table, in its order: records elsewhere point into it."""
        table = next((section for section in self.sections if section.type == _SYMTAB), None)
        if table is None or table.link >= len(self.sections):
            raise BundleError("code object has no symbol table")
        strings = self.data(self.sections[table.link])
        entries = self.data(table)
        if len(entries) % 24:
            raise BundleError(f"malformed ELF symbol table of {len(entries)} bytes")
        return [
            Symbol(_string(strings, name), info & 0xF, other, section, value, size)
            for name, info, other, section, value, size in struct.iter_unpack("<IBBHQQ", entries)
        ]


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    return table[offset : end if end >= 0 else len(table)].decode("utf-8", "replace")
