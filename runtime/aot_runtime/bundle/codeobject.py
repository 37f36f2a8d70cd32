"""What a code object says of itself: its architecture, and each kernel's arguments and resources.

Two formats, both 64-bit little-endian ELF: AMD's HSACO (metadata in an `AMDGPU` note, as MessagePack, and a 64-byte
kernel descriptor; see LLVM's "User Guide for AMDGPU Backend") and NVIDIA's cubin (attribute records in `.nv.info`
sections, as `cuobjdump --dump-elf` prints them). Images come from files that anyone may have touched, so every offset
is checked before it is used, and whatever is wrong with one is a `BundleError`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from aot_runtime.errors import BundleError

_EM_CUDA = 190
_EM_AMDGPU = 224

# EF_AMDGPU_MACH, the low byte of e_flags, from LLVM's AMDGPU documentation.
_AMDGPU_MACH = {
    0x30: "gfx908",
    0x3F: "gfx90a",
    0x41: "gfx1100",
    0x43: "gfx1150",
    0x44: "gfx1103",
    0x46: "gfx1101",
    0x47: "gfx1102",
    0x48: "gfx1200",
    0x49: "gfx1250",
    0x4A: "gfx1151",
    0x4C: "gfx942",
    0x4E: "gfx1201",
    0x4F: "gfx950",
    0x55: "gfx1152",
    0x58: "gfx1153",
}

_PT_LOAD = 1
_PF_X = 1
_SHT_SYMTAB = 2
_SHT_NOTE = 7
_SHT_NOBITS = 8
_STT_FUNC = 2
_NT_AMDGPU_METADATA = 32
_STO_CUDA_ENTRY = 0x10

# Records of `.nv.info`: format byte, attribute byte, then a 16-bit value or a length and that many bytes.
_EIFMT_SVAL = 4
_EIATTR_MAX_THREADS = 0x05
_EIATTR_REQNTID = 0x10
_EIATTR_FRAME_SIZE = 0x11
_EIATTR_MIN_STACK_SIZE = 0x12
_EIATTR_KPARAM_INFO = 0x17
_EIATTR_CBANK_PARAM_SIZE = 0x19
_EIATTR_REGCOUNT = 0x2F

_MAX_WORKGROUP = 1024
_MAX_LOADED = 1 << 28
"""Bytes that a loaded image may take."""


class KernelArg(msgspec.Struct, frozen=True):
    """One explicit or hidden argument of a kernel."""

    offset: int
    """Bytes from the start of the kernarg segment."""
    size: int
    kind: str
    """`pointer`, `value`, or the code object's own name of a hidden argument (`hidden_block_count_x`, …)."""


class KernelMetadata(msgspec.Struct, frozen=True):
    """What a code object records of one kernel. Registers are per lane, bytes of scratch too."""

    symbol: str
    args: tuple[KernelArg, ...]
    kernarg_bytes: int
    max_workgroup_size: int
    """Work-items (threads) that the kernel was compiled for, at most."""
    warp_size: int
    vgprs: int
    """Vector registers that the code uses; on gfx90a, gfx942 and gfx950 accumulation registers are included."""
    agprs: int
    """Accumulation registers (AMD matrix cores); 0 elsewhere."""
    sgprs: int
    """Scalar registers per wavefront; 0 for a cubin, which does not record uniform registers."""
    allocated_vgprs: int
    """Vector registers that the hardware sets aside. More than `vgprs` where the compiler was told to hold the
    number of waves down (Triton's `waves_per_eu`), so occupancy follows from this and not from `vgprs`."""
    vgpr_spills: int | None
    """Vector registers spilled to scratch; None for a cubin, where spills can be told only from `scratch_bytes`."""
    sgpr_spills: int | None
    scratch_bytes: int
    """Private (stack and spill) memory."""
    static_lds_bytes: int
    """LDS fixed in the code object, on top of what a launch asks for; from sm_90 on the system's own 1 KiB."""
    code_bytes: int
    """Size of the kernel's machine code."""


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


