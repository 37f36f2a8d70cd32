"""From machine code to instruction records: tinygrad's ISA tables find the encoding and its fields.

A record keeps the raw fields; what an operand means is decided in `operands`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import cache, cached_property
from typing import Any

from aot_runtime.errors import DeviceError, UnsupportedInstructionError

from . import gfx90a
from .archs import Arch
from .mnemonics import cdna_name

_LONGEST = 16
"""Bytes of the longest encoding."""
_KNOWN = 1 << 16
"""Instructions that are kept for the next kernels; beyond that they are all dropped."""
_SCALED_MATRIX = 0xD3AC
"""Upper half of the first word of CDNA's only encoding longer than 8 bytes, VOP3PX2, which the tables do not check."""
_DPP_FORMS = {250: "_DPP16", 233: "_DPP8", 234: "_DPP8"}
"""Values of RDNA's src0 that say that its register is in a further dword; 234: inactive lanes are read too."""
_TO_SCALAR = ("v_cmp", "v_readlane", "v_readfirstlane")
"""Vector instructions whose vdst is a scalar register; the tables do not say so of all their forms."""
_BUFFERS = {"rdna3": (0b111000, "MUBUF"), "rdna4": (0b110001, "VBUFFER")}
"""Encodings of buffer instructions that the tables have, and the decoder leaves out: (bits 31:26, name)."""


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
    256 is v0. Halves of registers are named in `opsel`, by RDNA's short encodings too."""
    words: tuple[tuple[str, int], ...]
    """(operand, 32-bit registers) as the ISA tables have it."""
    short: frozenset[str] = frozenset()
    """Operands of 16 bits."""
    parts: tuple[Instruction, ...] = ()
    """Of VOPD: the two instructions that are executed at once, as they are by themselves. It has no fields then."""
    derived: dict[str, Any] = dataclass_field(default_factory=dict, compare=False, repr=False)
    """What was found out from the code alone; instructions of the same code share it."""

    def moved(self, pc: int) -> Instruction:
        """The same instruction at another place."""
        return replace(self, pc=pc, parts=tuple(part.moved(pc) for part in self.parts))

    def field(self, name: str, default: int = 0) -> int:
        return self.fields.get(name, default)

    @cached_property
    def base_encoding(self) -> str:
        return self.encoding.partition("_")[0]

    @cached_property
    def operation(self) -> str:
        """The name that the semantics are kept under: the mnemonic, or what CDNA calls the same."""
        return self.mnemonic if self.arch.isa == "cdna" else cdna_name(self.mnemonic)

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
    """Decodes the instructions of an architecture. Half of a kernel's are those that it, or another one, had before."""

    def __init__(self, arch: Arch):
        self._arch, self._decode_inst = arch, _decoder(arch.isa)
        self._known: dict[bytes, Instruction] = {}

    def decode(self, raw: bytes) -> Instruction | None:
        """The first instruction of some code, at pc 0; None where it does not decode."""
        for size in range(4, len(raw) + 1, 4):  # no instruction's code is how a longer one's begins
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
    """Takes bytes and gives an instruction of the tables."""
    try:
        from tinygrad.renderer.amd import decode_inst
        from tinygrad.runtime.autogen.amd.rdna3 import ins as rdna3
        from tinygrad.runtime.autogen.amd.rdna4 import ins as rdna4
    except ImportError as error:
        raise DeviceError(
            f"the emulator needs tinygrad's ISA tables, which cannot be imported ({error}): "
            'pip install "aotbuild[emulator]"'
        ) from error
    if isa == "cdna":
        return lambda raw: decode_inst(raw, isa)
    code, name = _BUFFERS[isa]
    buffer = getattr({"rdna3": rdna3, "rdna4": rdna4}[isa], name)

    return lambda raw: buffer.from_bytes(raw) if raw[3] >> 2 == code else _with_dpp(decode_inst(raw, isa), raw)


def _with_dpp(decoded: Any, raw: bytes) -> Any:
    """The instruction with the dword that DPP adds, which the decoder leaves out of some encodings."""
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
    # The tables name the first source of some encodings as those with DPP do.
    bits = {"src0" if name == "vsrc0" and "src0" in fields else name: n for name, n in decoded.op_bits.items()}
    short = frozenset(name for name, n in bits.items() if n == 16)
    if arch.isa != "cdna" and encoding.startswith(("VOP1", "VOP2", "VOPC")):
        _name_halves(fields, short)
    words = tuple((name, max(1, n // 32)) for name, n in bits.items())
    return Instruction(arch, pc, decoded.size(), renamed or mnemonic, encoding, fields, words, short)


def _name_halves(fields: dict[str, int], short: frozenset[str]) -> None:
    """In the short encodings bit 7 of a register's number says which half is meant: make that `opsel`, as in VOP3."""
    for name, position in (("src0", 0), ("vsrc0", 0), ("vsrc1", 1), ("vdst", 3)):
        if ("src0" if name == "vsrc0" else name) in short and fields.get(name, 0) >= 256 and fields[name] & 0x80:
            fields[name] -= 0x80
            fields["opsel"] = fields.get("opsel", 0) | 1 << position


def _pair(decoded: Any, arch: Arch, pc: int) -> Instruction:
    numbers = {name: _number(decoded, name, field) for name, field in decoded._fields}
    # The second result is a register of the other parity; its lowest bit is not in the encoding.
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
    """A field's raw value; for registers, the number in the space of all sources."""
    raw = decoded._raw >> field.lo & field.mask
    if hasattr(field, "_valid_range"):
        return raw + field._valid_range[0]
    if hasattr(field, "_align"):
        return raw * field._align
    return raw
