"""Strict mode: registers used before the wavefront has waited for the loads that write them."""

from __future__ import annotations

import re

import pytest

from aot_emulator import Order
from tests.support.emulation.assembled import ORDERS, POINTER, RESOURCE, WAITS, WAVE, data, fault, run
from tests.support.emulation.machine import every_isa, every_rdna
from tests.support.emulation.values import arch_of

LOAD, USE = "global_load_dword v2, v1, s[4:5]\n", "v_add_u32 v9, v2, v2\n"
# What leaves v2, or s12, outstanding, and what is to be waited for
OUTSTANDING = (
    ("global_load_dword v2, v1, s[4:5]", "loads"), ("global_load_short_d16 v2, v1, s[4:5]", "loads"),
    ("buffer_load_dword v2, v1, s[8:11], 0 offen", "loads"), ("scratch_store_dword off, v1, off\nscratch_load_dword v2, off, off", "loads"),
    ("global_atomic_add v2, v1, v1, s[4:5] sc0", "loads"), ("buffer_atomic_add v2, v1, s[8:11], 0 offen sc0", "loads"),
    ("ds_write_b32 v1, v1\nds_read_b32 v2, v1", "lds"), ("ds_write_b32 v1, v1\nds_add_rtn_u32 v2, v1, v1", "lds"),
    ("ds_bpermute_b32 v2, v1, v1", "lds"), ("s_load_dword s12, s[4:5], 0x10", "scalars"),
    ("s_buffer_load_dwordx4 s[12:15], s[8:11], 0x10", "scalars"),
    ("v_mov_b32 v6, s4\nv_mov_b32 v7, s5\nflat_load_dword v2, v[6:7]", "loads lds"),
)  # fmt: skip


@pytest.mark.parametrize("text,kinds", OUTSTANDING, ids=lambda value: value.split("\n")[-1].split(" ")[0])
@every_isa
def test_results_are_to_be_waited_for(arch: str, text: str, kinds: str):
    """A wait is for the counter that counts the result, and no other; for both where there are two."""
    start = f"{POINTER}{RESOURCE}v_mov_b32 v2, 0\n{text}\n"
    register = "s12" if kinds == "scalars" else "v2"
    use = f"v_lshlrev_b32 v9, 16, {register}" if "d16" in text else f"v_mov_b32 v9, {register}"
    waits = WAITS[arch_of(arch).isa]
    run(start + "".join(f"wait {kind}\n" for kind in kinds.split()) + use, data(), arch=arch)
    for kind in kinds.split():
        others = "".join(f"wait {other}\n" for other in waits if waits[other] != waits[kind])
        error = fault("wait", f"{register} is used before `", start + others + use, data(), arch=arch)
        assert re.search(r"used before `\w+ .*` at pc 0x\w+ was waited for", str(error))
        assert error.instruction.startswith(use.split(",")[0])