class CodeObject(msgspec.Struct, frozen=True):
    """A parsed image."""

    arch: str
    """Bare name as `--arch` spells it; an image for sm_90a says `sm_90`."""
    format: Literal["hsaco", "cubin"]
    kernels: tuple[KernelMetadata, ...]

    def kernel(self, symbol: str) -> KernelMetadata:
        """The kernel of that name. Raises `BundleError` naming those that are there."""
        for kernel in self.kernels:
            if kernel.symbol == symbol:
                return kernel
        present = ", ".join(kernel.symbol for kernel in self.kernels) or "none"
        raise BundleError(f"code object has no kernel {symbol!r}; it has: {present}")


def read_arch(image: bytes) -> str:
    """The architecture in an image's ELF header, without parsing the rest. Raises `BundleError`."""
    if len(image) < 64 or image[:6] != b"\x7fELF\x02\x01":
        raise BundleError(f"not a 64-bit little-endian ELF code object ({len(image)} bytes)")
    machine, flags = struct.unpack_from("<H", image, 18)[0], struct.unpack_from("<I", image, 48)[0]
    if machine == _EM_AMDGPU:
        if (mach := flags & 0xFF) not in _AMDGPU_MACH:
            raise BundleError(f"AMD code object of an unknown architecture: EF_AMDGPU_MACH {mach:#x}")
        return _AMDGPU_MACH[mach]
    if machine == _EM_CUDA:
        # CUDA 13 moved the SM version up by a byte, and raised the ABI version from 7 to 8 with it.
        return f"sm_{flags >> 8 & 0xFF if image[8] >= 8 else flags & 0xFF}"
    raise BundleError(f"not a GPU code object: ELF machine {machine} is neither AMDGPU nor CUDA")


def read_code_object(image: bytes) -> CodeObject:
    """Parse an HSACO or a cubin. Raises `BundleError` for anything that is not a well-formed one."""
    arch = read_arch(image)
    try:
        elf = _Elf(image)
        if arch.startswith("gfx"):
            return CodeObject(arch, "hsaco", tuple(_amd_kernels(elf, arch)))
        return CodeObject(arch, "cubin", tuple(_nvidia_kernels(elf)))
    except struct.error as error:
        raise BundleError(f"{arch} code object is truncated or malformed: {error}") from None


def read_loaded_image(image: bytes) -> LoadedImage:
    """The segments and symbols of an HSACO. Raises `BundleError` for anything that is not a well-formed one."""
    read_arch(image)
    try:
        elf = _Elf(image)
        return LoadedImage(
            tuple(elf.segments()), {symbol.name: (symbol.value, symbol.size) for symbol in elf.symbols() if symbol.name}
        )
    except struct.error as error:
        raise BundleError(f"code object is truncated or malformed: {error}") from None


class _Section(msgspec.Struct, frozen=True):
    name: str
    type: int
    address: int
    offset: int
    size: int
    link: int
    info: int


class _Symbol(msgspec.Struct, frozen=True):
    name: str
    type: int
    other: int
    section: int
    value: int
    size: int


class _Elf:
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
        self.sections = [_Section(_string(strings, h[0]), h[1], *h[3:]) for h in headers]
        for section in self.sections:
            if section.type != _SHT_NOBITS:
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

    def data(self, section: _Section) -> bytes:
        return b"" if section.type == _SHT_NOBITS else self.slice(section.offset, section.size)

    def section(self, name: str) -> _Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def symbols(self) -> list[_Symbol]:
        """The symbol table, in its order: records elsewhere point into it."""
        table = next((section for section in self.sections if section.type == _SHT_SYMTAB), None)
        if table is None or table.link >= len(self.sections):
            raise BundleError("code object has no symbol table")
        strings = self.data(self.sections[table.link])
        entries = self.data(table)
        if len(entries) % 24:
            raise BundleError(f"malformed ELF symbol table of {len(entries)} bytes")
        return [
            _Symbol(_string(strings, name), info & 0xF, other, section, value, size)
            for name, info, other, section, value, size in struct.iter_unpack("<IBBHQQ", entries)
        ]


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    return table[offset : end if end >= 0 else len(table)].decode("utf-8", "replace")


