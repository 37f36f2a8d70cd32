"""Make ELF images as a forger would, with any headers over any bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

GFX942 = 0x4C
STRTAB, SYMTAB, NOTE = 3, 2, 7
FUNC, OBJECT = 2, 1
_SECTION, _PROGRAM, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IIQQQQQQ"), struct.Struct("<IBBHQQ")


class MadeElf:
    """An image whose parts are added one by one; the headers are written last, over all that was said."""

    def __init__(self, machine: int = 224, flags: int = GFX942, version: int = 0):
        self.content = bytearray(64)
        self.machine, self.flags, self.version = machine, flags, version
        self.names = bytearray(b"\0")
        self.sections: list[tuple[int, ...]] = [(0,) * 10]
        self.segments: list[tuple[int, ...]] = []

    def put(self, content: bytes) -> int:
        """Add bytes; return their offset."""
        self.content += bytes(-len(self.content) % 8)
        self.content += content
        return len(self.content) - len(content)

    def name(self, text: str) -> int:
        self.names += text.encode() + b"\0"
        return len(self.names) - len(text.encode()) - 1

    def section(self, name: str | int, kind: int, offset: int, size: int, link: int = 0) -> int:
        """Add a section over bytes that are there; return its number."""
        at = name if isinstance(name, int) else self.name(name)
        self.sections.append((at, kind, 0, offset, offset, size, link, 0, 1, 0))
        return len(self.sections) - 1

    def filled(self, name: str, kind: int, content: bytes, link: int = 0) -> int:
        return self.section(name, kind, self.put(content), len(content), link)

    def symbols(self, table: Iterable[tuple[int, int, int, int, int]], strings: bytes) -> None:
        """Add the symbol table, of (name's offset, type and other, section, value, size)."""
        link = self.filled(".strtab", STRTAB, strings)
        packed = b"".join(_SYMBOL.pack(name, kind & 0xFF, kind >> 8, *rest) for name, kind, *rest in table)
        self.filled(".symtab", SYMTAB, packed, link)

    def segment(self, address: int, size: int, offset: int = 0, file_size: int = 0) -> None:
        self.segments.append((1, 5, offset, address, address, file_size, size, 4096))

    def image(self) -> bytes:
        shstrtab = self.filled(".shstrtab", STRTAB, b"")
        at = self.put(bytes(self.names))
        self.sections[shstrtab] = (*self.sections[shstrtab][:4], at, len(self.names), 0, 0, 1, 0)
        headers = self.put(b"".join(_PROGRAM.pack(*header) for header in self.segments))
        table = self.put(b"".join(_SECTION.pack(*header) for header in self.sections))
        struct.pack_into(
            "<16sHHIQQQIHHHHHH", self.content, 0, b"\x7fELF\x02\x01\x01\x40" + bytes([self.version]), 3, self.machine,
            1, 0, headers, table, self.flags, 64, _PROGRAM.size, len(self.segments), _SECTION.size,
            len(self.sections), shstrtab,
        )  # fmt: skip
        return bytes(self.content)


def metadata_note(metadata: Any) -> bytes:
    """Return the note that has a code object's metadata."""
    content = metadata if isinstance(metadata, bytes) else msgspec.msgpack.encode(metadata)
    return struct.pack("<III", 7, len(content), 32) + b"AMDGPU\0\0" + content + bytes(-len(content) % 4)


def hsaco(*kernels: Mapping[str, Any], note: bytes | None = None) -> bytes:
    """Return a code object with the metadata of kernels, a descriptor and a few bytes of code for each."""
    elf, strings, table = MadeElf(), bytearray(b"\0"), []
    code = elf.filled(".rodata", 1, bytes(64) * max(1, len(kernels)))
    start = elf.sections[code][4]
    for number, kernel in enumerate(kernels):
        for name, kind in ((kernel[".name"], FUNC), (kernel[".name"] + ".kd", OBJECT)):
            table.append((len(strings), kind, code, start + 64 * number, 64))
            strings += name.encode() + b"\0"
    elf.symbols(table, bytes(strings))
    elf.filled(".note", NOTE, metadata_note({"amdhsa.kernels": [dict(k) for k in kernels]}) if note is None else note)
    return elf.image()


KERNEL = {
    ".name": "scale", ".args": [{".offset": 0, ".size": 8, ".value_kind": "global_buffer"}], ".sgpr_count": 16,
    ".kernarg_segment_size": 8, ".max_flat_workgroup_size": 64, ".wavefront_size": 64, ".vgpr_count": 8,
    ".private_segment_fixed_size": 0, ".group_segment_fixed_size": 0,
}  # fmt: skip
