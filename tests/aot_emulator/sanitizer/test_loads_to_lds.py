"""Strict mode: loads direct to LDS (gfx950)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_emulator import Order
from aot_emulator.errors import SanitizerError
from tests.support.emulation import assembled
from tests.support.emulation.assembled import ORDERS, POINTER, WAVE, data

LOAD = "global_load_lds_dword v2, s[4:5]\n"
DIRECT = f"{POINTER}v_lshlrev_b32 v2, 2, v0\n{WAVE}s_lshl_b32 m0, s6, 8\n{LOAD}"
"""Each wavefront loads its 256 bytes to LDS; v2 has the byte offset of the thread's dword."""
TO_ITSELF, TO_OTHERS = "ds_read_b32 v3, v2\n", "v_xor_b32 v4, 0x100, v2\nds_read_b32 v3, v4\n"


def run(body: str, array: np.ndarray | int | None = None, **launch: Any) -> np.ndarray | None:
    return assembled.run(body, data() if array is None else array, arch="gfx950", **launch)


def fault(kind: str, message: str, body: str, array: np.ndarray | int | None = None, **launch: Any) -> SanitizerError:
    return assembled.fault(kind, message, body, data() if array is None else array, arch="gfx950", **launch)


@ORDERS
def test_a_load_to_lds(order: Order):
    store = "wait lds\nglobal_store_dword v2, v3, s[4:5]\n"
    np.testing.assert_array_equal(run(DIRECT + "wait loads\n" + TO_ITSELF + store, wavefronts=2, order=order), data())
    body = DIRECT + "wait loads\ns_barrier\n" + TO_OTHERS + store
    exchanged = np.concatenate([data()[64:128], data()[:64], data()[128:]])
    np.testing.assert_array_equal(run(body, wavefronts=2, order=order), exchanged)


@ORDERS
@pytest.mark.parametrize("wait", ("", "wait lds\n", "wait loads 1\n"))
def test_a_load_to_lds_that_is_not_waited_for(wait: str, order: Order):
    message = (
        "4 bytes of LDS are loaded, and were stored by wavefront 0 .* with `global_load_lds_dword .*not waited for"
    )
    error = fault("wait", message, DIRECT + wait + TO_ITSELF, wavefronts=2, order=order)
    assert "ds_read_b32" in error.instruction and error.address is not None
    message = "stored by wavefront . .* with `global_load_lds_dword .*not waited for before the barrier"
    before = "v_lshlrev_b32 v2, 2, v0\nds_write_b32 v2, v0\nwait lds\ns_barrier\n"  # that wavefront 0 may read it first
    fault("wait", message, before + DIRECT + wait + "s_barrier\n" + TO_OTHERS, wavefronts=2, order=order)


def test_a_store_over_a_load_to_lds():
    message = "4 bytes of LDS are stored, and were stored by wavefront 0 .* with `global_load_lds_dword"
    fault("wait", message, DIRECT + "ds_write_b32 v2, v0\n")
    run(DIRECT + "wait loads\nds_write_b32 v2, v0\n")


def test_loads_to_lds_come_in_order():
    """The newest may be outstanding while the others are used; one may overtake another."""
    second = DIRECT + "s_add_u32 m0, m0, 0x400\n" + LOAD + "wait loads 1\n"
    run(second + TO_ITSELF)
    run(DIRECT + LOAD + "wait loads\n" + TO_ITSELF)
    fault("wait", "not waited for", second + "ds_read_b32 v3, v2 offset:1024")


def test_a_load_to_lds_of_what_is_not_there():
    fault("uninitialised", "were never written", DIRECT, 256)
    fault("bounds", "4096 bytes of LDS", DIRECT + "s_mov_b32 m0, 0x0f80\n" + LOAD)


def test_a_register_used_before_a_transposed_load_was_waited_for():
    body = "v_lshlrev_b32 v1, 3, v0\nds_write_b64 v1, v[0:1]\nwait lds\nds_read_b64_tr_b16 v[2:3], v1\n"
    fault("wait", "v3 is used before `ds_read_b64_tr_b16", body + "v_mov_b32 v4, v3")
    run(body + "wait lds\nv_mov_b32 v4, v3")
