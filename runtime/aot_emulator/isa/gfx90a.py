"""Differences between the encodings of gfx90a and of CDNA3, whose tables the decoder uses.

Opcodes that CDNA3 dropped or reassigned are decoded as CDNA3 instructions with the same operands, and renamed. The
cache policy bits at the positions of CDNA3's sc0, sc1 and nt are glc, scc and slc; glc of an atomic returns the old
value. In flat memory instructions, the bit for a vector address of scratch on CDNA3 selects a load to LDS on gfx90a.
Scratch uses a vector address there if it has no scalar address.

The differences were found by disassembling every opcode of every encoding with LLVM for gfx90a.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MATRIX_OPCODES: Mapping[int, str] = {
    64: "v_mfma_f32_32x32x1f32",
    65: "v_mfma_f32_16x16x1f32",
    66: "v_mfma_f32_4x4x1f32",
    68: "v_mfma_f32_32x32x2f32",
    69: "v_mfma_f32_16x16x4f32",
    72: "v_mfma_f32_32x32x4f16",
    73: "v_mfma_f32_16x16x4f16",
    74: "v_mfma_f32_4x4x4f16",
    76: "v_mfma_f32_32x32x8f16",
    77: "v_mfma_f32_16x16x16f16",
    80: "v_mfma_i32_32x32x4i8",
    81: "v_mfma_i32_16x16x4i8",
    82: "v_mfma_i32_4x4x4i8",
    84: "v_mfma_i32_32x32x8i8",
    85: "v_mfma_i32_16x16x16i8",
    99: "v_mfma_f32_32x32x4bf16_1k",
    100: "v_mfma_f32_16x16x4bf16_1k",
    101: "v_mfma_f32_4x4x4bf16_1k",
    102: "v_mfma_f32_32x32x8bf16_1k",
    103: "v_mfma_f32_16x16x16bf16_1k",
    104: "v_mfma_f32_32x32x2bf16",
    105: "v_mfma_f32_16x16x2bf16",
    107: "v_mfma_f32_4x4x2bf16",
    108: "v_mfma_f32_32x32x4bf16",
    109: "v_mfma_f32_16x16x8bf16",
    110: "v_mfma_f64_16x16x4f64",
    111: "v_mfma_f64_4x4x4f64",
}
"""VOP3P opcodes (7 bits) of gfx90a's matrix instructions, many of which CDNA3 reassigned."""
_VOP3P = 896
"""Offset of VOP3P opcodes among VOP3 opcodes, as the encodings share their upper bits."""
_SAME_OPERANDS = {
    84: 68,  # 32x32x8 i8: as 32x32x2 f32
    85: 69,
    **dict(zip(range(99, 104), range(93, 98), strict=True)),  # bf16_1k: CDNA3's bf16 with another number
    104: 64,  # 32x32x2 bf16: as 32x32x1 f32
    105: 65,
    107: 66,
    108: 68,
    109: 69,
}
"""CDNA3's VOP3P opcodes with the same operand sizes, by gfx90a's opcode."""


@dataclass(frozen=True)
class _Family:
    """Opcodes of an encoding that differ from CDNA3.

    Attributes:
        shift, encoding: position and value of the encoding bits in the first word.
        at, bits: position and width of the opcode.
        renamed: (CDNA3 opcode to decode it as, mnemonic) by opcode.
    """

    shift: int
    encoding: int
    at: int
    bits: int
    renamed: Mapping[int, tuple[int, str]]


_FAMILIES = (
    _Family(31, 0, 25, 6, {22: (59, "v_mac_f32"), 23: (23, "v_madmk_f32"), 24: (24, "v_madak_f32")}),  # VOP2
    _Family(
        26,
        0b110100,
        16,
        10,
        {278: (315, "v_mac_f32"), 448: (459, "v_mad_legacy_f32"), 449: (459, "v_mad_f32")}
        | {_VOP3P + op: (_VOP3P + _SAME_OPERANDS.get(op, op), name) for op, name in MATRIX_OPCODES.items()},
    ),  # VOP3 and VOP3P
    _Family(
        26, 0b111000, 18, 7, {41: (41, "buffer_invl2"), 62: (41, "buffer_wbinvl1"), 63: (41, "buffer_wbinvl1_vol")}
    ),  # MUBUF
)

_FLAGS = {"sc0": "glc", "sc1": "scc", "nt": "slc"}
_NO_ADDRESS = 0x7F


def substitute(raw: bytes) -> tuple[bytes, str | None]:
    """Convert machine code to CDNA3's encoding. Returns it with the mnemonic, or None if that is the same."""
    word = int.from_bytes(raw[:4], "little")
    for family in _FAMILIES:
        opcode = word >> family.at & (1 << family.bits) - 1
        if word >> family.shift == family.encoding and opcode in family.renamed:
            stand_in, name = family.renamed[opcode]
            word ^= (opcode ^ stand_in) << family.at
            return word.to_bytes(4, "little") + raw[4:], name
    return raw, None


def rename_fields(encoding: str, fields: Mapping[str, int]) -> dict[str, int]:
    """Convert the decoded fields of an instruction to gfx90a's."""
    found = {_FLAGS.get(name, name): value for name, value in fields.items()}
    if encoding in ("GLOBAL", "FLAT"):
        found["lds"] = found.pop("sve")
    elif encoding == "SCRATCH":
        found["lds"], found["sve"] = found["sve"], int(found["saddr"] == _NO_ADDRESS)
    return found
