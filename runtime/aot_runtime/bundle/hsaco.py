"""AMD's HSACO: metadata in an `AMDGPU` note, as MessagePack, and a 64-byte descriptor of each kernel.

See LLVM's "User Guide for AMDGPU Backend".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.errors import BundleError
from aot_runtime.texts import shown

from .elf import SHT_NOTE, STT_FUNC, Elf, Symbol
from .kernel_metadata import KernelArg, KernelMetadata

_NT_AMDGPU_METADATA = 32
_MAX_KERNARG_BYTES, _MAX_LDS_BYTES, _MAX_SCRATCH_BYTES = 1 << 16, 1 << 20, 1 << 20
"""Of a kernel: more than any hardware has. Scratch is per lane, where AMD's has 18 bits of it at most."""


def hsaco_kernels(elf: Elf, table: Iterable[Symbol], arch: str) -> Iterator[KernelMetadata]:
    """Every kernel of an image with this symbol table. Raises `BundleError`, or `struct.error` where bytes are
    missing."""
    symbols = {symbol.name: symbol for symbol in table}
    for entry in _fields(_metadata(elf), "amdhsa.kernels", list):
        symbol = _fields(entry, ".name", str)
        kernarg_bytes = _count(entry, ".kernarg_segment_size", most=_MAX_KERNARG_BYTES)
        descriptor = _descriptor(elf, symbols.get(f"{symbol}.kd"), symbol)
        code = symbols.get(symbol)
        if code is None or code.type != STT_FUNC:
            raise BundleError(f"code object has no machine code for kernel {symbol!r}")
        yield KernelMetadata(
            symbol=symbol,
            args=tuple(_arg(arg, kernarg_bytes) for arg in _fields(entry, ".args", list, [])),
            kernarg_bytes=kernarg_bytes,
            max_workgroup_size=_count(entry, ".max_flat_workgroup_size"),
            warp_size=_count(entry, ".wavefront_size"),
            vgprs=_count(entry, ".vgpr_count"),
            agprs=_count(entry, ".agpr_count", 0),
            sgprs=_count(entry, ".sgpr_count"),
            allocated_vgprs=_allocated_vgprs(descriptor, arch),
            vgpr_spills=_count(entry, ".vgpr_spill_count", 0),
            sgpr_spills=_count(entry, ".sgpr_spill_count", 0),
            scratch_bytes=_count(entry, ".private_segment_fixed_size", most=_MAX_SCRATCH_BYTES),
            static_lds_bytes=_count(entry, ".group_segment_fixed_size", most=_MAX_LDS_BYTES),
            code_bytes=code.size,
        )


def _metadata(elf: Elf) -> dict[str, Any]:
    for section in elf.sections:
        if section.type != SHT_NOTE:
            continue
        data, at = elf.data(section), 0
        while at + 12 <= len(data):
            name_size, size, kind = struct.unpack_from("<III", data, at)
            start = at + 12 + _padded(name_size)
            if kind == _NT_AMDGPU_METADATA and data[at + 12 : at + 12 + name_size] == b"AMDGPU\0":
                try:
                    return _typed(msgspec.msgpack.decode(data[start : start + size]), "AMDGPU metadata", dict)
                except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
                    raise BundleError(f"AMDGPU metadata is not MessagePack: {error}") from None
            at = start + _padded(size)
    raise BundleError("code object has no AMDGPU metadata note")


def _padded(size: int) -> int:
    return size + 3 & ~3


def _arg(arg: Any, kernarg_bytes: int) -> KernelArg:
    offset, size = _count(arg, ".offset"), _count(arg, ".size")
    if offset + size > kernarg_bytes:
        raise BundleError(f"an argument of a code object ends at {offset + size} of {kernarg_bytes} kernarg bytes")
    return KernelArg(offset, size, _kind(_fields(arg, ".value_kind", str)))


def _kind(value_kind: str) -> str:
    return {"global_buffer": "pointer", "by_value": "value"}.get(value_kind, value_kind)


def _descriptor(elf: Elf, symbol: Symbol | None, kernel: str) -> bytes:
    if symbol is None or symbol.section >= len(elf.sections):
        raise BundleError(f"code object has no descriptor of kernel {kernel!r}")
    section = elf.sections[symbol.section]
    offset = symbol.value - section.address
    if not 0 <= offset <= section.size - 64:
        raise BundleError(f"descriptor of kernel {kernel!r} lies outside its section")
    return elf.slice(section.offset + offset, 64)


def _allocated_vgprs(descriptor: bytes, arch: str) -> int:
    """GRANULATED_WORKITEM_VGPR_COUNT of compute_pgm_rsrc1: allocation blocks less one."""
    return ((struct.unpack_from("<I", descriptor, 48)[0] & 0x3F) + 1) * ARCHITECTURES[arch].descriptor_vgprs


_REQUIRED = object()


def _typed(value: Any, name: str, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BundleError(f"{name} of a code object: {kind.__name__} expected, {shown(value)} found")
    return value


def _fields(mapping: Any, name: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = _typed(mapping, f"the map that holds {name!r}", dict).get(name, default)
    if value is _REQUIRED:
        raise BundleError(f"metadata of a code object lacks {name!r}")
    return _typed(value, name, kind)


def _count(mapping: Any, name: str, default: Any = _REQUIRED, most: int = 2**32 - 1) -> int:
    value = _fields(mapping, name, int, default)
    if not 0 <= value <= most:
        raise BundleError(f"{name} of a code object is out of range: {value}")
    return value