# AMD


def _amd_kernels(elf: _Elf, arch: str) -> Iterator[KernelMetadata]:
    symbols = {symbol.name: symbol for symbol in elf.symbols()}
    for entry in _fields(_amd_metadata(elf), "amdhsa.kernels", list):
        symbol = _fields(entry, ".name", str)
        descriptor = _amd_descriptor(elf, symbols.get(f"{symbol}.kd"), symbol)
        code = symbols.get(symbol)
        if code is None or code.type != _STT_FUNC:
            raise BundleError(f"code object has no machine code for kernel {symbol!r}")
        yield KernelMetadata(
            symbol=symbol,
            args=tuple(
                KernelArg(_count(arg, ".offset"), _count(arg, ".size"), _amd_kind(_fields(arg, ".value_kind", str)))
                for arg in _fields(entry, ".args", list, [])
            ),
            kernarg_bytes=_count(entry, ".kernarg_segment_size"),
            max_workgroup_size=_count(entry, ".max_flat_workgroup_size"),
            warp_size=_count(entry, ".wavefront_size"),
            vgprs=_count(entry, ".vgpr_count"),
            agprs=_count(entry, ".agpr_count", 0),
            sgprs=_count(entry, ".sgpr_count"),
            allocated_vgprs=_amd_allocated_vgprs(descriptor, arch),
            vgpr_spills=_count(entry, ".vgpr_spill_count", 0),
            sgpr_spills=_count(entry, ".sgpr_spill_count", 0),
            scratch_bytes=_count(entry, ".private_segment_fixed_size"),
            static_lds_bytes=_count(entry, ".group_segment_fixed_size"),
            code_bytes=code.size,
        )


def _amd_metadata(elf: _Elf) -> dict[str, Any]:
    import msgpack

    for section in elf.sections:
        if section.type != _SHT_NOTE:
            continue
        data, at = elf.data(section), 0
        while at + 12 <= len(data):
            name_size, size, kind = struct.unpack_from("<III", data, at)
            start = at + 12 + _padded(name_size)
            if kind == _NT_AMDGPU_METADATA and data[at + 12 : at + 12 + name_size] == b"AMDGPU\0":
                try:
                    return _typed(msgpack.unpackb(data[start : start + size]), "AMDGPU metadata", dict)
                except (ValueError, TypeError, msgpack.UnpackException) as error:
                    raise BundleError(f"AMDGPU metadata is not MessagePack: {error}") from None
            at = start + _padded(size)
    raise BundleError("code object has no AMDGPU metadata note")


def _padded(size: int) -> int:
    return size + 3 & ~3


def _amd_kind(value_kind: str) -> str:
    return {"global_buffer": "pointer", "by_value": "value"}.get(value_kind, value_kind)


def _amd_descriptor(elf: _Elf, symbol: _Symbol | None, kernel: str) -> bytes:
    if symbol is None or symbol.section >= len(elf.sections):
        raise BundleError(f"code object has no descriptor of kernel {kernel!r}")
    section = elf.sections[symbol.section]
    offset = symbol.value - section.address
    if not 0 <= offset <= section.size - 64:
        raise BundleError(f"descriptor of kernel {kernel!r} lies outside its section")
    return elf.slice(section.offset + offset, 64)


def _amd_allocated_vgprs(descriptor: bytes, arch: str) -> int:
    """GRANULATED_WORKITEM_VGPR_COUNT of compute_pgm_rsrc1: allocation blocks less one."""
    block = {"gfx908": 4, "gfx1250": 16}.get(arch, 8)
    return ((struct.unpack_from("<I", descriptor, 48)[0] & 0x3F) + 1) * block


_REQUIRED = object()


