"""Strict mode: halves of registers that a 16-bit load does not define."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.emulation.assembled import POINTER, data, fault, run

LOW, HIGH = "global_load_short_d16 v2, v1, s[4:5]\n", "global_load_short_d16_hi v2, v1, s[4:5]\n"
AFTER = "wait loads\n"
STORE = "global_store_dword v1, v3, s[4:5]\n"

USES = {
    "whole": (LOW, "v_mov_b32 v3, v2"), "whole_of_high": (HIGH, "v_mov_b32 v3, v2"), "other": (HIGH, "v_add_f16 v3, v2, v2"),
    "packed": (LOW, "v_pk_add_f16 v3, v2, v2"), "sdwa": (LOW, "v_add_u32_sdwa v3, v2, v1 dst_sel:DWORD src0_sel:WORD_1 src1_sel:DWORD"),
    "shift": (LOW, "v_lshlrev_b32 v3, 8, v2"), "pair": (LOW, "v_lshrrev_b64 v[6:7], 4, v[2:3]\nv_mov_b32 v3, v6"),
}  # fmt: skip
HARMLESS = {
    "short": (LOW, "v_add_f16 v3, v2, v2"), "mask": (LOW, "v_and_b32 v3, 0xffff, v2"), "up": (LOW, "v_lshlrev_b32 v3, 16, v2"),
    "down": (HIGH, "v_lshrrev_b32 v3, 16, v2"), "overwritten": (LOW, "v_mov_b32 v2, 1\nv_mov_b32 v3, v2"),
    "sdwa": (HIGH, "v_add_u32_sdwa v3, v2, v1 dst_sel:DWORD src0_sel:WORD_1 src1_sel:DWORD"),
}  # fmt: skip


@pytest.mark.parametrize("load, use", USES.values(), ids=USES)
def test_a_use_of_the_other_half(load: str, use: str):
    message = "half of v2 is used that `global_load_short_d16.*did not load"
    error = fault("half", message, f"{POINTER}v_mov_b32 v3, 0\n{load}{AFTER}{use}\n{STORE}", data())
    assert use.startswith(error.instruction.split()[0])


@pytest.mark.parametrize("load, use", HARMLESS.values(), ids=HARMLESS)
def test_uses_of_the_loaded_half(load: str, use: str):
    run(f"{POINTER}{load}{AFTER}{use}\n{STORE}", data())


def test_stores_of_halves():
    run(f"{POINTER}{LOW}{AFTER}global_store_short v1, v2, s[4:5]\n", data())
    run(f"{POINTER}{HIGH}{AFTER}global_store_short_d16_hi v1, v2, s[4:5]\n", data())
    fault("half", "half of v2", f"{POINTER}{LOW}{AFTER}global_store_dword v1, v2, s[4:5]\n", data())


def test_two_loads_leave_the_first_half_open():
    """Code for chips without ECC loads one half after the other."""
    body = f"{POINTER}{LOW}{AFTER}{HIGH}{AFTER}global_store_dword v1, v2, s[4:5]\n"
    fault("half", "half of v2", body, data())
    found = run(body, data() | np.uint32(5 << 16), strict=False)
    np.testing.assert_array_equal(found[:64], data()[:64] << 16)
