"""Read NVIDIA's cubin: attribute records in `.nv.info` sections, as printed by `cuobjdump --dump-elf`."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator

from aot_runtime.errors import BundleError
from aot_runtime.texts import shown

from .elf import STT_FUNC, Elf
from .kernel_metadata import KernelArg, KernelMetadata

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


def cubin_kernels(elf: Elf) -> Iterator[KernelMetadata]:
    """Yield the kernels of an image. Raises `BundleError`, or `struct.error` if it is truncated."""
    symbols = elf.symbols()
    of_module = _by_function(_records(elf, ".nv.info"))
    for index, symbol in enumerate(symbols):
        if symbol.type != STT_FUNC or not symbol.other & _STO_CUDA_ENTRY:
            continue
        per_function = of_module.get(index, {})
        records = list(_records(elf, f".nv.info.{symbol.name}"))
        text = elf.section(f".text.{symbol.name}")
        if text is None or not records or _EIATTR_REGCOUNT not in per_function:
            raise BundleError(f"code object has no machine code, attributes or register count of {symbol.name!r}")
        shared = elf.section(f".nv.shared.{symbol.name}")
        registers = per_function[_EIATTR_REGCOUNT]
        yield KernelMetadata(
            symbol=symbol.name,
            args=_args(records),
            kernarg_bytes=_param_bytes(records),
            max_workgroup_size=_workgroup(records),
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


def _records(elf: Elf, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield (attribute, value) of each record in an `.nv.info` section; none if the section is missing."""
    section = elf.section(name)
    data, at = elf.data(section) if section else b"", 0
    while at < len(data):
        kind, attribute, value = struct.unpack_from("<BBH", data, at)
        size = value if kind == _EIFMT_SVAL else 0
        if at + 4 + size > len(data):
            raise BundleError(f"section {name} of a code object is truncated")
        yield attribute, data[at + 4 : at + 4 + size] if kind == _EIFMT_SVAL else data[at + 2 : at + 4]
        at += 4 + size


def _by_function(records: Iterable[tuple[int, bytes]]) -> dict[int, dict[int, int]]:
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for attribute, value in records:
        if len(value) == 8:
            owner, number = struct.unpack("<II", value)
            found[owner][attribute] = number
    return found


def _args(records: list[tuple[int, bytes]]) -> tuple[KernelArg, ...]:
    args = {}
    for attribute, value in records:
        if attribute == _EIATTR_KPARAM_INFO:
            _, ordinal, offset, packed = struct.unpack("<IHHI", value)
            # 8 bits of pointee alignment, 4 of address space (4: a pointer), 6 of bank, 14 of size.
            args[ordinal] = KernelArg(offset, packed >> 18, "pointer" if packed >> 8 & 0xF == 4 else "value")
    if sorted(args) != list(range(len(args))):
        raise BundleError(f"parameters of a code object are not numbered from 0: {shown(sorted(args))}")
    return tuple(args[ordinal] for ordinal in range(len(args)))


def _param_bytes(records: list[tuple[int, bytes]]) -> int:
    return next((struct.unpack("<H", v)[0] for attribute, v in records if attribute == _EIATTR_CBANK_PARAM_SIZE), 0)


def _workgroup(records: list[tuple[int, bytes]]) -> int:
    for attribute, value in records:
        if attribute in (_EIATTR_REQNTID, _EIATTR_MAX_THREADS):
            return math.prod(struct.unpack("<III", value))
    return _MAX_WORKGROUP
