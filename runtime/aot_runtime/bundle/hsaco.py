"""Read AMD's HSACO: MessagePack metadata in `AMDGPU` notes, and a 64-byte descriptor of each kernel.

A compiler writes one note. A linker keeps the notes of all linked objects, as in AMD's Tensile.

See LLVM's "User Guide for AMDGPU Backend".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator

import msgspec

from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.errors import BundleError

from .elf import SHT_NOTE, STT_FUNC, Elf, Symbol
from .kernel_metadata import KernelArg, KernelMetadata

_NT_AMDGPU_METADATA = 32
_MAX_KERNARG_BYTES, _MAX_LDS_BYTES, _MAX_SCRATCH_BYTES = 1 << 16, 1 << 20, 1 << 20
"""Limits per kernel, beyond any hardware. Scratch is per lane; AMD's hardware has at most 18 bits of it."""


class _Arg(msgspec.Struct, rename=lambda name: f".{name}"):
    """Metadata of an argument."""

    offset: int
    size: int
    value_kind: str


class _Kernel(msgspec.Struct, kw_only=True, rename=lambda name: f".{name}"):
    """Metadata of a kernel. Integers may be any 64-bit values."""

    name: str
    args: list[_Arg] = []
    kernarg_segment_size: int
    max_flat_workgroup_size: int
    wavefront_size: int
    vgpr_count: int
    agpr_count: int = 0
    sgpr_count: int
    vgpr_spill_count: int = 0
    sgpr_spill_count: int = 0
    private_segment_fixed_size: int
    group_segment_fixed_size: int


class _Metadata(msgspec.Struct):
    kernels: list[_Kernel] = msgspec.field(name="amdhsa.kernels")


_MOST = {
    "kernarg_segment_size": _MAX_KERNARG_BYTES,
    "group_segment_fixed_size": _MAX_LDS_BYTES,
    "private_segment_fixed_size": _MAX_SCRATCH_BYTES,
    **dict.fromkeys(
        ("max_flat_workgroup_size", "wavefront_size", "vgpr_count", "agpr_count", "sgpr_count", "vgpr_spill_count",
         "sgpr_spill_count"),
        2**32 - 1,
    ),
}  # fmt: skip
"""Largest allowed value of each count."""


def hsaco_kernels(elf: Elf, table: Iterable[Symbol], arch: str) -> Iterator[KernelMetadata]:
    """Yield the kernels of an image with a symbol table. Raises `BundleError`, or `struct.error` if truncated."""
    symbols = {symbol.name: symbol for symbol in table}
    for entry in _entries(elf):
        for name, most in _MOST.items():
            if not 0 <= getattr(entry, name) <= most:
                raise BundleError(f".{name} of a code object is out of range: {getattr(entry, name)}")
        descriptor = _descriptor(elf, symbols.get(f"{entry.name}.kd"), entry.name)
        code = symbols.get(entry.name)
        if code is None or code.type != STT_FUNC:
            raise BundleError(f"code object has no machine code for kernel {entry.name!r}")
        yield KernelMetadata(
            symbol=entry.name,
            args=tuple(_arg(arg, entry.kernarg_segment_size) for arg in entry.args),
            kernarg_bytes=entry.kernarg_segment_size,
            max_workgroup_size=entry.max_flat_workgroup_size,
            warp_size=entry.wavefront_size,
            vgprs=entry.vgpr_count,
            agprs=entry.agpr_count,
            sgprs=entry.sgpr_count,
            allocated_vgprs=_allocated_vgprs(descriptor, arch),
            vgpr_spills=entry.vgpr_spill_count,
            sgpr_spills=entry.sgpr_spill_count,
            scratch_bytes=entry.private_segment_fixed_size,
            static_lds_bytes=entry.group_segment_fixed_size,
            code_bytes=code.size,
        )


def _entries(elf: Elf) -> Iterator[_Kernel]:
    """Yield the kernels of all notes. Raises `BundleError` if there are no notes."""
    notes = 0
    for raw in _notes(elf):
        notes += 1
        try:
            yield from msgspec.msgpack.decode(raw, type=_Metadata).kernels
        except msgspec.ValidationError as error:
            found = re.sub(r"Expected (`.*?`), got (`.*?`)", r"\1 expected, \2 found", str(error))
            raise BundleError(f"AMDGPU metadata of a code object: {found}") from None
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise BundleError(f"AMDGPU metadata is not MessagePack: {error}") from None
    if not notes:
        raise BundleError("code object has no AMDGPU metadata note")


def _notes(elf: Elf) -> Iterator[bytes]:
    for section in elf.sections:
        if section.type != SHT_NOTE:
            continue
        data, at = elf.data(section), 0
        while at + 12 <= len(data):
            name_size, size, kind = struct.unpack_from("<III", data, at)
            start = at + 12 + _padded(name_size)
            if kind == _NT_AMDGPU_METADATA and data[at + 12 : at + 12 + name_size] == b"AMDGPU\0":
                yield data[start : start + size]
            at = start + _padded(size)


def _padded(size: int) -> int:
    return size + 3 & ~3


def _arg(arg: _Arg, kernarg_bytes: int) -> KernelArg:
    end = arg.offset + arg.size
    if min(arg.offset, arg.size) < 0 or end > kernarg_bytes:
        raise BundleError(f"an argument of a code object ends at {end} of {kernarg_bytes} kernarg bytes")
    return KernelArg(arg.offset, arg.size, _KINDS.get(arg.value_kind, arg.value_kind))


_KINDS = {"global_buffer": "pointer", "by_value": "value"}


def _descriptor(elf: Elf, symbol: Symbol | None, kernel: str) -> bytes:
    if symbol is None or symbol.section >= len(elf.sections):
        raise BundleError(f"code object has no descriptor of kernel {kernel!r}")
    section = elf.sections[symbol.section]
    offset = symbol.value - section.address
    if not 0 <= offset <= section.size - 64:
        raise BundleError(f"descriptor of kernel {kernel!r} lies outside its section")
    return elf.slice(section.offset + offset, 64)


def _allocated_vgprs(descriptor: bytes, arch: str) -> int:
    """Return allocated VGPRs from GRANULATED_WORKITEM_VGPR_COUNT of compute_pgm_rsrc1 (allocation blocks minus 1)."""
    return ((struct.unpack_from("<I", descriptor, 48)[0] & 0x3F) + 1) * ARCHITECTURES[arch].descriptor_vgprs
