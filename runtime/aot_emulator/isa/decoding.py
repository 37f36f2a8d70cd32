"""Instruction decoder, based on tinygrad's ISA tables.

Instructions hold the raw fields of their encoding; `operands` interprets them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cache, cached_property
from typing import Any

from aot_emulator.errors import UnsupportedInstructionError
from aot_runtime.errors import DeviceError

from . import gfx90a
from .archs import Arch
from .mnemonics import cdna_name

_LONGEST = 16
"""Size of the longest encoding in bytes."""
_KNOWN = 1 << 16
"""Maximum number of cached instructions, after which the cache is cleared."""
_SCALED_MATRIX = 0xD3AC
"""Upper half of the first word of VOP3PX2, CDNA's only encoding over 8 bytes, which the tables do not check."""
_DPP_FORMS = {250: "_DPP16", 233: "_DPP8", 234: "_DPP8"}
"""Values of RDNA's src0 that mark DPP, whose register is in a further dword; 234: inactive lanes are read too."""
_TO_SCALAR = ("v_cmp", "v_readlane", "v_readfirstlane")
"""Vector instructions whose vdst is a scalar register, which the tables do not state for all forms."""
_BUFFERS = {"rdna3": (0b111000, "MUBUF"), "rdna4": (0b110001, "VBUFFER")}
"""Buffer encodings that are in tinygrad's tables but not in its list of them: (bits 31:26, name)."""


@dataclass(frozen=True)
class Instruction:
    """A decoded instruction of a kernel."""

    arch: Arch
    pc: int
    """Byte offset from the kernel's first instruction; negative for functions that precede it in the module."""
    size: int
    mnemonic: str
    """Mnemonic without encoding suffix: `v_add_f32` for `v_add_f32_e64`."""
    encoding: str
    """Name in the ISA document, such as `VOP3`; variants end in `_LIT`, `_DPP16`, `_SDWA` or `_SDWA_SDST`."""
    fields: Mapping[str, int]
    """Encoding fields by name. Registers and constants use operand numbers in the space of 512 sources, where 256 is
    v0. `opsel` selects register halves, also for RDNA's short encodings."""
    words: tuple[tuple[str, int], ...]
    """(operand, number of 32-bit registers) from the ISA tables."""
    short: frozenset[str] = frozenset()
    """Names of 16-bit operands."""
    parts: tuple[Instruction, ...] = ()
    """For VOPD, the two instructions executed together; the pair itself has no fields."""
    derived: dict[str, Any] = dataclass_field(default_factory=dict, compare=False, repr=False)
    """Cache of derived data, shared by instructions with the same encoding."""

    def moved(self, pc: int) -> Instruction:
        """Return the same instruction at another pc."""
        moved = object.__new__(Instruction)
        moved.__dict__.update(self.__dict__, pc=pc)  # what is cached is equal, too
        if self.parts:
            moved.__dict__["parts"] = tuple(part.moved(pc) for part in self.parts)
        return moved

    def field(self, name: str, default: int = 0) -> int:
        return self.fields.get(name, default)

    @cached_property
    def base_encoding(self) -> str:
        return self.encoding.partition("_")[0]

    @cached_property
    def operation(self) -> str:
        """CDNA's mnemonic of the instruction, under which its semantics are registered."""
        return self.mnemonic if self.arch.isa == "cdna" else cdna_name(self.mnemonic)

    @property
    def next_pc(self) -> int:
        return self.pc + self.size

    def branch_target(self) -> int:
        """Return the branch target: `simm16` words from the next instruction."""
        return self.next_pc + 4 * signed(self.fields["simm16"], 16)

    def unsupported(self, what: str) -> UnsupportedInstructionError:
        """Return the error for an unsupported instruction or form."""
        given = ", ".join(f"{name}={value}" for name, value in self.fields.items() if value)
        return UnsupportedInstructionError(f"{what} ({self.encoding}: {given})", None, self.pc, self.mnemonic)


def signed(value: int, bits: int) -> int:
    """Sign-extend a field."""
    return value - (value >> bits - 1 << bits)


def decode(code: bytes, arch: Arch, start: int = 0) -> dict[int, Instruction]:
    """Decode the instructions of a function, by pc.

    Words that cannot be decoded are skipped, as they may be padding; executing them is an error.

    Args:
        code: the function's machine code.
        start: pc of the first byte.
    """
    words = _words(arch)
    found: dict[int, Instruction] = {}
    pc = start
    while pc - start + 4 <= len(code):
        instruction = words.decode(code[pc - start : pc - start + _LONGEST])
        if instruction is None:
            pc += 4
            continue
        found[pc] = instruction.moved(pc)
        pc += instruction.size
    return found


class _Words:
    """Caching decoder of an architecture. About half of a kernel's instructions have been decoded before."""

    def __init__(self, arch: Arch):
        self._arch, self._decode_inst = arch, _decoder(arch.isa)
        self._known: dict[bytes, Instruction] = {}

    def decode(self, raw: bytes) -> Instruction | None:
        """Decode the first instruction, at pc 0. Returns None if it cannot be decoded."""
        for size in range(4, len(raw) + 1, 4):  # no instruction is a prefix of another
            found = self._known.get(raw[:size])
            if found is not None:
                return found
        found = _decode_one(self._decode_inst, raw, self._arch, 0)
        if found is not None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[raw[: found.size]] = found
        return found


@cache
def _words(arch: Arch) -> _Words:
    return _Words(arch)


