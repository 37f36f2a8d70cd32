"""Disassembler: operands of instructions, and their text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from aot_emulator.state.wavefronts import EXEC, M0, VCC

from .decoding import Instruction, signed
from .operands import FLOAT_CONSTANTS, VGPR, is_null
from .wait_counters import is_direct_to_lds, returns_value, waited_for

_ORDER = (
    "sdata",
    "vdata",
    "vdst",
    "vdstx",
    "vdsty",
    "sdst",
    "vaddr",
    "addr",
    "vsrc",
    "data",
    "data0",
    "data1",
    "saddr",
    "srsrc",
    "rsrc",
    "sbase",
    "ssrc0",
    "ssrc1",
    "soffset",
    "src0",
    "src1",
    "vsrc1",
    "src2",
)
_RESULTS = frozenset({"sdata", "vdst", "vdstx", "vdsty", "sdst"})
_POSITIONS = {"src0": 0, "src1": 1, "vsrc1": 1, "src2": 2, "vdst": 3}
"""Positions of operands' bits in op_sel."""
_DATA = ("vdst", "vdata", "vsrc", "data", "data0")
_SHORT_TRANSFER = re.compile(r"_d16(_|$)|_store_b(16|8)$")
_OFF, _SDWA, _LITERAL = 0x7F, 249, 255
_REPLACED_SOURCE = (_SDWA, 250, 233, 234)
"""Values of src0 that mark SDWA or DPP, whose register is in a separate field."""
_MASKED = ("v_addc_co", "v_subb_co", "v_subbrev_co", "v_add_co", "v_sub_co", "v_subrev_co", "v_cndmask")
_TO_SCALAR = ("v_readlane_b32", "v_readfirstlane_b32")
"""Instructions whose vdst is a scalar register."""
_FLAGS = ("offen", "idxen", "sc0", "sc1", "glc", "nt", "slc", "dlc", "scc", "lds", "gds")


@dataclass(frozen=True)
class Operand:
    """A register or constant operand of an instruction.

    Attributes:
        name: name of its encoding field; `vcc` for an implicit VCC.
        number: operand number in the space of 512 sources.
        words: number of 32-bit registers.
        accumulation: it is an AGPR.
        result: it is written; it may also be read.
        half: register half that it uses, on architectures that track halves separately; None: the whole register.
    """

    name: str
    number: int
    words: int
    accumulation: bool
    result: bool
    half: int | None = None

    @property
    def is_vector(self) -> bool:
        return self.number >= VGPR

    @property
    def is_register(self) -> bool:
        return self.is_vector or self.number < 128


def operands_of(instruction: Instruction) -> tuple[Operand, ...]:
    """Return the operands of an instruction, results first, excluding those disabled by its fields."""
    found: tuple[Operand, ...] | None = instruction.derived.get("operands")
    if found is None:
        found = instruction.derived["operands"] = tuple(_find_operands(instruction))
    return found


