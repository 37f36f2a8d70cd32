"""Instructions as text and as operands, and the counters of outstanding operations, against LLVM's assembler."""

from __future__ import annotations

import pytest
from aot_emulator.isa.archs import ARCHS, Arch
from aot_emulator.isa.decoding import Instruction, decode
from aot_emulator.isa.disassembly import disassemble, operands_of, register_name
from aot_emulator.isa.wait_counters import counted_by, is_coherent, returns_value, waited_for

from tests.support.emulation.machine import assemble

CDNA = ARCHS["gfx942"]
RDNA3, RDNA4 = ARCHS["gfx1100"], ARCHS["gfx1201"]
AS_WRITTEN = """
v_add_f32 v1, v2, v3
v_fma_f64 v[0:1], v[2:3], v[4:5], s[6:7]
v_mfma_f32_32x32x8_f16 a[0:15], v[2:3], a[4:5], a[0:15]
v_mfma_f32_16x16x16_f16 v[0:3], v[2:3], v[4:5], 0
v_cmp_lt_f32 vcc, v1, v2
v_cmp_lt_f64 s[4:5], v[2:3], v[4:5]
v_cndmask_b32 v1, v2, v3, vcc
v_cndmask_b32 v1, v2, v3, s[4:5]
v_mad_u64_u32 v[0:1], s[2:3], v4, v5, v[6:7]
v_readlane_b32 s3, v4, s5
v_readfirstlane_b32 s3, v4
v_writelane_b32 v4, s3, 5
v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]
v_add_f32 v1, -4.0, v3
v_add_u32 v1, -16, v3
v_add_u32 v1, 0x12345, v3
v_lshl_add_u64 v[0:1], v[2:3], 2, v[4:5]
v_div_scale_f32 v1, vcc, v2, v3, v4
v_mov_b64 v[0:1], v[2:3]
s_add_u32 s4, s5, s6
s_lshl_b64 s[4:5], s[6:7], 3
s_and_saveexec_b64 s[4:5], vcc
s_cmp_eq_u64 s[4:5], s[6:7]
s_setpc_b64 s[4:5]
s_mov_b32 m0, 5
s_mov_b64 exec, s[4:5]
s_mov_b32 vcc_hi, ttmp4
global_load_dwordx4 v[0:3], v[4:5], off
global_load_dwordx3 v[0:2], v4, s[2:3] offset:-16
global_load_short_d16_hi v0, v4, s[2:3] offset:16
global_store_dwordx2 v4, a[6:7], s[2:3]
global_atomic_add v1, v4, v5, s[2:3] sc0
global_atomic_cmpswap_x2 v[0:1], v[2:3], v[4:7], off sc0
global_atomic_add_f32 v4, v5, s[2:3]
flat_load_dword v1, v[2:3]
scratch_store_dword v1, v2, off
buffer_load_dwordx4 v[0:3], v4, s[8:11], s2 offen
buffer_store_short v0, v4, s[8:11], 0 offen
buffer_atomic_cmpswap v[0:1], v4, s[8:11], 0 offen sc0
ds_read_b128 v[0:3], v4 offset:16
ds_read2st64_b64 v[0:3], v4 offset0:1 offset1:2
ds_write_b96 v0, v[2:4]
ds_add_rtn_u32 v0, v1, v2
ds_cmpst_rtn_b64 v[0:1], v2, v[4:5], v[6:7]
ds_bpermute_b32 v0, v1, v2
s_waitcnt vmcnt(37) expcnt(3) lgkmcnt(2)
s_waitcnt lgkmcnt(0)
s_memtime s[2:3]
s_barrier
s_endpgm
""".strip().split("\n")


def decoded(arch: Arch, line: str) -> Instruction:
    instructions = decode(assemble(line, arch.name), arch)
    assert len(instructions) == 1, line
    return instructions[0]


@pytest.mark.parametrize("line", AS_WRITTEN)
def test_text(line: str):
    assert disassemble(decoded(CDNA, line)) == line


def test_branches_show_where_they_lead():
    instructions = list(decode(assemble("s_nop 0\ns_cbranch_vccz 4\ns_branch 0xfffd"), CDNA).values())
    assert [disassemble(found) for found in instructions[1:]] == ["s_cbranch_vccz 0x18", "s_branch 0x0"]


# line → (results, other operands)
OPERANDS = {
    "v_addc_co_u32 v1, vcc, v2, v3, vcc": ("v1 vcc", "v2 v3"),
    "v_add_u32_sdwa v1, v2, s3 dst_sel:DWORD src0_sel:WORD_1 src1_sel:DWORD": ("v1", "v2 s3"),
    "v_add_f32_dpp v1, v2, v3 row_shl:1 row_mask:0xf bank_mask:0xf": ("v1", "v2 v3"),
    "v_accvgpr_write_b32 a3, v2": ("a3", "v2"),
    "v_accvgpr_read_b32 v2, a3": ("v2", "a3"),
    "v_mfma_f32_16x16x16_f16 a[0:3], a[4:5], v[4:5], a[8:11]": ("a[0:3]", "a[4:5] v[4:5] a[8:11]"),
    "v_div_fmas_f32 v1, v2, v3, v4": ("v1", "v2 v3 v4 vcc"),
    "s_cbranch_vccnz 4": ("", "vcc"),
    "s_load_dword s4, s[0:1], s9 offset:0x10": ("s4", "s[0:1] s9"),
    "global_store_dwordx2 v[0:1], v[6:7], off": ("", "v[0:1] v[6:7]"),
    "scratch_load_dword v1, off, s3": ("v1", "s3"),
    "buffer_load_dword a4, v[2:3], s[8:11], 0 idxen offen": ("a4", "v[2:3] s[8:11]"),
    "buffer_atomic_add v4, v2, s[8:11], 0 offen": ("", "v4 v2 s[8:11]"),
    "ds_swizzle_b32 v0, v1 offset:4": ("v0", "v1"),
    "buffer_wbl2 sc1": ("", ""),
}


