"""A minimal ELF file that is accepted as an AMD code object: it has names of kernels but no code."""

from __future__ import annotations

import struct

_MACHINE = {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx950": 0x4F, "gfx1100": 0x41}
_EM_AMDGPU, _ELFOSABI_AMDGPU_HSA, _ET_DYN = 224, 64, 3
_SHT_STRTAB, _SHT_DYNSYM = 3, 11
_HEADER, _SECTION, _SYMBOL = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")


def code_object(arch: str, *kernels: str) -> bytes:
    """Return a code object for `arch` whose kernels are `kernels`."""
    names, symbols = b"\0", [_SYMBOL.pack(0, 0, 0, 0, 0, 0)]
    for kernel in kernels:
        symbols.append(_SYMBOL.pack(len(names), 0x11, 3, 1, 0, 64))  # a global object: the kernel's descriptor
        names += kernel.encode() + b".kd\0"
    names += bytes(-len(names) % 8)
    table = b"".join(symbols)
    at_names, at_table = _HEADER.size, _HEADER.size + len(names)
    at_sections = at_table + len(table)
    sections = [
        bytes(_SECTION.size),
        _SECTION.pack(0, _SHT_STRTAB, 0, 0, at_names, len(names), 0, 0, 1, 0),
        _SECTION.pack(0, _SHT_DYNSYM, 0, 0, at_table, len(table), 1, 1, 8, _SYMBOL.size),
    ]
    magic = b"\x7fELF" + bytes([2, 1, 1, _ELFOSABI_AMDGPU_HSA, 4]) + bytes(7)
    header = _HEADER.pack(
        magic, _ET_DYN, _EM_AMDGPU, 1, 0, 0, at_sections, _MACHINE[arch], _HEADER.size, 0, 0,
        _SECTION.size, len(sections), 0,
    )  # fmt: skip
    return header + names + table + b"".join(sections)
