"""Print what AMD's code object manager (comgr) says about code objects, a line of JSON for each file.

It needs nothing but Python's standard library and libamd_comgr.so.3, so that it can run under the loader of another
glibc. Constants and functions are those of comgr's public header, `amd_comgr.h` of version 3.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_EXECUTABLE = 8
"""AMD_COMGR_DATA_KIND_EXECUTABLE."""
_STRING, _MAP, _LIST = 1, 2, 3
"""AMD_COMGR_METADATA_KIND_*."""
_NAME_LENGTH, _NAME, _TYPE, _SIZE, _VALUE = 0, 1, 2, 3, 5
"""AMD_COMGR_SYMBOL_INFO_*."""
_FUNCTION = 2
"""AMD_COMGR_SYMBOL_TYPE_FUNC."""
_LATER_SOURCES = (9, 18)
"""Bits of a VOP3 instruction's second word at which the numbers of its second and third source begin, 9 bits each."""


class Handle(ctypes.Structure):
    _fields_ = [("handle", ctypes.c_uint64)]


_OF_MAP = ctypes.CFUNCTYPE(ctypes.c_int, Handle, Handle, ctypes.c_void_p)
_OF_SYMBOL = ctypes.CFUNCTYPE(ctypes.c_int, Handle, ctypes.c_void_p)
_READ = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
_PRINT = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
_ADDRESS = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_void_p)


class ComgrError(Exception):
    """Raised if comgr refuses something; the text names the function and the status."""


class Comgr:
    """The library."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libamd_comgr.so.3")
        self._callbacks: list[Any] = []  # that C calls for as long as the process lives

    def call(self, name: str, *arguments: Any) -> None:
        """Call `amd_comgr_<name>`. Raises `ComgrError`."""
        status = getattr(self._library, f"amd_comgr_{name}")(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.amd_comgr_status_string(status, ctypes.byref(text))
            raise ComgrError(f"{name}: {(text.value or b'').decode()} ({status})")

    @property
    def version(self) -> str:
        major, minor = ctypes.c_size_t(), ctypes.c_size_t()
        self._library.amd_comgr_get_version(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def text(self, name: str, handle: Handle) -> str:
        """Read a text by a function that gives its size first."""
        size = ctypes.c_size_t()
        self.call(name, handle, ctypes.byref(size), None)
        buffer = ctypes.create_string_buffer(size.value)
        self.call(name, handle, ctypes.byref(size), buffer)
        return buffer.value.decode()

    def tree(self, node: Handle) -> Any:
        """Return metadata as dicts, lists and texts; numbers are texts."""
        kind = ctypes.c_int()
        self.call("get_metadata_kind", node, ctypes.byref(kind))
        if kind.value == _STRING:
            return self.text("get_metadata_string", node)
        if kind.value == _LIST:
            size = ctypes.c_size_t()
            self.call("get_metadata_list_size", node, ctypes.byref(size))
            return [self._element(node, index) for index in range(size.value)]
        if kind.value == _MAP:
            return self._map(node)
        return None

    def _element(self, node: Handle, index: int) -> Any:
        child = Handle()
        self.call("index_list_metadata", node, ctypes.c_size_t(index), ctypes.byref(child))
        try:
            return self.tree(child)
        finally:
            self.call("destroy_metadata", child)

    def _map(self, node: Handle) -> dict[str, Any]:
        found = {}

        def one(key: Handle, value: Handle, _: Any) -> int:
            found[self.text("get_metadata_string", key)] = self.tree(value)
            return 0

        self.call("iterate_map_metadata", node, _OF_MAP(one), None)
        return found

    def functions(self, data: Handle) -> dict[str, tuple[int, int]]:
        """Return (address, bytes) of each function."""
        found = {}

        def number(symbol: Handle, attribute: int, kind: Any = ctypes.c_uint64) -> int:
            value = kind()
            self.call("symbol_get_info", symbol, attribute, ctypes.byref(value))
            return int(value.value)

        def one(symbol: Handle, _: Any) -> int:
            name = ctypes.create_string_buffer(number(symbol, _NAME_LENGTH) + 1)
            self.call("symbol_get_info", symbol, _NAME, name)
            if number(symbol, _TYPE, ctypes.c_int) == _FUNCTION:
                found[name.value.decode()] = number(symbol, _VALUE), number(symbol, _SIZE)
            return 0

        self.call("iterate_symbols", data, _OF_SYMBOL(one), None)
        return found

    def disassembler(self, isa: str) -> Callable[[bytes], dict[str, Any]]:
        """A function that disassembles machine code.

        It gives the number of `instructions`; of them those that comgr `refused`, by their places in bytes; and those
        with an `unused` source that comgr takes once the source's number is 0. They are VOP3 instructions of RDNA with
        fewer than three sources. Triton's LLVM writes 0x80, the constant 0, for a source that an instruction does not
        have, where LLVM 21 wants 0. The hardware reads only the sources that the opcode has.
        """
        code = b""

        def read(address: int, to: int, size: int, _: Any) -> int:
            part = code[address : address + size]
            ctypes.memmove(to, part, len(part))
            return len(part)

        callbacks, info = (_READ(read), _PRINT(lambda text, _: None), _ADDRESS(lambda address, _: None)), Handle()
        self._callbacks.append(callbacks)
        self.call("create_disassembly_info", isa.encode(), *callbacks, ctypes.byref(info))
        size = ctypes.c_uint64()
        disassemble = self._library.amd_comgr_disassemble_instruction

        def length(at: int) -> int:
            refused = disassemble(info, ctypes.c_uint64(at), None, ctypes.byref(size))
            return 0 if refused else int(size.value)

        def count(text: bytes) -> dict[str, Any]:
            nonlocal code
            code, at, instructions, refused, unused = text, 0, 0, [], 0
            while at < len(text):
                taken = length(at)
                for changed in _without_unused(text, at) if not taken else ():
                    code = changed
                    if taken := length(at):
                        unused += 1
                        break
                code = text
                if not taken:
                    refused.append(at)
                instructions += 1
                at += taken or _bytes(text, at)
            return {"instructions": instructions, "refused": refused, "unused": unused}

        return count


def _without_unused(code: bytes, at: int) -> Iterator[bytes]:
    """Return code whose instruction at a place has 0 for a last source of 0x80, or for both."""
    word = int.from_bytes(code[at + 4 : at + 8], "little")
    for start in reversed(_LATER_SOURCES):
        if word >> start & 0x1FF != 0x80:
            return
        word &= ~(0x1FF << start)
        yield code[: at + 4] + word.to_bytes(4, "little") + code[at + 8 :]


def _bytes(code: bytes, at: int) -> int:
    """Return a vector instruction's length: 4 for the short encodings VOP1, VOP2 and VOPC without a literal; else 8."""
    word = int.from_bytes(code[at : at + 4], "little")
    return 8 if word >> 31 or word & 0x1FF == 0xFF else 4


