"""Decoding, disassembly and wait counters of instructions against LLVM's assembler, mainly where the decoder's tables
are incomplete or wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tinygrad.renderer.amd import decode_inst

from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.decoding import decode
from aot_emulator.isa.disassembly import disassemble, operands_of, register_name
from aot_emulator.isa.encodings import Encodings
from aot_emulator.isa.gfx90a import MATRIX_OPCODES
from aot_emulator.isa.matrix import matrix_op
from aot_emulator.isa.wait_counters import counted_by, is_coherent, returns_value, waited_for
from tests.support.emulation.machine import assemble, block, decoded, every_rdna

AS_WRITTEN = """
v_fma_f64 v[0:1], v[2:3], v[4:5], s[6:7]
v_mfma_f32_32x32x8_f16 a[0:15], v[2:3], a[4:5], a[0:15]
v_mfma_f32_16x16x16_f16 v[0:3], v[2:3], v[4:5], 0
v_cmp_lt_f32 vcc, v1, v2
v_cndmask_b32 v1, v2, v3, s[4:5]
v_mad_u64_u32 v[0:1], s[2:3], v4, v5, v[6:7]
v_readlane_b32 s3, v4, s5
v_readfirstlane_b32 s3, v4
v_writelane_b32 v4, s3, 5
v_add_f32 v1, -4.0, v3
v_add_u32 v1, 0x12345, v3
v_div_scale_f32 v1, vcc, v2, v3, v4
s_and_saveexec_b64 s[4:5], vcc
s_mov_b64 exec, s[4:5]
s_mov_b32 vcc_hi, ttmp4
global_load_dwordx4 v[0:3], v[4:5], off
global_load_short_d16_hi v0, v4, s[2:3] offset:16
global_store_dwordx2 v4, a[6:7], s[2:3]
global_atomic_add v1, v4, v5, s[2:3] sc0
global_atomic_cmpswap_x2 v[0:1], v[2:3], v[4:7], off sc0
scratch_store_dword v1, v2, off
buffer_load_dwordx4 v[0:3], v4, s[8:11], s2 offen
buffer_atomic_cmpswap v[0:1], v4, s[8:11], 0 offen sc0
ds_read2st64_b64 v[0:3], v4 offset0:1 offset1:2
ds_cmpst_rtn_b64 v[0:1], v2, v[4:5], v[6:7]
s_waitcnt vmcnt(37) expcnt(3) lgkmcnt(2)
s_memtime s[2:3]
""".strip().split("\n")
OF_RDNA3 = ("v_dual_add_f32 v2, v8, v9 :: v_dual_mov_b32 v3, v10", "v_add_f16 v2.h, v8.l, v9.h",
            "v_fma_f16 v2.h, v8.l, v200.h, v9.l", "v_cvt_f32_f16 v4, v8.h")  # fmt: skip


@pytest.mark.parametrize("arch,lines", (("gfx942", AS_WRITTEN), ("gfx1100", OF_RDNA3)))
def test_text(arch: str, lines: tuple[str, ...]):
    for line in lines:
        assert disassemble(decoded(line, arch)) == line


def test_branches_show_where_they_lead():
    instructions = list(decode(assemble("s_nop 0\ns_cbranch_vccz 4\ns_branch 0xfffd"), ARCHS["gfx942"]).values())
    assert [disassemble(found) for found in instructions[1:]] == ["s_cbranch_vccz 0x18", "s_branch 0x0"]


# line → (results, other operands)
OPERANDS = {
    "v_addc_co_u32 v1, vcc, v2, v3, vcc": ("v1 vcc", "v2 v3"),
    "v_add_u32_sdwa v1, v2, s3 dst_sel:DWORD src0_sel:WORD_1 src1_sel:DWORD": ("v1", "v2 s3"),
    "v_mfma_f32_16x16x16_f16 a[0:3], a[4:5], v[4:5], a[8:11]": ("a[0:3]", "a[4:5] v[4:5] a[8:11]"),
    "v_div_fmas_f32 v1, v2, v3, v4": ("v1", "v2 v3 v4 vcc"),
    "s_cbranch_vccnz 4": ("", "vcc"),
    "s_load_dword s4, s[0:1], s9 offset:0x10": ("s4", "s[0:1] s9"),
    "scratch_load_dword v1, off, s3": ("v1", "s3"),
    "buffer_load_dword a4, v[2:3], s[8:11], 0 idxen offen": ("a4", "v[2:3] s[8:11]"),
    "buffer_atomic_add v4, v2, s[8:11], 0 offen": ("", "v4 v2 s[8:11]"),
    "buffer_wbl2 sc1": ("", ""),
}


def test_operands():
    for line, wanted in OPERANDS.items():
        found = [operand for operand in operands_of(decoded(line)) if operand.is_register]
        names = [register_name(operand.number, operand.words, operand.accumulation) for operand in found]
        results, others = ([name for name, operand in zip(names, found, strict=True) if operand.result is kind]
                           for kind in (True, False))  # fmt: skip
        assert (" ".join(results), " ".join(others)) == wanted, line


# arch, line → what is waited for
WAITS = {
    ("gfx942", "s_waitcnt vmcnt(63) lgkmcnt(15) expcnt(7)"): {}, ("gfx942", "s_waitcnt vmcnt(17)"): {"vmcnt": 17},
    ("gfx942", "s_waitcnt 0"): {"vmcnt": 0, "expcnt": 0, "lgkmcnt": 0}, ("gfx1100", "s_waitcnt expcnt(2)"): {"expcnt": 2},
    ("gfx1100", "s_waitcnt vmcnt(33) lgkmcnt(18)"): {"vmcnt": 33, "lgkmcnt": 18},
    ("gfx1201", "s_wait_loadcnt_dscnt 0x203"): {"loadcnt": 2, "dscnt": 3},
    ("gfx1201", "s_wait_storecnt_dscnt 0x100"): {"storecnt": 1, "dscnt": 0},
}  # fmt: skip
# arch, line → counters; `?` after those that come back in any order. Others are in the sanitizer's tests.
COUNTED = {
    ("gfx942", "global_store_dword v1, v2, s[4:5]"): "vmcnt", ("gfx942", "buffer_inv sc1"): "",
    ("gfx942", "buffer_wbl2 sc1"): "vmcnt", ("gfx942", "flat_store_dword v[2:3], v1"): "vmcnt? lgkmcnt?",
    ("gfx942", "v_add_f32 v1, v2, v3"): "", ("gfx1100", "scratch_store_b32 v2, v1, s4"): "vscnt",
    ("gfx1100", "global_atomic_add_u32 v1, v3, s[4:5]"): "vscnt", ("gfx1201", "s_load_b32 s4, s[0:1], 0x0"): "kmcnt?",
    ("gfx1201", "global_atomic_add_u32 v1, v3, s[4:5]"): "storecnt", ("gfx1201", "flat_load_b32 v1, v[2:3]"): "loadcnt? dscnt?",
}  # fmt: skip


def test_waits_and_counters():
    for (arch, line), wanted in WAITS.items():
        assert waited_for(decoded(line, arch)) == wanted, line
    for (arch, line), counters in COUNTED.items():
        found = counted_by(decoded(line, arch))
        assert " ".join(each.counter + ("" if each.in_order else "?") for each in found) == counters, line


@pytest.mark.parametrize("arch,line,coherent,returns", [
    ("gfx942", "global_load_dword v2, v1, s[4:5] sc1", True, False), ("gfx942", "global_load_dword v2, v1, s[4:5] nt", False, False),
    ("gfx1100", "global_load_b32 v2, v1, s[4:5] glc", True, False),
    ("gfx1201", "global_load_b32 v2, v1, s[4:5] scope:SCOPE_DEV", True, False),
    ("gfx1201", "global_load_b32 v2, v1, s[4:5] scope:SCOPE_SE", False, False),
    ("gfx942", "ds_add_rtn_u32 v0, v1, v2", None, True), ("gfx942", "ds_add_u32 v1, v2", None, False),
    ("gfx942", "global_load_dword v2, v1, s[4:5] sc0", None, False),
    ("gfx90a", "global_load_dword v1, v[2:3], off glc slc", True, False), ("gfx90a", "flat_load_dword v1, v[2:3] glc", True, False),
    ("gfx90a", "buffer_load_dword v1, v2, s[4:7], 0 offen glc slc", True, False),
    ("gfx90a", "global_atomic_add v[2:3], v1, off", None, False), ("gfx90a", "flat_atomic_add v0, v[2:3], v1 glc", None, True),
    ("gfx90a", "buffer_atomic_add v1, v2, s[4:7], 0 offen glc", None, True),
])  # fmt: skip
def test_coherence_and_returned_values(arch: str, line: str, coherent: bool | None, returns: bool):
    instruction = decoded(line, arch)
    assert returns_value(instruction) == returns
    assert coherent is None or is_coherent(instruction) == coherent
    assert arch != "gfx90a" or ("glc" in line) == ("glc" in disassemble(instruction))


def test_matrix_encodings_of_gfx90a():
    for opcode, name in MATRIX_OPCODES.items():
        op = matrix_op.matrix_ops("gfx90a")[name]
        d, a, b = block(0, op.d_registers, "a"), block(2, op.a_registers), block(40, op.b_registers, "a")
        text = f"{name} {d}, {a}, {b}, {d}"
        instruction = decoded(text, "gfx90a")
        assert instruction.mnemonic == name and instruction.size == 8 and disassemble(instruction) == text
        assert int.from_bytes(assemble(text, "gfx90a")[:4], "little") >> 16 & 0x7F == opcode


@pytest.mark.parametrize("isa", ("cdna", "rdna3", "rdna4"))
def test_encodings_are_those_that_tinygrad_finds(isa: str):
    """Random words, many with a source that marks a further dword, and cut short."""
    drawn, encodings, known = random.Random(3), Encodings(isa), set()

    def found(decode: Callable[[bytes], Any], raw: bytes) -> tuple[str, int] | None:
        try:
            instruction = decode(raw)
            assert instruction.op if hasattr(type(instruction), "op") else (instruction.opx, instruction.opy)
        except (ValueError, AttributeError):
            return None
        return type(instruction).__name__, instruction._raw

    for _ in range(4000):
        word = drawn.getrandbits(128)
        if drawn.random() < 0.4:
            word = word & ~0x1FF | drawn.choice((233, 234, 249, 250, 255))
        raw = word.to_bytes(16, "little")[: drawn.choice((4, 8, 8, 12, 16))]
        ours = found(encodings.decode, raw)
        assert ours == found(lambda given: decode_inst(given, isa), raw), raw.hex()
        known.add(ours and ours[0])
    assert len(known) > 25 and None in known


@pytest.mark.parametrize("arch,texts", (
    ("gfx90a", (
        "v_mac_f32_e32 v0, v1, v2", "v_mac_f32_e64 v0, v1, v2", "v_mad_f32 v0, v1, v2, v3", "v_mad_legacy_f32 v0, v1, v2, v3",
        "v_madmk_f32 v0, v1, 0x41200000, v2", "v_madak_f32 v0, v1, v2, 0x41200000", "buffer_wbinvl1", "buffer_wbinvl1_vol",
        "buffer_wbl2", "buffer_invl2", "v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]", "v_dot2c_f32_f16_e32 v0, v1, v2",
        "v_fma_f32 v0, v1, v2, v3", "v_fmac_f32_e32 v0, v1, v2", "global_atomic_add_f64 v[0:1], v[2:3], off")),
    ("gfx942", ("v_fmamk_f32 v0, v1, 0x41200000, v2",)),
    ("gfx950", ("v_mfma_f32_16x16x32_f16 v[0:3], v[4:7], v[8:11], v[0:3]", "v_dot2c_f32_bf16 v0, v1, v2")),
))  # fmt: skip
def test_names(arch: str, texts: tuple[str, ...]):
    for text in texts:
        assert decoded(text, arch).mnemonic == text.split()[0].removesuffix("_e32").removesuffix("_e64")


def test_scaled_matrix_instructions_are_told_from_what_precedes_others():
    """The tables would take any eight bytes before v_mfma_…_f8f6f4 for the first half of its scaled form."""
    lines = "v_add3_u32 v0, v1, v2, v3\nv_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3]"
    names = [found.mnemonic for found in decode(assemble(lines, "gfx950"), ARCHS["gfx950"]).values()]
    assert names == ["v_add3_u32", "v_mfma_f32_16x16x128_f8f6f4"]


FORMS = {
    "v_mov_b32 v1, 0x12345678": ("VOP1_LIT", 8),
    "v_mov_b32_dpp v1, v2 row_xmask:1 row_mask:0xf bank_mask:0xf": ("VOP1_DPP16", 8),
    "v_mov_b32_dpp v1, v2 dpp8:[1,0,3,2,5,4,7,6]": ("VOP1_DPP8", 8),
    "v_add_f32_dpp v1, v2, v3 dpp8:[1,0,3,2,5,4,7,6] fi:1": ("VOP2_DPP8", 8),
    "v_add_f32_e64_dpp v1, v2, v3 row_share:1 row_mask:0xf bank_mask:0xf": ("VOP3_DPP16", 12),
    "v_fma_f32_e64_dpp v1, v2, v3, v4 dpp8:[1,0,3,2,5,4,7,6]": ("VOP3_DPP8", 12),
    "v_cmp_lt_f32_dpp vcc_lo, v2, v3 row_share:1 row_mask:0xf bank_mask:0xf": ("VOPC_DPP16", 8),
    "v_cmp_lt_f32_e64_dpp s3, v2, v3 row_share:1 row_mask:0xf bank_mask:0xf": ("VOP3_DPP16", 12),
    "v_cmp_lt_f32_e64_dpp s3, v2, v3 dpp8:[1,0,3,2,5,4,7,6]": ("VOP3_DPP8", 12),
    "v_fma_f32 v1, v2, v3, 0x12345678": ("VOP3_LIT", 12),
    "v_cmp_lt_f32_e64 s3, v2, 0x12345678": ("VOP3_SDST_LIT", 12),
    "v_pk_add_u16 v1, v2, 0x1234": ("VOP3P_LIT", 12),
    "s_mov_b32 s1, 0x12345678": ("SOP1_LIT", 8),
    "v_dual_mov_b32 v1, 0x12345678 :: v_dual_add_f32 v2, v3, v4": ("VOPD_LIT", 12),
}


@pytest.mark.parametrize("text", FORMS)
@every_rdna
def test_encodings_with_further_dwords(arch: str, text: str):
    found = decoded(text, arch)
    assert (found.encoding, found.size) == FORMS[text]
    assert "s3" not in text or (found.fields["vdst"] == 3 and not operands_of(found)[0].is_vector)


@pytest.mark.parametrize("name,words", (("load_b32", 1), ("atomic_cmpswap_b64", 4), ("load_d16_format_xyz", 2)))
@every_rdna
def test_fields_of_buffer_instructions(arch: str, name: str, words: int):
    offset = 100 if arch == "gfx1100" else 0x123456
    found = decoded(f"buffer_{name} {block(5, words)}, v[8:9], s[12:15], s9 idxen offen offset:{offset}", arch)
    assert found.mnemonic == f"buffer_{name}" and found.encoding == ("MUBUF" if arch == "gfx1100" else "VBUFFER")
    assert [found.fields[field] for field in ("vdata", "vaddr", "soffset", "offen", "idxen")] == [261, 264, 9, 1, 1]
    assert found.field("srsrc", found.field("rsrc")) == 12 and found.field("offset", found.field("ioffset")) == offset
    assert {operand.name: operand.words for operand in operands_of(found)}["vdata"] == words


# Which half of v1 a load or a store reaches
HALVES = {
    "global_load_d16_b16 v1, v[2:3], off": 0, "global_load_d16_hi_b16 v1, v[2:3], off": 1,
    "global_load_u16 v1, v[2:3], off": None, "global_store_b16 v[2:3], v1, off": 0,
    "global_store_d16_hi_b8 v[2:3], v1, off": 1, "global_store_b32 v[2:3], v1, off": None, "ds_load_u16_d16 v1, v2": 0,
    "ds_load_u16_d16_hi v1, v2": 1, "ds_store_b8 v2, v1": 0, "ds_store_b16_d16_hi v2, v1": 1,
    "v_fma_mixhi_f16 v1, v2, v3, v4": 1,
}  # fmt: skip


@every_rdna
def test_halves_that_loads_and_stores_reach(arch: str):
    found = {text: [o.half for o in operands_of(decoded(text, arch)) if o.number == 257] for text in HALVES}
    assert found == {text: [half] for text, half in HALVES.items()}


@every_rdna
def test_halves_are_named_alike_in_every_encoding(arch: str):
    for text in ("v_add_f16 v2.h, v8.l, v9.h", "v_cvt_f32_f16 v2, v8.h", "v_mov_b16 v2.h, v8.l"):
        one, other = decoded(text, arch), decoded(text.replace(" ", "_e64 ", 1), arch)
        assert (one.size, other.size) == (4, 8)
        assert all(one.field(name) == other.field(name) for name in ("opsel", "vdst", "src0"))
        assert [operand.half for operand in operands_of(one)] == [operand.half for operand in operands_of(other)]


@every_rdna
def test_a_pair_is_its_parts(arch: str):
    found = decoded("v_dual_fmac_f32 v3, s4, v9 :: v_dual_cndmask_b32 v10, 0.5, v11", arch)
    assert found.mnemonic == "v_dual_fmac_f32 :: v_dual_cndmask_b32"
    one, other = found.parts
    assert (one.mnemonic, dict(one.fields)) == ("v_fmac_f32", {"vdst": 259, "src0": 4, "vsrc1": 265})
    assert (other.mnemonic, dict(other.fields)) == ("v_cndmask_b32", {"vdst": 266, "src0": 240, "vsrc1": 267})
    assert {259, 4, 265, 266, 267, 106} <= {operand.number for operand in operands_of(found)}
