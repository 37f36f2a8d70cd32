"""Instructions without effect, and instructions refused as not implemented or unknown."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aot_emulator.errors import UnsupportedInstructionError
from aot_emulator.isa.decoding import decode
from aot_emulator.machine.program import Program
from tests.support.emulation.machine import LANE, Machine, assemble

NOTHING = """
gfx90a: buffer_wbinvl1_vol; buffer_wbl2; buffer_invl2
gfx942: buffer_inv sc1
gfx1100: buffer_gl0_inv; buffer_gl1_inv; s_gl1_inv; s_dcache_inv; v_permlane64_b32 v5, v8
gfx1100: s_nop 3; s_waitcnt vmcnt(0) lgkmcnt(0); s_waitcnt_vscnt null, 0x0; s_clause 0x3; s_waitcnt_depctr 0xfff
gfx1100: s_delay_alu instid0(VALU_DEP_1); s_sleep 1; s_wakeup; s_set_inst_prefetch_distance 0x1; v_nop
gfx1100: s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)
gfx1201: global_inv scope:SCOPE_SYS; global_wb scope:SCOPE_SYS; global_wbinv scope:SCOPE_SYS; s_dcache_inv
gfx1201: s_prefetch_data s[4:5], 100, null, 7; v_permlane64_b32 v5, v8; s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)
gfx1201: s_wait_alu 0xfffe; s_wait_loadcnt 0x0; s_wait_storecnt 0x0; s_wait_dscnt 0x0; s_wait_kmcnt 0x0
gfx1201: s_wait_samplecnt 0x0; s_wait_bvhcnt 0x0; s_wait_expcnt 0x0; s_wait_loadcnt_dscnt 0x0; s_wait_storecnt_dscnt 0x0
""".strip().split("\n")


@pytest.mark.parametrize("line", NOTHING)
def test_what_does_nothing(line: str):
    arch, _, texts = line.partition(": ")
    machine, untouched = Machine(arch), Machine(arch)
    machine.execute(*texts.split("; "))
    np.testing.assert_array_equal(machine.v, untouched.v)
    np.testing.assert_array_equal(machine.s, untouched.s)


# arch: text, and what the message says, if not that the mnemonic is not implemented
REFUSED = """
gfx942: v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[8:11], v12
gfx942: v_mul_u32_u24 v4, v2, v3 clamp; clamp
gfx942: v_pk_mul_f32 v[4:5], v[2:3], 1.0; high dword
gfx942: v_pk_lshlrev_b16 v2, v8, v9 clamp; does not saturate
gfx942: s_getreg_b32 s2, hwreg(2); only MODE
gfx942: s_ashr_i64 s[2:3], 0x92345678, 4; extension
gfx942: buffer_load_ubyte v1, s[8:11], 0 offen lds; less than a dword
gfx90a: buffer_load_ubyte v1, s[8:11], 0 offen lds; less than a dword
gfx950: v_smfmac_f32_16x16x64_f16 v[0:3], v[4:7], v[8:15], v16
gfx950: v_mfma_ld_scale_b32 v0, v1
gfx950: v_mfma_f32_16x16x32_f16 v[0:3], v[4:7], v[8:11], v[0:3] blgp:1; has no modifier blgp
gfx950: v_permlane16_swap_b32 v2, v3; inactive lanes
gfx950: ds_read_b64_tr_b16 v[2:3], v8; inactive lanes
gfx950: v_cvt_scalef32_pk32_f32_fp6 v[0:31], v[32:37], v40
gfx950: v_cvt_scalef32_sr_pk_fp4_f32 v0, v[2:3], v4, v5
gfx950: v_cvt_scalef32_sr_fp8_f16 v0, v2, v4, v5
gfx950: ds_read_b96_tr_b6 v[0:2], v4
gfx1100: ds_bvh_stack_rtn_b32 v1, v0, v1, v[2:5]
gfx1100: ds_wrap_rtn_b32 v5, v1, v2, v3
gfx1100: ds_add_u32 v1, v2 gds; global data share
gfx1100: global_atomic_cmpswap_f32 v1, v[2:3], s[4:5]
gfx1100: buffer_load_format_x v1, v2, s[8:11], null offen
gfx1100: s_load_b32 null, s[4:5], 0x0; null
gfx1100: s_sendmsg sendmsg(MSG_INTERRUPT)
gfx1100: v_wmma_f16_16x16x16_f16 v[24:31], v[0:7], v[8:15], 1.0; non-zero inline constant
gfx1100: v_wmma_f32_16x16x16_f16 v[60:67], v[0:7], v[8:15], 0; register v67
gfx1201: v_dot4_i32_iu8 v2, v8, v9, v10 clamp; unsigned products
gfx1201: ds_condxchg32_rtn_b64 v[5:6], v1, v[2:3]
gfx1201: ds_storexchg_2addr_rtn_b32 v[6:7], v1, v2, v3
gfx1201: global_load_tr_b128 v[1:4], v[0:1], off
gfx1201: buffer_load_b32 v[1:2], v3, s[8:11], null offen tfe; tfe
gfx1201: s_atc_probe 7, s[4:5], 64
gfx1201: s_sendmsg sendmsg(MSG_INTERRUPT)
gfx1201: v_swmmac_f32_16x16x32_f16 v[16:23], v[0:3], v[4:11], v12
gfx1201: v_swmmac_i32_16x16x64_iu4 v[16:23], v[0:1], v[4:7], v12
""".strip().split("\n")


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused(line: str):
    """Each line names an instruction that is refused, some of them because a lane is inactive."""
    arch, text, message = re.fullmatch(r"(\w+): ([^;]*)(?:; (.*))?", line).groups()
    machine = Machine(arch)
    machine.activate(LANE % 64 < 63)
    with pytest.raises(UnsupportedInstructionError, match=message or text.split()[0]) as raised:
        machine.execute(text)
    assert (raised.value.mnemonic, raised.value.pc) == (text.split()[0], 0)
    assert raised.value.mnemonic in str(raised.value)
    assert raised.value.kernel in ("test", None)  # none where its execution refuses it


@pytest.mark.parametrize("text", ("s_add_f32 s4, s5, s6", "s_cvt_f32_i32 s4, s5", "s_cmp_lt_f16 s5, s6"))
def test_scalar_floats_where_there_are_none(text: str):
    """RDNA 3 has no such code, and the tables do not tell it from RDNA 3.5."""
    machine = Machine("gfx1100")
    program = Program("test", machine.arch, 0, decode(assemble(text, "gfx1151"), machine.arch), machine.layout)
    with pytest.raises(UnsupportedInstructionError, match="gfx1100 has no floating-point SALU"):
        program.run_at(0)
