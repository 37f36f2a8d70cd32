"""Strict mode: loads that go to LDS (gfx950)."""

from __future__ import annotations

import numpy as np
import pytest
from aot_emulator import Order

from tests.support.emulation.strict_runs import ORDERS, POINTER, WAVE, data, fault, run

BARRIER = "s_waitcnt lgkmcnt(0)\ns_barrier\n"

DIRECT = (
    POINTER
    + "v_lshlrev_b32 v2, 2, v0\n"
    + WAVE
    + """s_lshl_b32 m0, s6, 8
global_load_lds_dword v2, s[4:5]
"""
)
"""Each wavefront loads its 256 bytes to LDS; v2 has the byte offset of the thread's dword."""
TO_ITSELF, TO_OTHERS = "ds_read_b32 v3, v2\n", "v_xor_b32 v4, 0x100, v2\nds_read_b32 v3, v4\n"
STORE_BACK = "s_waitcnt lgkmcnt(0)\nglobal_store_dword v2, v3, s[4:5]\n"


@ORDERS
def test_a_load_to_lds(order: Order):
    launch = {"wavefronts": 2, "order": order, "arch": "gfx950"}
    np.testing.assert_array_equal(
        run(DIRECT + "s_waitcnt vmcnt(0)\n" + TO_ITSELF + STORE_BACK, data(), **launch), data()
    )
    exchanged = np.concatenate([data()[64:128], data()[:64], data()[128:]])
    body = DIRECT + "s_waitcnt vmcnt(0)\ns_barrier\n" + TO_OTHERS + STORE_BACK
    np.testing.assert_array_equal(run(body, data(), **launch), exchanged)


@ORDERS
@pytest.mark.parametrize("wait", ("", "s_waitcnt lgkmcnt(0)\n", "s_waitcnt vmcnt(1)\n"))
def test_a_load_to_lds_that_is_not_waited_for(wait: str, order: Order):
    launch = {"wavefronts": 2, "order": order, "arch": "gfx950"}
    message = (
        "4 bytes of LDS are loaded, and were stored by wavefront 0 .* with `global_load_lds_dword .*not waited for"
    )
    error = fault("wait", message, DIRECT + wait + TO_ITSELF, data(), **launch)
    assert "ds_read_b32" in error.instruction and error.address is not None
    message = "stored by wavefront . .* with `global_load_lds_dword .*not waited for before the barrier"
    before = "v_lshlrev_b32 v2, 2, v0\nds_write_b32 v2, v0\n" + BARRIER  # that wavefront 0 may read it first
    fault("wait", message, before + DIRECT + wait + "s_barrier\n" + TO_OTHERS, data(), **launch)


def test_a_store_over_a_load_to_lds_that_is_not_waited_for():
    message = "4 bytes of LDS are stored, and were stored by wavefront 0 .* with `global_load_lds_dword"
    fault("wait", message, DIRECT + "ds_write_b32 v2, v0\n", data(), arch="gfx950")
    run(DIRECT + "s_waitcnt vmcnt(0)\nds_write_b32 v2, v0\n", data(), arch="gfx950")


def test_loads_to_lds_come_in_order():
    """The newest may be outstanding while the others are used; one may go over another."""
    second = "s_add_u32 m0, m0, 0x400\nglobal_load_lds_dword v2, s[4:5]\n"
    run(DIRECT + second + "s_waitcnt vmcnt(1)\n" + TO_ITSELF, data(), arch="gfx950")
    run(DIRECT + "global_load_lds_dword v2, s[4:5]\ns_waitcnt vmcnt(0)\n" + TO_ITSELF, data(), arch="gfx950")
    fault("wait", "not waited for", DIRECT + second + "s_waitcnt vmcnt(1)\nds_read_b32 v3, v2 offset:1024", data(),
          arch="gfx950")  # fmt: skip


def test_a_load_to_lds_reads_what_is_written():
    fault("uninitialised", "were never written", DIRECT, 256, arch="gfx950")


def test_a_load_to_lds_past_its_end():
    fault("bounds", "4096 bytes of LDS", DIRECT + "s_mov_b32 m0, 0x0f80\nglobal_load_lds_dword v2, s[4:5]", data(),
          arch="gfx950")  # fmt: skip


def test_a_register_used_before_a_transposed_load_was_waited_for():
    body = "v_lshlrev_b32 v1, 3, v0\nds_write_b64 v1, v[0:1]\ns_waitcnt lgkmcnt(0)\nds_read_b64_tr_b16 v[2:3], v1\n"
    fault("wait", "v3 is used before `ds_read_b64_tr_b16", body + "v_mov_b32 v4, v3", arch="gfx950")
    run(body + "s_waitcnt lgkmcnt(0)\nv_mov_b32 v4, v3", arch="gfx950")