@pytest.mark.parametrize("line", OPERANDS)
def test_operands(line: str):
    operands = operands_of(decoded(CDNA, line))
    shown = [
        " ".join(
            register_name(o.number, o.words, o.accumulation) for o in operands if o.is_register and o.result is result
        )
        for result in (True, False)
    ]
    assert tuple(shown) == OPERANDS[line]


WAITS = [
    (CDNA, "s_waitcnt vmcnt(63) lgkmcnt(15) expcnt(7)", {}),
    (CDNA, "s_waitcnt vmcnt(17)", {"vmcnt": 17}),
    (CDNA, "s_waitcnt 0", {"vmcnt": 0, "expcnt": 0, "lgkmcnt": 0}),
    (CDNA, "s_nop 0", {}),
    (RDNA3, "s_waitcnt vmcnt(33) lgkmcnt(18)", {"vmcnt": 33, "lgkmcnt": 18}),
    (RDNA3, "s_waitcnt expcnt(2)", {"expcnt": 2}),
    (RDNA3, "s_waitcnt_vscnt null, 0x5", {"vscnt": 5}),
    (RDNA4, "s_wait_loadcnt 0x3", {"loadcnt": 3}),
    (RDNA4, "s_wait_storecnt 0x0", {"storecnt": 0}),
    (RDNA4, "s_wait_loadcnt_dscnt 0x203", {"loadcnt": 2, "dscnt": 3}),
    (RDNA4, "s_wait_storecnt_dscnt 0x100", {"storecnt": 1, "dscnt": 0}),
    (RDNA4, "s_wait_kmcnt 0x0", {"kmcnt": 0}),
]


@pytest.mark.parametrize("arch,line,waits", WAITS, ids=[f"{arch.name} {line}" for arch, line, _ in WAITS])
def test_waits(arch: Arch, line: str, waits: dict[str, int]):
    assert waited_for(decoded(arch, line)) == waits


# (arch, line, counters; `?` after those that come back in any order)
COUNTED = [
    (CDNA, "global_load_dword v2, v1, s[4:5]", "vmcnt"),
    (CDNA, "global_store_dword v1, v2, s[4:5]", "vmcnt"),
    (CDNA, "buffer_atomic_add v4, v2, s[8:11], 0 offen", "vmcnt"),
    (CDNA, "buffer_inv sc1", ""),
    (CDNA, "buffer_wbl2 sc1", "vmcnt"),
    (CDNA, "ds_write_b32 v1, v2", "lgkmcnt"),
    (CDNA, "s_load_dword s4, s[0:1], 0", "lgkmcnt?"),
    (CDNA, "flat_store_dword v[2:3], v1", "vmcnt? lgkmcnt?"),
    (CDNA, "v_add_f32 v1, v2, v3", ""),
    (RDNA3, "global_load_b32 v2, v1, s[4:5]", "vmcnt"),
    (RDNA3, "scratch_store_b32 v2, v1, s4", "vscnt"),
    (RDNA3, "global_atomic_add_u32 v1, v3, s[4:5]", "vscnt"),
    (RDNA3, "global_atomic_add_u32 v2, v1, v3, s[4:5] glc", "vmcnt"),
    (RDNA3, "ds_load_b64 v[2:3], v1", "lgkmcnt"),
    (RDNA4, "global_load_b32 v2, v1, s[4:5]", "loadcnt"),
    (RDNA4, "global_store_b32 v1, v2, s[4:5]", "storecnt"),
    (RDNA4, "global_atomic_add_u32 v2, v1, v3, s[4:5] th:TH_ATOMIC_RETURN", "loadcnt"),
    (RDNA4, "global_atomic_add_u32 v1, v3, s[4:5]", "storecnt"),
    (RDNA4, "ds_store_b32 v1, v2", "dscnt"),
    (RDNA4, "s_load_b32 s4, s[0:1], 0x0", "kmcnt?"),
    (RDNA4, "flat_load_b32 v1, v[2:3]", "loadcnt? dscnt?"),
]


@pytest.mark.parametrize("arch,line,counters", COUNTED, ids=[f"{arch.name} {line}" for arch, line, _ in COUNTED])
def test_counters(arch: Arch, line: str, counters: str):
    found = counted_by(decoded(arch, line))
    assert " ".join(each.counter + ("" if each.in_order else "?") for each in found) == counters


def test_coherence_and_returned_values():
    assert is_coherent(decoded(CDNA, "global_load_dword v2, v1, s[4:5] sc1"))
    assert not is_coherent(decoded(CDNA, "global_load_dword v2, v1, s[4:5] nt"))
    assert is_coherent(decoded(RDNA3, "global_load_b32 v2, v1, s[4:5] glc"))
    assert is_coherent(decoded(RDNA4, "global_load_b32 v2, v1, s[4:5] scope:SCOPE_DEV"))
    assert not is_coherent(decoded(RDNA4, "global_load_b32 v2, v1, s[4:5] scope:SCOPE_SE"))
    assert returns_value(decoded(CDNA, "ds_add_rtn_u32 v0, v1, v2"))
    assert not returns_value(decoded(CDNA, "ds_add_u32 v1, v2"))
    assert not returns_value(decoded(CDNA, "global_load_dword v2, v1, s[4:5] sc0"))
