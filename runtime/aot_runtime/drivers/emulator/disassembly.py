"""Instructions as text, for people who read an error or a profile. The spelling is close to LLVM's, not the same."""

from __future__ import annotations

from collections.abc import Iterator

from .decode import Instruction
from .operands import VGPR
from .waits import registers

_OPERANDS = (
    "vdst", "vdstx", "vdsty", "sdst", "sdata", "vdata", "addr", "vaddr", "data", "data0", "data1",
    "src0", "srcx0", "vsrcx1", "srcy0", "vsrcy1", "vsrc1", "src1", "src2", "ssrc0", "ssrc1",
    "saddr", "sbase", "srsrc", "soffset",
)  # fmt: skip
"""Fields that name registers or constants, in the order in which they are written."""
_HIDDEN = frozenset({"seg", "vsrc0", "literal", "opsel_hi", "opsel_hi2", "row_mask", "bank_mask"})
"""Fields that say little to a reader."""
_SPECIAL = {106: "vcc", 107: "vcc_hi", 124: "m0", 125: "null", 126: "exec", 127: "exec_hi", 253: "scc"}
_FLOATS = {240: "0.5", 241: "-0.5", 242: "1.0", 243: "-1.0", 244: "2.0", 245: "-2.0", 246: "4.0", 247: "-4.0"}


def disassemble(instruction: Instruction) -> str:
    """The mnemonic, the operands, and the modifiers that are set: `ds_read_b128 v[0:3], v4 offset0:16`."""
    words = dict(instruction.words)
    operands = [text for name in _OPERANDS if name in words for text in _operand(instruction, name)]
    if instruction.base_encoding == "SOPP" and instruction.mnemonic.startswith(("s_branch", "s_cbranch")):
        return f"{instruction.mnemonic} to {instruction.branch_target():#x}"
    if "simm16" in words:
        operands.append(f"{instruction.fields['simm16']:#x}")
    shown = (
        f"{name}:{value}"
        for name, value in instruction.fields.items()
        if value and name not in (*words, *_OPERANDS) and name not in _HIDDEN
    )
    return " ".join([instruction.mnemonic, ", ".join(operands), *shown]).strip().replace("  ", " ")


def _operand(instruction: Instruction, name: str) -> Iterator[str]:
    number = instruction.fields.get(name, 0)
    found = list(registers(instruction, name))
    if found:
        kind, first = found[0]
        yield f"{kind}{first}" if len(found) == 1 else f"{kind}[{first}:{found[-1][1]}]"
    elif name in ("addr", "vaddr") or (name == "saddr" and number >= 124):
        yield "off"
    elif number == 255:
        yield f"{instruction.field('literal'):#x}"
    elif 128 <= number <= 208:
        yield str(number - 128 if number <= 192 else 192 - number)
    elif number < VGPR:
        yield _SPECIAL.get(number) or _FLOATS.get(number) or f"operand {number}"
