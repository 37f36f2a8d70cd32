"""Strict mode on CDNA: wait states between instructions for which the hardware does not stall."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.support.emulation import assembled
from tests.support.emulation.assembled import POINTER

run, fault = (partial(function, ignored=frozenset()) for function in (assembled.run, assembled.fault))

SHORT = "v_mfma_f32_16x16x16_f16 v[8:11], v[0:1], v[2:3], 0"  # 4 passes
LONG = "v_mfma_f32_32x32x2_f32 v[8:23], v0, v1, 0"  # 16 passes, not on the XDL unit
DOUBLE = "v_mfma_f64_16x16x4_f64 v[8:15], v[0:1], v[2:3], 0"
ADD, STORE = "v_add_f32 v30, v8, v8", "global_store_dword v31, v8, s[4:5]"

CASES = {
    # Matrix instructions: passes, and what is after them
    ("gfx942", SHORT, ADD): 7,
    ("gfx950", SHORT, ADD): 8,
    ("gfx942", LONG, ADD): 18,
    ("gfx90a", "v_mfma_f32_16x16x16f16 v[8:11], v[0:1], v[2:3], 0", ADD): 11,
    ("gfx942", SHORT, STORE): 7,
    ("gfx942", DOUBLE, ADD): 11,
    ("gfx942", DOUBLE, STORE): 18,
    ("gfx950", DOUBLE, ADD): 19,
    ("gfx950", DOUBLE, STORE): 18,
    ("gfx950", DOUBLE, "v_mov_b32 v9, 0"): 11,  # written by both
    ("gfx950", DOUBLE, "v_mfma_f64_16x16x4_f64 v[24:31], v[8:9], v[2:3], 0"): 19,
    ("gfx950", DOUBLE, "v_mfma_f64_16x16x4_f64 v[10:17], v[0:1], v[2:3], v[10:17]"): 17,  # C, but other registers
    ("gfx942", SHORT, "v_mov_b32 v9, 0"): 7,  # written by both
    ("gfx942", SHORT, "v_mfma_f32_16x16x16_f16 v[24:27], v[8:9], v[2:3], 0"): 7,
    ("gfx942", SHORT, "v_mfma_f32_16x16x16_f16 v[24:27], v[0:1], v[2:3], v[10:13]"): 5,  # C, but other registers
    ("gfx942", SHORT, "v_mfma_f32_16x16x16_f16 v[8:11], v[0:1], v[2:3], v[8:11]"): 0,  # forwarded
    ("gfx942", "v_mfma_f32_16x16x16_f16 v[8:11], v[0:1], v[2:3], v[12:15]", "v_mov_b32 v12, 0"): 3,  # still read
    ("gfx942", "v_mfma_f32_16x16x16_f16 a[8:11], v[0:1], v[2:3], 0", "v_accvgpr_read_b32 v30, a8"): 7,
    ("gfx942", "v_mov_b32 v0, 1", SHORT): 2,
    ("gfx942", "v_cmpx_eq_u32 v0, v0", SHORT): 4,
    # Vector and scalar registers
    ("gfx942", "v_readfirstlane_b32 s8, v0", "buffer_load_dword v1, off, s[12:15], s8"): 5,
    ("gfx942", "v_readfirstlane_b32 s8, v0", "v_mov_b32 v1, s8"): 2,
    ("gfx90a", "v_readfirstlane_b32 s8, v0", "v_mov_b32 v1, s8"): 0,
    ("gfx942", "v_readfirstlane_b32 s8, v0", "v_readlane_b32 s9, v1, s8"): 4,
    ("gfx942", "v_cmp_eq_f32 vcc, v0, v0", "v_div_fmas_f32 v1, v2, v3, v4"): 4,
    ("gfx942", "v_mov_b32 v0, 1", "v_mov_b32_dpp v1, v0 row_shl:1 row_mask:0xf bank_mask:0xf"): 2,
    ("gfx942", "v_cmpx_eq_u32 v0, v0", "v_mov_b32_dpp v1, v0 row_shl:1 row_mask:0xf bank_mask:0xf"): 5,
    ("gfx942", "v_exp_f32 v0, v1", "v_add_f32 v2, v0, v0"): 1,
    ("gfx942", "v_exp_f32 v0, v1", "v_log_f32 v2, v0"): 0,
    ("gfx942", "v_cvt_pk_fp8_f32 v0, v1, v2 op_sel:[0,0,1]", "v_mov_b32 v3, v0"): 1,
    ("gfx942", "v_cvt_sr_fp8_f32 v0, v1, v2 op_sel:[0,0,1,0]", "v_cvt_sr_fp8_f32 v0, v1, v2 op_sel:[0,0,1,1]"): 1,
    ("gfx942", "v_dot2_f32_f16 v0, v1, v2, v3", "v_add_f32 v4, v0, v0"): 3,
    ("gfx942", "global_store_dwordx4 v31, v[0:3], s[4:5]", "v_mov_b32 v2, 0"): 2,
    ("gfx942", "global_store_dwordx2 v31, v[0:1], s[4:5]", "v_mov_b32 v1, 0"): 0,
    ("gfx942", "s_mov_b32 m0, 64", "global_load_lds_dword v31, s[4:5]"): 1,
}
"""(architecture, an instruction, one that needs its result or its registers): wait states that have to be between."""
POINTERS = POINTER + "s_mov_b64 s[12:13], s[4:5]\ns_mov_b32 s14, 16\ns_mov_b32 s15, 0x00020000\n"
SETTLED = "v_mov_b32 v31, 0\ns_nop 15\ns_nop 15\n"


@pytest.mark.parametrize("arch, first, second", CASES, ids=lambda text: text.split()[0])
def test_what_has_to_be_between(arch: str, first: str, second: str):
    states = CASES[arch, first, second]

    def body(between: int) -> str:
        lines = "\n".join((first, *(["s_nop 0"] * between), second))
        return (POINTERS if "s[4:5]" in lines or "s[12:15]" in lines else "") + SETTLED + lines

    array = np.zeros(256, np.uint32)
    run(body(states), array, arch=arch)
    if states:
        words = f"needs {states} wait states before this.* and there (is|are) {states - 1}"
        fault("hazard", words, body(states - 1), array, arch=arch)


def test_s_nop_counts_its_number():
    run(SETTLED + "\n".join((SHORT, "s_nop 6", ADD)))
    fault("hazard", "needs 7 wait states", SETTLED + "\n".join((SHORT, "s_nop 5", ADD)))


def test_overwritten_results_are_those_of_the_later_instruction():
    later = "v_mfma_f32_16x16x16_f16 v[10:13], v[0:1], v[2:3], 0"
    run(SETTLED + "\n".join((SHORT, later, "v_mfma_f32_16x16x16_f16 v[24:27], v[0:1], v[2:3], v[10:13]")))
    partly = "\n".join((SHORT, later, "v_mfma_f32_16x16x16_f16 v[24:27], v[0:1], v[2:3], v[6:9]"))
    fault("hazard", r"needs 5 wait states before this \(v8, v9\), and there is 1", SETTLED + partly)


def test_ways_that_meet_have_the_hazards_of_both():
    """Some wavefronts branch around the wait, so the code behind it may be reached without one."""
    body = (
        SETTLED
        + f"v_readfirstlane_b32 s8, v0\ns_nop 7\ns_cmp_eq_u32 s8, 0\n{SHORT}\ns_cbranch_scc1 past\ns_nop 15\npast:\n{ADD}"
    )
    fault("hazard", "needs 7 wait states", body, wavefronts=2)
