"""Source lines of instructions, from the line table of a code object built with `--line-info`.

The format is DWARF 4, as written by Triton's LLVM. Tables are untrusted: reads stay within the table, and the result is
bounded by its size. A table that cannot be parsed yields no lines.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from aot_runtime.errors import BundleError

from .elf import Elf

_VERSION = 4
_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _CONST_ADD_PC, _FIXED_ADVANCE_PC = 1, 2, 3, 4, 8, 9
_END_SEQUENCE, _SET_ADDRESS = 1, 2
_HEADER = struct.Struct("<BBBbBB")
Place = tuple[str, int]


@dataclass(frozen=True)
class LineTable:
    """Source locations (file, line) by address. Each applies up to the next address."""

    addresses: tuple[int, ...]
    places: tuple[Place, ...]

    def place(self, address: int) -> Place | None:
        """Return (file, line) of the code at an address, or None if unknown."""
        at = bisect.bisect_right(self.addresses, address) - 1
        found = self.places[at] if at >= 0 else None
        return found if found and found[1] else None


def read_line_table(image: bytes) -> LineTable:
    """Read the line table of an HSACO. It is empty if missing or not supported."""
    try:
        elf = Elf(image)
        section = elf.section(".debug_line")
        rows = sorted(dict(_rows(_Reader(elf.data(section)))).items()) if section else []
    except (BundleError, struct.error, IndexError, ValueError):
        rows = []
    return LineTable(tuple(address for address, _ in rows), tuple(place for _, place in rows))


class _Reader:
    """Sequential reader of a table. Raises IndexError, ValueError or struct.error at its end."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def number(self, form: str) -> int:
        value = int(struct.unpack_from("<" + form, self.data, self.at)[0])
        self.at += struct.calcsize(form)
        return value

    def leb(self, signed: bool = False) -> int:
        value = shift = 0
        while shift < 64:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if signed and byte & 0x40 else value
        raise ValueError("a number of more than 64 bits")

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        found = self.data[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return found


@dataclass(frozen=True)
class _Unit:
    """The header of a unit's line-number program.

    Attributes:
        operands: number of operands of each standard opcode.
    """

    files: tuple[str, ...]
    unit: int
    line_base: int
    line_range: int
    operands: tuple[int, ...]

    def row(self, address: int, file: int, line: int) -> tuple[int, Place]:
        return address, (self.files[file - 1] if 1 <= file <= len(self.files) else "", line)


def _rows(reader: _Reader) -> Iterator[tuple[int, Place]]:
    while reader.at + 4 <= len(reader.data):
        length = reader.number("I")
        end = reader.at + length
        if reader.number("H") != _VERSION or end > len(reader.data):
            return
        size = reader.number("I")
        program = reader.at + size
        unit = _unit(reader)
        reader.at = program
        yield from _run(reader, end, unit)
        reader.at = end


def _unit(reader: _Reader) -> _Unit:
    unit, _operations, _is_statement, base, width, opcodes = _HEADER.unpack_from(reader.data, reader.at)
    reader.at += _HEADER.size
    if width == 0 or opcodes == 0:
        raise ValueError("no range of lines, or no opcodes")
    operands = tuple(reader.number("B") for _ in range(opcodes - 1))
    folders = [""]
    while folder := reader.text():
        folders.append(folder)
    files = []
    while name := reader.text():
        at, _time, _size = reader.leb(), reader.leb(), reader.leb()
        folder = folders[at] if at < len(folders) else ""
        files.append(f"{folder}/{name}" if folder not in ("", ".") and not name.startswith("/") else name)
    return _Unit(tuple(files), unit, base, width, operands)


def _run(reader: _Reader, end: int, unit: _Unit) -> Iterator[tuple[int, Place]]:
    first = len(unit.operands) + 1
    address, file, line = 0, 1, 1
    while reader.at < end:
        opcode = reader.number("B")
        if opcode >= first:
            address += (opcode - first) // unit.line_range * unit.unit
            line += unit.line_base + (opcode - first) % unit.line_range
            yield unit.row(address, file, line)
        elif opcode == 0:
            after = reader.leb() + reader.at
            kind = reader.number("B")
            if kind == _SET_ADDRESS:
                address = reader.number("Q")
            elif kind == _END_SEQUENCE:
                yield address, ("", 0)
                address, file, line = 0, 1, 1
            reader.at = max(reader.at, after)
        elif opcode == _COPY:
            yield unit.row(address, file, line)
        elif opcode == _ADVANCE_PC:
            address += reader.leb() * unit.unit
        elif opcode == _ADVANCE_LINE:
            line += reader.leb(signed=True)
        elif opcode == _SET_FILE:
            file = reader.leb()
        elif opcode == _CONST_ADD_PC:
            address += (255 - first) // unit.line_range * unit.unit
        elif opcode == _FIXED_ADVANCE_PC:
            address += reader.number("H")
        else:
            for _ in range(unit.operands[opcode - 1]):
                reader.leb()