def _file_offset(image: bytes, address: int) -> int:
    """Find the place in the file of a loaded address, by the program headers of a 64-bit ELF."""
    headers, count = int.from_bytes(image[32:40], "little"), int.from_bytes(image[56:58], "little")
    for start in range(headers, headers + 56 * count, 56):
        kind = int.from_bytes(image[start : start + 4], "little")
        offset, virtual = (int.from_bytes(image[start + at : start + at + 8], "little") for at in (8, 16))
        size = int.from_bytes(image[start + 32 : start + 40], "little")
        if kind == 1 and virtual <= address < virtual + size:
            return offset + address - virtual
    raise ComgrError(f"no segment has the address {address:#x}")


def read(comgr: Comgr, path: Path) -> dict[str, Any]:
    """Read a code object by comgr. Raises `ComgrError` if it refuses one."""
    image, data, metadata = path.read_bytes(), Handle(), Handle()
    comgr.call("create_data", _EXECUTABLE, ctypes.byref(data))
    try:
        comgr.call("set_data", data, ctypes.c_size_t(len(image)), image)
        comgr.call("set_data_name", data, path.name.encode())
        isa = comgr.text("get_data_isa_name", data)
        comgr.call("get_data_metadata", data, ctypes.byref(metadata))
        tree, functions = comgr.tree(metadata), comgr.functions(data)
        comgr.call("destroy_metadata", metadata)
        count, counts = comgr.disassembler(isa), {}
        for name, (address, size) in functions.items():
            start = _file_offset(image, address)
            counts[name] = {"bytes": size, **count(image[start : start + size])}
    finally:
        comgr.call("release_data", data)
    return {"isa": isa, "kernels": tree.get("amdhsa.kernels", []), "functions": counts}


def main() -> None:
    """Read the files whose paths come on standard input, one per line."""
    comgr = Comgr()
    print(json.dumps({"version": comgr.version}), flush=True)
    for line in sys.stdin:
        path = Path(line.rstrip("\n"))
        try:
            found = read(comgr, path)
        except (ComgrError, OSError) as error:
            found = {"error": str(error)}
        print(json.dumps({"file": str(path), **found}), flush=True)


if __name__ == "__main__":
    main()