def _find_operands(instruction: Instruction) -> Iterator[Operand]:
    for part in instruction.parts:
        yield from _find_operands(part)
    fields, words = instruction.fields, dict(instruction.words)
    names = sorted(words.keys() & fields.keys() - {"simm16"}, key=lambda name: (*_ORDER, name).index(name))
    for name in names:
        number = fields[name]
        if name == "src0" and number in _REPLACED_SOURCE:
            number = fields["vsrc0"] - (VGPR if fields.get("s0") else 0)
        if (name == "vsrc1" and fields.get("s1")) or (name == "vdst" and instruction.mnemonic in _TO_SCALAR):
            number %= VGPR
        count = 0 if is_null(instruction, number) else _words(instruction, name, words[name])
        if count:
            accumulation, result = _is_accumulation(instruction, name), _is_result(instruction, name)
            yield Operand(name, number, count, accumulation, result, _half(instruction, name))
    if (
        "soffset" in words
        and instruction.base_encoding == "SMEM"
        and not fields.get("imm", 1)
        and not fields.get("soffset_en")
    ):
        yield Operand("soffset", fields["offset"] & 0x7F, 1, False, False)
    if _implies_vcc(instruction):
        result = instruction.base_encoding in ("VOPC", "VOP2") and "cndmask" not in instruction.mnemonic
        yield Operand("vcc", VCC, instruction.arch.lanes // 32, False, result)


def _half(instruction: Instruction, name: str) -> int | None:
    if instruction.arch.isa == "cdna":
        return None
    if instruction.base_encoding.startswith("VOP"):
        if name not in instruction.short:
            return None
        return int("mixhi" in instruction.mnemonic or instruction.field("opsel") >> _POSITIONS[name] & 1)
    if name not in _DATA or "_format_" in instruction.mnemonic:
        return None
    if not _SHORT_TRANSFER.search(instruction.mnemonic):
        return None
    return int("_d16_hi" in instruction.mnemonic)


def _words(instruction: Instruction, name: str, words: int) -> int:
    fields, mnemonic = instruction.fields, instruction.mnemonic
    if name == "saddr":
        return 0 if fields["saddr"] == _OFF else words
    if name in ("addr", "vaddr"):
        segment = mnemonic.partition("_")[0]
        if segment == "global":
            return 1 if _has_scalar_address(instruction) else 2
        if segment == "scratch":
            return fields["sve"]
        if segment == "buffer":
            return fields["idxen"] + fields["offen"]
        return 2 if segment == "flat" else words
    if name == "soffset" and "soffset_en" in fields:
        return fields["soffset_en"]
    if name == "vdst" and "_atomic_" in mnemonic and not returns_value(instruction):
        return 0
    if name in ("vdata", "vdst") and is_direct_to_lds(instruction):
        return 0
    return words


def _has_scalar_address(instruction: Instruction) -> bool:
    number = instruction.field("saddr", _OFF)
    return number != _OFF and not is_null(instruction, number)


def _is_accumulation(instruction: Instruction, name: str) -> bool:
    fields, mnemonic = instruction.fields, instruction.mnemonic
    if mnemonic.startswith("v_accvgpr"):
        return name == "vdst" if "write" in mnemonic else name == "src0" if "read" in mnemonic else True
    if "mfma" in mnemonic:
        # For some MFMA opcodes, the ISA tables use the field names of other VOP3P instructions.
        sources = fields.get("acc", fields.get("opsel_hi", 0))
        of_result = bool(fields.get("acc_cd", fields.get("clmp", 0)))
        return {"src0": bool(sources & 1), "src1": bool(sources >> 1 & 1)}.get(name, of_result)
    return bool(fields.get("acc")) and name in ("vdst", "vdata", "data", "data0", "data1")


def _is_result(instruction: Instruction, name: str) -> bool:
    if name == "vdata":
        return "_load" in instruction.mnemonic or returns_value(instruction)
    return name in _RESULTS


def _implies_vcc(instruction: Instruction) -> bool:
    name = instruction.mnemonic
    if instruction.encoding in ("VOPC_SDWA_SDST", "VOPC_SDWA") and instruction.field("sd"):
        return False
    return (
        instruction.base_encoding == "VOPC"
        or (instruction.base_encoding == "VOP2" and name.startswith(_MASKED))
        or name.startswith(("v_div_fmas", "s_cbranch_vcc"))
    )


def register_name(number: int, words: int = 1, accumulation: bool = False) -> str:
    """Return a register's name, such as `v12`, `a[0:3]`, `s[4:5]`, `vcc`."""
    if number < VCC or number >= VGPR:
        letter, first = ("a" if accumulation else "v", number - VGPR) if number >= VGPR else ("s", number)
        return f"{letter}{first}" if words == 1 else f"{letter}[{first}:{first + words - 1}]"
    for first, name in ((VCC, "vcc"), (EXEC, "exec")):
        if first <= number < first + 2:
            return name if words == 2 else f"{name}_{('lo', 'hi')[number - first]}"
    if M0 <= number < EXEC:  # RDNA's is one higher
        return "m0"
    return f"ttmp{number - 108}" if words == 1 else f"ttmp[{number - 108}:{number - 109 + words}]"


def _operand_text(instruction: Instruction, operand: Operand) -> str:
    number = operand.number
    if operand.is_register:
        half = "" if operand.half is None or not instruction.short else (".l", ".h")[operand.half]
        return register_name(number, operand.words, operand.accumulation) + half
    if number <= 208:
        return str(number - 128 if number <= 192 else 192 - number)
    if number == _LITERAL:
        return hex(instruction.field("literal"))
    special = {248: "0.15915494", 251: "vccz", 252: "execz", 253: "scc"}
    return str(FLOAT_CONSTANTS.get(number, special.get(number, f"src{number}")))


def disassemble(instruction: Instruction) -> str:
    """Return the approximate assembly text of an instruction, such as `ds_read_b64 v[2:3], v4 offset:16`."""
    if instruction.parts:
        return " :: ".join(disassemble(part).replace("v_", "v_dual_", 1) for part in instruction.parts)
    name, fields = instruction.mnemonic, instruction.fields
    if name.startswith("s_cbranch") or name == "s_branch":
        return f"{name} {instruction.branch_target():#x}"
    waits = waited_for(instruction)
    if waits:
        return f"{name} " + " ".join(f"{counter}({left})" for counter, left in waits.items())
    operands = sorted(operands_of(instruction), key=lambda operand: not operand.result)
    texts = [_operand_text(instruction, operand) for operand in operands]
    if "simm16" in dict(instruction.words):
        texts.append(hex(fields["simm16"]))
    if name.startswith(("global_", "scratch_")) and not _has_scalar_address(instruction):
        texts.append("off")
    if "literal" in fields and name.startswith(("v_fmamk", "v_fmaak", "v_madmk", "v_madak")):
        texts.append(hex(fields["literal"]))
    return " ".join([name, ", ".join(texts), *_modifiers(instruction)]).replace("  ", " ").rstrip()


def _modifiers(instruction: Instruction) -> Iterator[str]:
    fields, name = instruction.fields, instruction.mnemonic
    if "offset0" in fields:
        if "2" in name.split("_")[1]:  # read2, write2st64, …
            yield f"offset0:{fields['offset0']} offset1:{fields['offset1']}"
        elif fields["offset0"] or fields["offset1"]:
            yield f"offset:{fields['offset0'] | fields['offset1'] << 8}"
    elif offset := fields.get("offset", fields.get("ioffset")):
        bits = 24 if instruction.arch.isa == "rdna4" else 21 if instruction.base_encoding == "SMEM" else 13
        yield f"offset:{offset if name.startswith('buffer_') else signed(offset, bits)}"
    yield from (flag for flag in _FLAGS if fields.get(flag))
    if "dpp" in fields:
        yield f"dpp:{fields['dpp']:#x}"
