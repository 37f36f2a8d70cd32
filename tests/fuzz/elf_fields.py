"""Find the numeric fields of an ELF image: header, tables, notes, kernel descriptors and code."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from aot_runtime.bundle.elf import Elf

Field = tuple[int, int]
"""(offset, bytes)."""
_HEADER = (16, 2), (18, 2), (20, 4), (24, 8), (32, 8), (40, 8), (48, 4), *((at, 2) for at in range(52, 64, 2))
_PROGRAM_HEADER = (0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8), (48, 8)
_SECTION_HEADER = (0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 4), (44, 4), (48, 8), (56, 8)
_SYMBOL = (0, 4), (4, 1), (5, 1), (6, 2), (8, 8), (16, 8)
_NOTE, _SYMBOL_TABLES = 7, (2, 11)


def fields(image: bytes) -> list[Field]:
    """Return every number of an image that somebody reads; for code and tables without a form, words."""
    return [*_HEADER, *_tables(image), *_sections(image)]


def _tables(image: bytes) -> Iterator[Field]:
    for where, entry, count, form in ((32, 54, 56, _PROGRAM_HEADER), (40, 58, 60, _SECTION_HEADER)):
        (table,), (size,), (number,) = (
            struct.unpack_from("<Q", image, where), struct.unpack_from("<H", image, entry), struct.unpack_from("<H",
            image, count)
        )  # fmt: skip
        for item in range(number):
            yield from ((table + item * size + at, width) for at, width in form)


def _sections(image: bytes) -> Iterator[Field]:
    for section in Elf(image).sections:
        if section.type in _SYMBOL_TABLES:
            for entry in range(section.offset, section.offset + section.size, 24):
                yield from ((entry + at, width) for at, width in _SYMBOL)
        elif section.type == _NOTE:
            yield from ((section.offset + at, 4) for at in (0, 4, 8))
        elif section.name in (".text", ".rodata", ".dynamic") or section.name.startswith((".text.", ".nv.")):
            yield from ((section.offset + at, 4) for at in range(0, section.size - 3, 4))
