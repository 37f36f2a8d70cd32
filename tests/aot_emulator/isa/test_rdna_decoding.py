"""What the decoder's tables leave out or get wrong of RDNA, against LLVM's assembler."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.decoding import Instruction, decode
from aot_emulator.isa.disassembly import operands_of

from tests.support.emulation.machine import assemble
from tests.support.emulation.registers import RDNA


def decoded(text: str, arch: str) -> Instruction:
    """The one instruction that some text is; it takes all bytes."""
    code = assemble(text, arch)
    found = decode(code, ARCHS[arch])
    assert list(found) == [0] and found[0].size == len(code), text
    return found[0]


def buffer_names(arch: str) -> list[str]:
    isa, table = {"gfx1100": ("rdna3", "MUBUFOp"), "gfx1201": ("rdna4", "VBUFFEROp")}[arch]
    tables = importlib.import_module(f"tinygrad.runtime.autogen.amd.{isa}.enum")
    # LLVM has no loads to LDS for gfx11.
    return [op.name.lower() for op in getattr(tables, table) if "_lds_" not in op.name.lower()]


def words_of(name: str) -> int:
    """Registers of a buffer instruction's data."""
    format_ = name.rpartition("_")[2]
    if "format" in name:
        return (len(format_) + 1) // 2 if "d16" in name and "hi" not in name else len(format_)
    words = {"64": 2, "96": 3, "128": 4}.get(format_.lstrip("bui"), 1)
    return 2 * words if "cmpswap" in name else words


CASES = [(arch, name) for arch in RDNA for name in buffer_names(arch)]


@pytest.mark.parametrize("arch,name", [case for case in CASES if "_gl" not in case[1] and "_inv" not in case[1]])
def test_buffer_instruction(arch: str, name: str):
    words, offset = words_of(name), 100 if arch == "gfx1100" else 0x123456
    data = f"v[5:{4 + words}]" if words > 1 else "v5"
    found = decoded(f"{name} {data}, v[8:9], s[12:15], s9 idxen offen offset:{offset}", arch)
    assert found.mnemonic == name and found.encoding == ("MUBUF" if arch == "gfx1100" else "VBUFFER")
    assert (found.fields["vdata"], found.fields["vaddr"], found.fields["soffset"]) == (261, 264, 9)
    assert found.field("srsrc", found.field("rsrc")) == 12 and found.fields["offen"] == found.fields["idxen"] == 1
    assert found.field("offset", found.field("ioffset")) == offset
    assert {operand.name: operand.words for operand in operands_of(found)}["vdata"] == words
    plain = decoded(f"{name} {data}, off, s[4:7], {'0' if arch == 'gfx1100' else 'null'}", arch)
    assert not plain.fields["offen"] and not plain.fields["idxen"]
    assert plain.fields["soffset"] == (128 if arch == "gfx1100" else 124)


def test_caches_are_named():
    assert decoded("buffer_load_b32 v5, off, s[4:7], 0 glc", "gfx1100").fields["glc"] == 1
    assert decoded("buffer_load_b32 v5, off, s[4:7], 0 slc dlc", "gfx1100").fields["slc"] == 1
    found = decoded("buffer_load_b32 v5, off, s[4:7], null th:TH_LOAD_NT scope:SCOPE_SYS", "gfx1201")
    assert (found.fields["th"], found.fields["scope"]) == (1, 3)
    for name in ("buffer_gl0_inv", "buffer_gl1_inv"):
        assert decoded(name, "gfx1100").mnemonic == name


@pytest.mark.parametrize("arch", RDNA)
def test_encodings_with_further_dwords(arch: str):
    forms = {
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
    for text, (encoding, size) in forms.items():
        found = decoded(text, arch)
        assert (found.encoding, found.size) == (encoding, size), text
        if "s3" in text:
            assert found.fields["vdst"] == 3 and not operands_of(found)[0].is_vector


@pytest.mark.parametrize("arch", RDNA)
def test_halves_are_named_alike_in_every_encoding(arch: str):
    for short, long in (("v_add_f16 v2.h, v8.l, v9.h", "v_add_f16_e64 v2.h, v8.l, v9.h"),
                        ("v_cvt_f32_f16 v2, v8.h", "v_cvt_f32_f16_e64 v2, v8.h"),
                        ("v_mov_b16 v2.h, v8.l", "v_mov_b16_e64 v2.h, v8.l")):  # fmt: skip
        one, other = decoded(short, arch), decoded(long, arch)
        assert one.size == 4 and other.size == 8
        for name in ("opsel", "vdst", "src0"):
            assert one.field(name) == other.field(name), (short, name)
        assert [operand.half for operand in operands_of(one)] == [operand.half for operand in operands_of(other)]


@pytest.mark.parametrize("arch", RDNA)
def test_halves_that_loads_and_stores_reach(arch: str):
    halves = {
        "global_load_d16_b16 v1, v[2:3], off": 0,
        "global_load_d16_hi_b16 v1, v[2:3], off": 1,
        "global_load_u16 v1, v[2:3], off": None,
        "global_store_b16 v[2:3], v1, off": 0,
        "global_store_d16_hi_b8 v[2:3], v1, off": 1,
        "global_store_b32 v[2:3], v1, off": None,
        "ds_load_u16_d16 v1, v2": 0,
        "ds_load_u16_d16_hi v1, v2": 1,
        "ds_store_b8 v2, v1": 0,
        "ds_store_b16_d16_hi v2, v1": 1,
        "v_fma_mixhi_f16 v1, v2, v3, v4": 1,
    }
    for text, half in halves.items():
        (operand,) = (operand for operand in operands_of(decoded(text, arch)) if operand.number == 257)
        assert operand.half == half, text


@pytest.mark.parametrize("arch", RDNA)
def test_a_pair_is_its_parts(arch: str):
    found = decoded("v_dual_fmac_f32 v3, s4, v9 :: v_dual_cndmask_b32 v10, 0.5, v11", arch)
    assert found.mnemonic == "v_dual_fmac_f32 :: v_dual_cndmask_b32"
    one, other = found.parts
    assert (one.mnemonic, dict(one.fields)) == ("v_fmac_f32", {"vdst": 259, "src0": 4, "vsrc1": 265})
    assert (other.mnemonic, dict(other.fields)) == ("v_cndmask_b32", {"vdst": 266, "src0": 240, "vsrc1": 267})
    numbers = [operand.number for operand in operands_of(found)]
    assert np.isin([259, 4, 265, 266, 267, 106], numbers).all()