def _typed(value: Any, name: str, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BundleError(f"{name} of a code object: {kind.__name__} expected, {value!r:.60} found")
    return value


def _fields(mapping: Any, name: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = _typed(mapping, f"the map that holds {name!r}", dict).get(name, default)
    if value is _REQUIRED:
        raise BundleError(f"metadata of a code object lacks {name!r}")
    return _typed(value, name, kind)


def _count(mapping: Any, name: str, default: Any = _REQUIRED) -> int:
    value = _fields(mapping, name, int, default)
    if not 0 <= value < 2**32:
        raise BundleError(f"{name} of a code object is out of range: {value}")
    return value


# NVIDIA


def _nvidia_kernels(elf: _Elf) -> Iterator[KernelMetadata]:
    symbols = elf.symbols()
    module_records = list(_nvidia_records(elf, ".nv.info"))
    for index, symbol in enumerate(symbols):
        if symbol.type != _STT_FUNC or not symbol.other & _STO_CUDA_ENTRY:
            continue
        per_function = _nvidia_per_function(module_records, index)
        records = list(_nvidia_records(elf, f".nv.info.{symbol.name}"))
        text = elf.section(f".text.{symbol.name}")
        if text is None or not records or _EIATTR_REGCOUNT not in per_function:
            raise BundleError(f"code object has no machine code, attributes or register count of {symbol.name!r}")
        shared = elf.section(f".nv.shared.{symbol.name}")
        registers = per_function[_EIATTR_REGCOUNT]
        yield KernelMetadata(
            symbol=symbol.name,
            args=_nvidia_args(records),
            kernarg_bytes=_nvidia_param_bytes(records),
            max_workgroup_size=_nvidia_workgroup(records),
            warp_size=32,
            vgprs=registers,
            agprs=0,
            sgprs=0,
            allocated_vgprs=registers,
            vgpr_spills=None,
            sgpr_spills=None,
            scratch_bytes=max(per_function.get(_EIATTR_FRAME_SIZE, 0), per_function.get(_EIATTR_MIN_STACK_SIZE, 0)),
            static_lds_bytes=shared.size if shared else 0,
            code_bytes=text.size,
        )


def _nvidia_records(elf: _Elf, name: str) -> Iterator[tuple[int, bytes]]:
    """(attribute, value) of each record in an `.nv.info` section; none where the section is missing."""
    section = elf.section(name)
    data, at = elf.data(section) if section else b"", 0
    while at < len(data):
        kind, attribute, value = struct.unpack_from("<BBH", data, at)
        size = value if kind == _EIFMT_SVAL else 0
        if at + 4 + size > len(data):
            raise BundleError(f"section {name} of a code object is truncated")
        yield attribute, data[at + 4 : at + 4 + size] if kind == _EIFMT_SVAL else data[at + 2 : at + 4]
        at += 4 + size


def _nvidia_per_function(records: list[tuple[int, bytes]], index: int) -> dict[int, int]:
    """The (symbol index, number) records that belong to one function, by attribute."""
    pairs = [(attribute, struct.unpack("<II", value)) for attribute, value in records if len(value) == 8]
    return {attribute: number for attribute, (owner, number) in pairs if owner == index}


def _nvidia_args(records: list[tuple[int, bytes]]) -> tuple[KernelArg, ...]:
    args = {}
    for attribute, value in records:
        if attribute == _EIATTR_KPARAM_INFO:
            _, ordinal, offset, packed = struct.unpack("<IHHI", value)
            # 8 bits of pointee alignment, 4 of address space (4: a pointer), 6 of bank, 14 of size.
            args[ordinal] = KernelArg(offset, packed >> 18, "pointer" if packed >> 8 & 0xF == 4 else "value")
    if sorted(args) != list(range(len(args))):
        raise BundleError(f"parameters of a code object are not numbered from 0: {sorted(args)}")
    return tuple(args[ordinal] for ordinal in range(len(args)))


def _nvidia_param_bytes(records: list[tuple[int, bytes]]) -> int:
    return next((struct.unpack("<H", v)[0] for attribute, v in records if attribute == _EIATTR_CBANK_PARAM_SIZE), 0)


def _nvidia_workgroup(records: list[tuple[int, bytes]]) -> int:
    for attribute, value in records:
        if attribute in (_EIATTR_REQNTID, _EIATTR_MAX_THREADS):
            return math.prod(struct.unpack("<III", value))
    return _MAX_WORKGROUP
