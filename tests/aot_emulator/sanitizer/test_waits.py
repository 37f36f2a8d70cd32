"""Strict mode: registers used before the loads that write them were waited for."""

from __future__ import annotations

import re

import pytest
from aot_emulator import Order

from tests.support.emulation.strict_runs import ORDERS, POINTER, WAVE, data, fault, run

USE = "v_add_u32 v9, v2, v2\n"
HAZARDS = {
    "load": ("global_load_dword v2, v1, s[4:5]\n", "s_waitcnt vmcnt(0)\n", USE, "v2 is used"),
    "part of a wide load": ("global_load_dwordx4 v[0:3], v1, s[4:5]\n", "s_waitcnt vmcnt(0)\n", USE, "v2 is used"),
    "older of two": (
        "global_load_dword v2, v1, s[4:5]\nglobal_load_dword v3, v1, s[4:5]\n", "s_waitcnt vmcnt(1)\n", USE, "v2 is used",
    ),
    "stores are counted": (
        "global_load_dword v2, v1, s[4:5]\nglobal_store_dword v1, v0, s[4:5]\n", "s_waitcnt vmcnt(1)\n", USE, "v2 is used",
    ),
    "overwritten": ("global_load_dword v2, v1, s[4:5]\n", "s_waitcnt vmcnt(0)\n", "v_mov_b32 v2, 0\n", "v2 is used"),
    "as an address": (
        "global_load_dword v1, v1, s[4:5]\n", "s_waitcnt vmcnt(0)\nv_and_b32 v1, 60, v1\n",
        "global_load_dword v2, v1, s[4:5]\n", "v1 is used",
    ),
    "as stored data": (
        "global_load_dword v2, v1, s[4:5]\n", "s_waitcnt vmcnt(0)\n", "global_store_dword v1, v2, s[4:5]\n", "v2 is used",
    ),
    "in an accumulation register": (
        "global_load_dwordx2 a[2:3], v1, s[4:5]\n", "s_waitcnt vmcnt(0)\n", "v_accvgpr_read_b32 v2, a3\n", "a3 is used",
    ),
    "by mfma": (
        "global_load_dwordx2 v[2:3], v1, s[4:5]\n", "s_waitcnt vmcnt(0)\n",
        "v_mfma_f32_16x16x16_f16 v[12:15], v[2:3], v[4:5], 0\n", "v2, v3 are used",
    ),
    "by dpp": (
        "global_load_dword v2, v1, s[4:5]\n", "s_waitcnt vmcnt(0)\n",
        "v_mov_b32_dpp v9, v2 row_shl:1 row_mask:0xf bank_mask:0xf\n", "v2 is used",
    ),
    "by sdwa": (
        "global_load_dword v2, v1, s[4:5]\n", "s_waitcnt vmcnt(0)\n",
        "v_add_u32_sdwa v9, v2, v3 dst_sel:DWORD src0_sel:WORD_1 src1_sel:DWORD\n", "v2 is used",
    ),
    "buffer load": (
        "s_mov_b32 s6, 0x1000\ns_mov_b32 s7, 0x27000\nbuffer_load_dword v2, v1, s[4:7], 0 offen\n",
        "s_waitcnt vmcnt(0)\n", USE, "v2 is used",
    ),
    "scratch load": (
        "scratch_store_dword off, v0, off\nscratch_load_dword v2, off, off\n", "s_waitcnt vmcnt(0)\n", USE, "v2 is used",
    ),
    "lds": ("ds_write_b32 v1, v0\nds_read_b32 v2, v1\n", "s_waitcnt lgkmcnt(0)\n", USE, "v2 is used"),
    "older of two of lds": (
        "ds_write_b32 v1, v0\nds_read_b32 v2, v1\nds_read_b32 v3, v1\n", "s_waitcnt lgkmcnt(1)\n", USE, "v2 is used",
    ),
    "lds move": ("ds_bpermute_b32 v2, v1, v0\n", "s_waitcnt lgkmcnt(0)\n", USE, "v2 is used"),
    "scalar load": (
        "s_load_dword s8, s[4:5], 0x0\n", "s_waitcnt lgkmcnt(0)\n", "s_add_u32 s9, s8, s8\n", "s8 is used",
    ),
    "vcc of a load": ("s_load_dwordx2 vcc, s[4:5], 0x0\n", "s_waitcnt lgkmcnt(0)\n", "v_cndmask_b32 v2, v0, v1, vcc\n",
                      "vcc_lo, vcc_hi are used"),
    "by readfirstlane's result": (
        "s_load_dword s8, s[4:5], 0x0\n", "s_waitcnt lgkmcnt(0)\n", "v_readfirstlane_b32 s8, v0\n", "s8 is used",
    ),
    "atomic": ("v_mov_b32 v3, 0\nglobal_atomic_add v2, v3, v0, s[4:5] sc0\n", "s_waitcnt vmcnt(0)\n", USE, "v2 is used"),
    "flat": (
        "v_mov_b32 v6, s4\nv_mov_b32 v7, s5\nflat_load_dword v2, v[6:7]\n", "s_waitcnt vmcnt(0) lgkmcnt(0)\n", USE,
        "v2 is used",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HAZARDS)
def test_register_hazards(name: str):
    load, wait, use, message = HAZARDS[name]
    run(POINTER + load + wait + use, data())
    error = fault("wait", message, POINTER + load + use, data())
    assert re.sub("_(b32|dpp|sdwa)", "", use).startswith(re.sub("_b32", "", error.mnemonic))
    assert re.search(r"used before `\w+ .*` at pc 0x\w+ was waited for", str(error))


INSUFFICIENT = {
    "vmcnt": ("global_load_dword v2, v1, s[4:5]\n", "s_waitcnt vmcnt(1)\n", USE),
    "another counter": ("global_load_dword v2, v1, s[4:5]\n", "s_waitcnt lgkmcnt(0)\n", USE),
    "scalar loads come in any order": (
        "s_load_dword s8, s[4:5], 0x0\ns_load_dword s9, s[4:5], 0x4\n", "s_waitcnt lgkmcnt(1)\n", "s_mov_b32 s10, s8\n",
    ),
    "lds among scalar loads": (
        "ds_read_b32 v2, v1\ns_load_dword s9, s[4:5], 0x4\n", "s_waitcnt lgkmcnt(1)\n", USE,
    ),
    "flat needs both": (
        "v_mov_b32 v6, s4\nv_mov_b32 v7, s5\nflat_load_dword v2, v[6:7]\n", "s_waitcnt vmcnt(0)\n", USE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INSUFFICIENT)
def test_waits_that_do_not_do(name: str):
    load, wait, use = INSUFFICIENT[name]
    body = POINTER + "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\n" + load
    fault("wait", "is used before `", body + wait + use, data())


def test_waits_that_do():
    lds = POINTER + "ds_write_b32 v1, v0\n"
    run(lds + "ds_read_b32 v2, v1\nds_read_b32 v3, v1\ns_waitcnt lgkmcnt(1)\n" + USE, data())
    # One load of the two registers again, in order.
    twice = "global_load_dwordx2 v[2:3], v1, s[4:5]\nglobal_load_dword v2, v1, s[4:5]\ns_waitcnt vmcnt(0)\n"
    run(POINTER + twice + USE, data(65))
    # A store's data may be replaced at once.
    run(POINTER + "global_store_dword v1, v0, s[4:5]\nv_mov_b32 v0, 1\nv_mov_b32 v1, 0\n", data())


def test_a_full_counter_holds_up():
    loads = "global_load_dword v2, v1, s[4:5]\n" + 63 * "global_load_dword v3, v1, s[4:5]\n"
    run(POINTER + loads + USE, data())
    fault("wait", "v2 is used", POINTER + loads.replace("v3", "v3", 1)[:-33] + USE, data())


@ORDERS
def test_a_hazard_on_one_way_only(order: Order):
    """Wavefront 1 loads, both meet, and use the register: of wavefront 1 it is not back."""

    def body(wait: str) -> str:
        load = f"s_cmp_eq_u32 s6, 1\ns_cbranch_scc0 .Lover\nglobal_load_dword v2, v1, s[4:5]\n{wait}\n.Lover:\n"
        return POINTER + WAVE + "v_mov_b32 v2, 0\n" + load + 4 * "s_nop 0\n" + USE

    run(body("s_waitcnt vmcnt(0)"), data(), wavefronts=3, order=order)
    fault("wait", "v2 is used", body(""), data(), wavefronts=3, order=order)


@ORDERS
def test_a_hazard_around_a_loop(order: Order):
    loop = "s_mov_b32 s8, 3\n.Lloop:\n{}v_add_u32 v9, v2, v9\nglobal_load_dword v2, v1, s[4:5]\ns_sub_u32 s8, s8, 1\n"
    end = "s_cmp_lg_u32 s8, 0\ns_cbranch_scc1 .Lloop\n"
    body = POINTER + "v_mov_b32 v2, 0\n" + loop + end
    run(body.format("s_waitcnt vmcnt(0)\n"), data(), order=order)
    fault("wait", "v2 is used", body.format(""), data(), order=order)
