"""From machine code to instruction records: tinygrad's ISA tables find the encoding and its fields.

A record keeps the raw fields; what an operand means is decided in `operands`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from aot_runtime.errors import DeviceError, UnsupportedInstructionError

from . import gfx90a
from .archs import Arch

_LONGEST = 16
"""Bytes of the longest encoding."""
_SCALED_MATRIX = 0xD3AC
"""Upper half of the first word of CDNA's only encoding longer than 8 bytes, VOP3PX2, which the tables do not check."""


@dataclass(frozen=True)
class Instruction:
    """One instruction of a kernel."""

    arch: Arch
    pc: int
    """Byte offset from the kernel's first byte; other functions of the module may lie before it."""
    size: int
    mnemonic: str
    """Without the suffix of the encoding: `v_add_f32` for `v_add_f32_e64`."""
    encoding: str
    """As the ISA document names it: `VOP3`, `SOPP`; variants end in `_LIT`, `_DPP16`, `_SDWA` or `_SDWA_SDST`."""
    fields: Mapping[str, int]
    """The encoding's fields by name. Registers and constants have their number in the space of 512 sources, where
    256 is v0."""
    words: tuple[tuple[str, int], ...]
    """(operand, 32-bit registers) as the ISA tables have it."""

    def field(self, name: str, default: int = 0) -> int:
        return self.fields.get(name, default)

    @cached_property
    def base_encoding(self) -> str:
        return self.encoding.partition("_")[0]

    @property
    def next_pc(self) -> int:
        return self.pc + self.size

    def branch_target(self) -> int:
        """Where `simm16` leads: words from the next instruction."""
        return self.next_pc + 4 * signed(self.fields["simm16"], 16)

    def unsupported(self, what: str) -> UnsupportedInstructionError:
        """The error of something that is not implemented."""
        given = ", ".join(f"{name}={value}" for name, value in self.fields.items() if value)
        return UnsupportedInstructionError(f"{what} ({self.encoding}: {given})", None, self.pc, self.mnemonic)


def signed(value: int, bits: int) -> int:
    """A field of two's complement."""
    return value - (value >> bits - 1 << bits)


def decode(code: bytes, arch: Arch, start: int = 0) -> dict[int, Instruction]:
    """The instructions of a function by pc.

    Whatever does not decode is left out: it may be padding; to execute it is an error.

    Args:
        code: the function's machine code.
        start: pc of its first byte.
    """
    decode_inst = _decoder()
    found: dict[int, Instruction] = {}
    pc = start
    while pc - start + 4 <= len(code):
        described = _describe(decode_inst, code[pc - start : pc - start + _LONGEST], arch)
        if described is None:
            pc += 4
            continue
        found[pc] = Instruction(arch, pc, *described)
        pc += found[pc].size
    return found


def _decoder() -> Any:
    try:
        from tinygrad.renderer.amd import decode_inst
    except ImportError as error:
        raise DeviceError(
            f"the emulator needs tinygrad's ISA tables, which cannot be imported ({error}): "
            'pip install "aotbuild[emulator]"'
        ) from error
    return decode_inst


def _describe(decode_inst: Any, raw: bytes, arch: Arch) -> tuple[int, str, str, dict[str, int], Any] | None:
    renamed = None
    if arch.isa == "cdna" and int.from_bytes(raw[2:4], "little") != _SCALED_MATRIX:
        raw = raw[:8]
    if arch.name == "gfx90a":
        raw, renamed = gfx90a.substitute(raw)
    try:
        decoded = decode_inst(raw, arch.isa)
        mnemonic = decoded.op.name.lower()
    except (ValueError, AssertionError, KeyError, AttributeError):
        return None
    for suffix in ("_e32", "_e64"):
        mnemonic = mnemonic.removesuffix(suffix)
    encoding = type(decoded).__name__
    fields = {name: _number(decoded, name, field) for name, field in decoded._fields if name not in ("op", "encoding")}
    if arch.name == "gfx90a":
        fields = gfx90a.rename_fields(encoding, fields)
    return decoded.size(), renamed or mnemonic, encoding, fields, tuple(decoded.op_regs.items())


def _number(decoded: Any, name: str, field: Any) -> int:
    """A field's raw value; for registers, the number in the space of all sources."""
    raw = decoded._raw >> field.lo & field.mask
    if hasattr(field, "_valid_range"):
        return raw + field._valid_range[0]
    if hasattr(field, "_align"):
        return raw * field._align
    return raw