def _decoder(isa: str) -> Callable[[bytes], Any]:
    """Return a function that decodes bytes to an instruction of tinygrad's tables."""
    try:
        from tinygrad.runtime.autogen.amd.rdna3 import ins as rdna3
        from tinygrad.runtime.autogen.amd.rdna4 import ins as rdna4

        from .encodings import Encodings
    except ImportError as error:
        raise DeviceError(
            f"the emulator needs tinygrad's ISA tables; importing them failed ({error}): "
            'pip install "aotbuild[emulator]"'
        ) from error
    encodings = Encodings(isa)
    if isa == "cdna":
        return encodings.decode
    code, name = _BUFFERS[isa]
    buffer = getattr({"rdna3": rdna3, "rdna4": rdna4}[isa], name)

    return lambda raw: buffer.from_bytes(raw) if raw[3] >> 2 == code else _with_dpp(encodings.decode(raw), raw)


def _with_dpp(decoded: Any, raw: bytes) -> Any:
    """Decode with the extra dword of DPP, which tinygrad's tables lack in some encodings."""
    source, form = getattr(type(decoded), "src0", None), type(decoded).__name__
    suffix = _DPP_FORMS.get(decoded._raw >> source.lo & source.mask, "") if source is not None else ""
    if not suffix or form.endswith(suffix):
        return decoded
    return getattr(sys.modules[type(decoded).__module__], form.removesuffix("_SDST") + suffix).from_bytes(raw)


def _decode_one(decode_inst: Callable[[bytes], Any], raw: bytes, arch: Arch, pc: int) -> Instruction | None:
    renamed = None
    if arch.isa == "cdna" and int.from_bytes(raw[2:4], "little") != _SCALED_MATRIX:
        raw = raw[:8]
    if arch.generation == "cdna2":
        raw, renamed = gfx90a.substitute(raw)
    try:
        decoded = decode_inst(raw)
        if type(decoded).__name__.startswith("VOPD"):
            return _pair(decoded, arch, pc)
        mnemonic = decoded.op.name.lower()
    except (ValueError, AssertionError, KeyError, AttributeError):
        return None
    for suffix in ("_e32", "_e64"):
        mnemonic = mnemonic.removesuffix(suffix)
    encoding = type(decoded).__name__
    fields = {name: _number(decoded, name, field) for name, field in decoded._fields if name not in ("op", "encoding")}
    if arch.isa != "cdna" and mnemonic.startswith(_TO_SCALAR) and "vdst" in fields:
        fields["vdst"] &= 0xFF
    if arch.generation == "cdna2":
        fields = gfx90a.rename_fields(encoding, fields)
    # The tables name the first source of some encodings as in their DPP variants.
    bits = {"src0" if name == "vsrc0" and "src0" in fields else name: n for name, n in decoded.op_bits.items()}
    short = frozenset(name for name, n in bits.items() if n == 16)
    if arch.isa != "cdna" and encoding.startswith(("VOP1", "VOP2", "VOPC")):
        _name_halves(fields, short)
    words = tuple((name, max(1, n // 32)) for name, n in bits.items())
    return Instruction(arch, pc, decoded.size(), renamed or mnemonic, encoding, fields, words, short)


def _name_halves(fields: dict[str, int], short: frozenset[str]) -> None:
    """Move bit 7 of register numbers, which selects halves in the short encodings, to `opsel` as in VOP3."""
    for name, position in (("src0", 0), ("vsrc0", 0), ("vsrc1", 1), ("vdst", 3)):
        if ("src0" if name == "vsrc0" else name) in short and fields.get(name, 0) >= 256 and fields[name] & 0x80:
            fields[name] -= 0x80
            fields["opsel"] = fields.get("opsel", 0) | 1 << position


def _pair(decoded: Any, arch: Arch, pc: int) -> Instruction:
    numbers = {name: _number(decoded, name, field) for name, field in decoded._fields}
    # The second result register has the opposite parity of the first; its lowest bit is not encoded.
    numbers["vdsty"] = 256 | numbers["vdsty"] << 1 | ~numbers["vdstx"] & 1
    names = {half: getattr(decoded, f"op{half}").name.lower().removesuffix("_e32") for half in "xy"}
    form = type(decoded).__name__.removeprefix("VOPD")  # it may end in _LIT
    parts = []
    for half, name in names.items():
        fields = {"vdst": numbers[f"vdst{half}"], "src0": numbers[f"src{half}0"], "vsrc1": numbers[f"vsrc{half}1"]}
        if name == "v_dual_mov_b32":
            del fields["vsrc1"]
        words = tuple((operand, 1) for operand in fields)
        if form:
            fields["literal"] = numbers["literal"]
        encoding = f"VOP{2 if 'vsrc1' in fields else 1}{form}"
        part = Instruction(arch, pc, decoded.size(), name.replace("v_dual_", "v_"), encoding, fields, words)
        parts.append(part)
    return Instruction(
        arch, pc, decoded.size(), " :: ".join(names.values()), type(decoded).__name__, {}, (), parts=tuple(parts)
    )


def _number(decoded: Any, name: str, field: Any) -> int:
    """Return the raw value of a field; for registers, the operand number."""
    raw = decoded._raw >> field.lo & field.mask
    if hasattr(field, "_valid_range"):
        return raw + field._valid_range[0]
    if hasattr(field, "_align"):
        return raw * field._align
    return raw
