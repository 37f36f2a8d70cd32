"""An instruction as text, near to what an assembler takes: for people to read, not to be assembled again."""

from __future__ import annotations

from collections.abc import Iterator

from .decode import Instruction, signed
from .operands import VGPR, constant

_OPERANDS = (
    "vdst", "sdst", "sdata", "vdata", "addr", "vaddr", "data", "data0", "data1", "src0", "ssrc0", "src1", "vsrc1",
    "ssrc1", "src2", "vsrc2", "ssrc2", "sbase", "srsrc", "saddr", "soffset", "vdstx", "vdsty", "srcx0", "srcy0",
    "vsrcx1", "vsrcy1",
)  # fmt: skip
"""Fields that name registers or constants, in the order in which they are written."""
_NAMED = {106: "vcc", 107: "vcc_hi", 124: "m0", 125: "null", 126: "exec", 127: "exec_hi", 251: "vccz", 252: "execz",
          253: "scc"}  # fmt: skip
_PAIRED = (106, 126)
_TTMP, _NO_ADDRESS, _LITERAL = 108, 0x7F, 255
_ELSEWHERE = (249, 250)
"""SDWA and DPP: what would be src0 is in a field of its own, vsrc0."""
_HIDDEN = frozenset({"literal", "seg", "imm", "soffset_en", "sve", "acc", "acc_cd", "offen", "idxen", "vsrc0"})
_OTHER_NAMES = frozenset({"neg", "neg_hi", "clmp", "opsel", "opsel_hi", "opsel_hi2"})
"""Names that the tables have twice for the bits of a matrix instruction."""
_INDEX_BITS = {"src0": 1, "src1": 2}


def disassemble(instruction: Instruction) -> str:
    """`v_add_f32 v1, 0.5, v2`; fields that are no operands follow by name where they are not 0."""
    operands = ", ".join(_operands(instruction))
    return " ".join(filter(None, (instruction.mnemonic, operands, *_modifiers(instruction))))


def _operands(instruction: Instruction) -> Iterator[str]:
    words = dict(instruction.words)
    for name in _OPERANDS:
        if name not in instruction.fields or name not in words:
            continue
        if name == "soffset" and not instruction.field("soffset_en", 1):
            continue
        yield _operand(instruction, name, words[name])
    if instruction.mnemonic.startswith(("s_branch", "s_cbranch")):
        yield f"{instruction.branch_target():#x}"
    elif "simm16" in instruction.fields:
        yield f"{instruction.fields['simm16']:#x}"


def _operand(instruction: Instruction, name: str, words: int) -> str:
    number = instruction.fields[name]
    if name == "src0" and number in _ELSEWHERE:
        number = instruction.fields["vsrc0"]
    if name == "vdst" and instruction.mnemonic.startswith(("v_readfirstlane", "v_readlane")):
        number %= VGPR
    if number >= VGPR:
        return _registers("a" if _is_accumulation(instruction, name) else "v", number - VGPR, words)
    if name == "saddr" and number == _NO_ADDRESS:
        return "off"
    if number in _NAMED:
        return _NAMED[number] if words == 2 or number not in _PAIRED else f"{_NAMED[number]}_lo"
    if number < _TTMP:
        return _registers("s", number, words)
    if number < 124:
        return _registers("ttmp", number - _TTMP, words)
    if number == _LITERAL:
        return f"{instruction.field('literal'):#x}"
    integer = constant(instruction, number, "i32") if number <= 208 else constant(instruction, number, "f32")
    return str(integer) if integer is not None else f"src{number}"


def _is_accumulation(instruction: Instruction, name: str) -> bool:
    """Whether the bits that say so are set: one for all of a memory instruction, several of a matrix instruction."""
    fields = instruction.fields
    if not instruction.mnemonic.startswith("v_mfma"):
        return bool(instruction.field("acc")) and name in ("vdst", "vdata", "data", "data0", "data1")
    if name in _INDEX_BITS:
        # The tables call these bits `opsel_hi` in some opcodes.
        return bool(fields.get("acc" if "acc" in fields else "opsel_hi", 0) & _INDEX_BITS[name])
    return bool(fields.get("acc_cd" if "acc_cd" in fields else "clmp", 0))


def _registers(prefix: str, first: int, words: int) -> str:
    return f"{prefix}{first}" if words == 1 else f"{prefix}[{first}:{first + words - 1}]"


def _modifiers(instruction: Instruction) -> Iterator[str]:
    fields = dict(instruction.fields)
    if "offset1" in fields and "2" not in instruction.mnemonic.partition("_b")[0]:
        fields["offset"] = fields.pop("offset0") | fields.pop("offset1") << 8
    twice = _OTHER_NAMES if "acc_cd" in fields else frozenset()
    for name, value in fields.items():
        if name in _OPERANDS or name in _HIDDEN or name in twice or name == "simm16" or not value:
            continue
        if name == "offset" and instruction.base_encoding in ("GLOBAL", "FLAT", "SCRATCH"):
            value = signed(value, 13)
        yield f"{name}:{value}"