# (loads, use, message)
USES = {
    "wide": ("global_load_dwordx4 v[0:3], v1, s[4:5]\n", USE, "v2 is used"),
    "overwritten": (LOAD, "v_mov_b32 v2, 0\n", "v2 is used"),
    "address": ("global_load_dword v1, v1, s[4:5]\n", "global_load_dword v2, v1, s[4:5]\n", "v1 is used"),
    "stored": (LOAD, "global_store_dword v1, v2, s[4:5]\n", "v2 is used"),
    "accumulation": ("global_load_dwordx2 a[2:3], v1, s[4:5]\n", "v_accvgpr_read_b32 v2, a3\n", "a3 is used"),
    "mfma": ("global_load_dwordx2 v[2:3], v1, s[4:5]\n", "v_mfma_f32_16x16x16_f16 v[12:15], v[2:3], v[4:5], 0\n", "v2, v3 are used"),
    "dpp": (LOAD, "v_mov_b32_dpp v9, v2 row_shl:1 row_mask:0xf bank_mask:0xf\n", "v2 is used"),
    "sdwa": (LOAD, "v_add_u32_sdwa v9, v2, v3 dst_sel:DWORD src0_sel:WORD_1 src1_sel:DWORD\n", "v2 is used"),
    "vcc": ("s_load_dwordx2 vcc, s[4:5], 0x0\n", "v_cndmask_b32 v2, v0, v1, vcc\n", "vcc_lo, vcc_hi are used"),
    "readfirstlane": ("s_load_dword s8, s[4:5], 0x0\n", "v_readfirstlane_b32 s8, v0\n", "s8 is used"),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_uses(name: str):
    load, use, message = USES[name]
    wait = "wait loads\nwait lds\n" + ("v_and_b32 v1, 60, v1\n" if name == "address" else "")
    run(POINTER + load + wait + use, data())
    error = fault("wait", message, POINTER + load + use, data())
    assert re.sub("_(b32|dpp|sdwa)", "", use).startswith(re.sub("_b32", "", error.mnemonic))


@pytest.mark.parametrize("operand", ("a", "b", "c"))
@every_rdna
def test_operands_of_matrix_instructions(arch: str, operand: str):
    width, load = 8 if arch == "gfx1100" else 4, {"a": 8, "b": 16, "c": 24}[operand]
    start = f"{POINTER}v_lshlrev_b32 v1, 4, v0\nglobal_load_dwordx4 v[{load}:{load + 3}], v1, s[4:5]\n"
    wmma = f"v_wmma_f32_16x16x16_f16 v[40:47], v[8:{7 + width}], v[16:{15 + width}], v[24:31]"
    run(start + "wait loads\n" + wmma, data(), arch=arch)
    fault("wait", f"v{load}, v{load + 1}, .* are used before `global_load_b128", start + wmma, data(), arch=arch)


NEXT = "global_load_dword v3, v1, s[4:5]\n"
STORE = "ds_write_b32 v1, v0\nwait lds\n"
# (loads, wait, whether it does)
PARTIAL = {
    "newer may be outstanding": (LOAD + NEXT, "wait loads 1", True),
    "one too many": (LOAD, "wait loads 1", False),
    "the newer is used": (NEXT + LOAD, "wait loads 1", False),
    "loads again, in order": ("global_load_dwordx2 v[2:3], v1, s[4:5]\n" + LOAD, "wait loads", True),
    "lds in order": (STORE + "ds_read_b32 v2, v1\nds_read_b32 v3, v1\n", "wait lds 1", True),
    "older of lds": (STORE + "ds_read_b32 v3, v1\nds_read_b32 v2, v1\n", "wait lds 1", False),
    "lds among scalar loads": (STORE + "ds_read_b32 v2, v1\ns_load_dword s9, s[4:5], 0x4\n", "s_waitcnt lgkmcnt(1)", False),
    "full counter": (LOAD + 63 * NEXT, "s_nop 0", True),
    "a load less": (LOAD + 62 * NEXT, "s_nop 0", False),
    "stores are counted": (LOAD + "global_store_dword v1, v0, s[4:5] offset:512\n", "wait loads 1", True),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTIAL)
def test_waits_for_part(name: str):
    loads, wait, does = PARTIAL[name]
    if does:
        run(f"{POINTER}{loads}{wait}\n{USE}", data())
    else:
        fault("wait", "v2 is used before `", f"{POINTER}{loads}{wait}\n{USE}", data())


def test_scalar_loads_come_in_any_order():
    loads = "s_load_dword s8, s[4:5], 0x0\ns_load_dword s9, s[4:5], 0x4\nwait scalars 1\ns_mov_b32 s10, s8\n"
    fault("wait", "s8 is used before `", POINTER + loads, data())


def test_what_is_stored_may_be_replaced_at_once():
    run(POINTER + "global_store_dword v1, v0, s[4:5]\nv_mov_b32 v0, 1\nv_mov_b32 v1, 0\n", data())


@every_rdna
def test_stores_are_not_counted_among_loads(arch: str):
    start = POINTER + LOAD + NEXT + "global_store_dword v1, v0, s[4:5] offset:512\nwait loads 1\n"
    run(start + USE, data(), arch=arch)
    fault("wait", "v3 is used", start + "v_mov_b32 v9, v3", data(), arch=arch)


def test_scalar_and_lds_operations_share_no_counter_on_gfx12():
    start = POINTER + STORE + "ds_read_b32 v2, v1\ns_load_dword s12, s[4:5], 0x10\n"
    run(start + "wait scalars\ns_mov_b32 s13, s12", data(), arch="gfx1201")
    fault("wait", "v2 is used", start + "wait scalars\nv_mov_b32 v9, v2", data(), arch="gfx1201")
    run(start + "s_wait_loadcnt_dscnt 0x3f00\nv_mov_b32 v9, v2", data(), arch="gfx1201")


def test_caches_are_invalidated_beside_loads():
    """gfx12 counts invalidations among the loads, gfx11 not at all."""
    after = "wait loads 1\nv_mov_b32 v9, v2"
    run(POINTER + LOAD + "global_inv scope:SCOPE_DEV\n" + after, data(), arch="gfx1201")
    fault("wait", "v2 is used", POINTER + LOAD + "buffer_gl0_inv\nbuffer_gl1_inv\n" + after, data(), arch="gfx1100")


@ORDERS
def test_a_hazard_on_one_way_only(order: Order):
    """Wavefront 1 loads, both wavefronts meet, and both use the register, which has not arrived in wavefront 1."""

    def body(wait: str) -> str:
        load = f"s_cmp_eq_u32 s6, 1\ns_cbranch_scc0 .Lover\n{LOAD}{wait}\n.Lover:\n"
        return POINTER + WAVE + "v_mov_b32 v2, 0\n" + load + 4 * "s_nop 0\n" + USE

    run(body("wait loads"), data(), wavefronts=3, order=order)
    fault("wait", "v2 is used", body(""), data(), wavefronts=3, order=order)


@ORDERS
def test_a_hazard_around_a_loop(order: Order):
    loop = f"s_mov_b32 s8, 3\n.Lloop:\n{{}}v_add_u32 v9, v2, v9\n{LOAD}s_sub_u32 s8, s8, 1\n"
    body = f"{POINTER}v_mov_b32 v2, 0\n{loop}s_cmp_lg_u32 s8, 0\ns_cbranch_scc1 .Lloop\n"
    run(body.format("wait loads\n"), data(), order=order)
    fault("wait", "v2 is used", body.format(""), data(), order=order)
