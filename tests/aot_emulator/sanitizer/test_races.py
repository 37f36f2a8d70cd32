"""Strict mode: races between wavefronts, and what orders them."""

from __future__ import annotations

import struct

import numpy as np
from aot_emulator import EmulatorDriver, Options, Order

from aot_runtime.errors import Thread
from tests.support.emulation.assembled import link
from tests.support.emulation.strict_runs import ORDERS, POINTER, WAVE, data, fault, run

EXCHANGE = "v_lshlrev_b32 v1, 2, v0\nv_xor_b32 v2, 0x100, v1\nds_write_b32 v1, v0\n{}ds_read_b32 v3, v2\n"
"""Two wavefronts give each other their values."""
BARRIER = "s_waitcnt lgkmcnt(0)\ns_barrier\n"


@ORDERS
def test_a_missing_barrier_between_write_and_read(order: Order):
    run(EXCHANGE.format(BARRIER), order=order, wavefronts=2)
    # In serial order wavefront 0 would read what nothing has written: write it before.
    before = "v_lshlrev_b32 v1, 2, v0\nds_write_b32 v1, v0\n" + BARRIER
    message = "are loaded, and were stored by wavefront . of .* with `ds_write_b32 v1, v0` at pc 0x.*no barrier"
    if order is Order.SERIAL:
        message = "are stored, and were loaded by wavefront 0 of .* with `ds_read_b32 .*no barrier"
    error = fault("race", message, before + EXCHANGE.format("s_waitcnt lgkmcnt(0)\n"), order=order, wavefronts=2)
    assert error.thread.wavefront is not None and error.thread.lane is not None


@ORDERS
def test_a_missing_wait_before_a_barrier(order: Order):
    message = "were stored by wavefront . .* with `ds_write_b32 .*not waited for before the barrier"
    error = fault("wait", message, EXCHANGE.format("s_barrier\n"), wavefronts=2, order=order)
    assert "ds_read_b32" in error.instruction


@ORDERS
def test_a_barrier_need_not_wait_for_what_others_do_not_touch(order: Order):
    own = "v_lshlrev_b32 v1, 2, v0\nds_write_b32 v1, v0\ns_barrier\nds_read_b32 v3, v1\n"
    run(own, wavefronts=2, order=order)


@ORDERS
def test_a_missing_barrier_between_read_and_write(order: Order):
    again = EXCHANGE.format(BARRIER) + "s_waitcnt lgkmcnt(0)\n{}ds_write_b32 v1, v3\n"
    run(again.format("s_barrier\n"), order=order, wavefronts=2)
    message = "are stored, and were loaded by wavefront . .* with `ds_read_b32"
    if order is Order.SERIAL:
        message = "were (stored|loaded) by wavefront 0 .* with `ds_"
    fault("race", message, again.format(""), order=order, wavefronts=2)


@ORDERS
def test_two_writes(order: Order):
    same = "v_mov_b32 v1, 0\nv_mov_b32 v2, 5\nds_write_b32 v1, v2\n"
    run(same, wavefronts=4, order=order)
    other = WAVE + "v_mov_b32 v1, 0\nv_mov_b32 v2, s6\nds_write_b32 v1, v2\n"
    fault("race", "are stored, and were stored by wavefront .* with `ds_write_b32", other, wavefronts=4, order=order)
    # Halves of one dword are two places.
    halves = WAVE + "v_mov_b32 v1, s6\nv_lshlrev_b32 v1, 1, v1\nv_mov_b32 v2, s6\nds_write_b16 v1, v2\n"
    run(halves, wavefronts=4, order=order)


@ORDERS
def test_writes_in_turn_need_values_alike(order: Order):
    """Wavefront 1 writes after wavefront 0, by another instruction."""
    turns = (
        WAVE + "v_mov_b32 v1, 0\nv_mov_b32 v2, 5\ns_cmp_eq_u32 s6, 0\ns_cbranch_scc0 .Lsecond\nds_write_b32 v1, v2\n"
        "s_branch .Lend_\n.Lsecond:\nv_mov_b32 v2, {}\nds_write_b32 v1, v2\n.Lend_:\n"
    )
    run(turns.format(5), wavefronts=2, order=order)
    fault("race", "are stored, and were stored by wavefront", turns.format(6), wavefronts=2, order=order)


@ORDERS
def test_lds_atomics_do_not_race(order: Order):
    clear = "v_mov_b32 v1, 0\nds_write_b32 v1, v1\n" + BARRIER
    run(clear + "ds_add_u32 v1, v0\n", wavefronts=4, order=order)
    plain = clear + "ds_add_u32 v1, v0\nds_write_b32 v1, v0\n"
    fault("race", "ds_(add_u32|write_b32)", plain, wavefronts=4, order=order)


def test_wavefronts_of_their_own():
    """What each wavefront writes and reads back itself needs no barrier, of whatever size the accesses are."""
    lines = "v_lshlrev_b32 v1, 4, v0\n"
    for size, width in (("b8", "u8"), ("b16", "u16"), ("b32", "b32"), ("b64", "b64"), ("b96", "b96"), ("b128", "b128")):
        lines += f"ds_write_{size} v1, v[4:7]\n".replace("v[4:7]", REGISTERS[size])
        lines += f"ds_read_{width} {REGISTERS[size]}, v1\ns_waitcnt lgkmcnt(0)\n"
    run(lines, wavefronts=4)


REGISTERS = {"b8": "v4", "b16": "v4", "b32": "v4", "b64": "v[4:5]", "b96": "v[4:6]", "b128": "v[4:7]"}


def test_memory_that_lives_elsewhere_may_end_anywhere():
    """As the double of libamdhip64 has it: arrays of the host, whose sizes are not rounded up."""
    driver = EmulatorDriver(Options(strict=True))
    host = np.zeros(260, np.uint8)
    driver._devices[0].memory.adopt(1 << 20, host)
    body = POINTER + "v_and_b32 v2, 0xf0, v1\nglobal_load_dwordx4 v[4:7], v2, s[4:5]\n"
    body += "global_store_dword v1, v0, s[4:5] offset:4"
    function = driver.get_function(0, driver.load_module(0, link(tuple(body.split("\n")))), "kernel", 0)
    driver.prepare(0, function, (1, 1, 1), 64, 0, struct.pack("<2Q", 1 << 20, 0)).run(0)
    assert (host[4:].view(np.uint32) == np.arange(64)).all()


SHARE = POINTER + "v_mov_b32 v2, 0\n"


@ORDERS
def test_workgroups_that_share_memory(order: Order):
    run(SHARE + "global_load_dword v3, v2, s[4:5]\n", data(), workgroups=3, order=order)
    run(SHARE + "global_store_dword v2, v2, s[4:5]\n", data(), workgroups=3, order=order)  # alike
    run(SHARE + "global_atomic_add v2, v0, s[4:5]\n", data(), workgroups=3, order=order)
    own = SHARE + "v_mov_b32 v3, s2\nglobal_store_dword v2, v3, s[4:5]\n"
    fault("race", "are stored, and were stored by .* with `global_store", own, data(), workgroups=3, order=order)
    both = SHARE + "global_load_dword v3, v2, s[4:5]\ns_waitcnt vmcnt(0)\nv_add_u32 v3, 1, v3\n"
    both += "global_store_dword v2, v3, s[4:5]\n"
    fault("race", "nothing orders them", both, data(), workgroups=3, order=order)
    mixed = SHARE + "s_cmp_eq_u32 s2, 0\ns_cbranch_scc1 .Lfirst\nglobal_atomic_add v2, v0, s[4:5]\ns_endpgm\n.Lfirst:\n"
    mixed += "global_store_dword v2, v2, s[4:5]\n"
    fault("race", "global_(atomic_add|store_dword)", mixed, data(), workgroups=3, order=order)


def test_races_between_batches():
    """Workgroups that are run one after another race all the same."""
    own = SHARE + "v_mov_b32 v3, s2\nglobal_store_dword v2, v3, s[4:5]\n"
    error = fault(
        "race", "stored by wavefront 0 of workgroup .0, 0, 0. with", own, data(), workgroups=3, batch_wavefronts=1
    )
    assert error.thread == Thread((1, 0, 0), 0, 0)


@ORDERS
def test_barriers_order_global_memory_of_a_workgroup_only(order: Order):
    swap = POINTER + "v_xor_b32 v2, 0x100, v1\nglobal_store_dword v1, v0, s[4:5]\ns_waitcnt vmcnt(0)\n{}"
    swap += "global_load_dword v3, v2, s[4:5]\n"
    run(swap.format("s_barrier\n"), data(), wavefronts=2, order=order)
    fault("race", "no barrier is between", swap.format(""), data(), wavefronts=2, order=order)
    # Another workgroup's barriers say nothing of this one's accesses: each adds its number, so values differ.
    apart = swap.format("s_barrier\n").replace(
        "global_store_dword v1, v0", "v_add_u32 v0, s2, v0\nglobal_store_dword v1, v0"
    )
    fault("race", "nothing orders them", apart, data(), wavefronts=2, workgroups=2, order=order)


LOCKED = (
    SHARE
    + """
s_mov_b64 s[8:9], exec
s_mov_b64 exec, 1
v_mov_b32 v4, 1
v_mov_b32 v5, 0
.Lspin:
{acquire}
v_readfirstlane_b32 s7, v6
s_cmp_eq_u32 s7, 0
s_cbranch_scc0 .Lspin
global_load_dword v7, v2, s[4:5] offset:128
s_waitcnt vmcnt(0)
v_add_u32 v7, 1, v7
global_store_dword v2, v7, s[4:5] offset:128
s_waitcnt vmcnt(0)
{release}
"""
)
ACQUIRE = "global_atomic_cmpswap v6, v2, v[4:5], s[4:5] sc0\ns_waitcnt vmcnt(0)"
RELEASE = "global_atomic_swap v2, v5, s[4:5]"


@ORDERS
def test_a_lock_orders_what_it_guards(order: Order):
    body = LOCKED.format(acquire=ACQUIRE, release=RELEASE)
    memory = np.zeros(64, np.uint32)
    after = run(body, memory, workgroups=7, wavefronts=1, order=order)
    assert after[32] == 7 and after[0] == 0
    unguarded = LOCKED.format(acquire="v_mov_b32 v6, 0", release="")
    fault("race", "nothing orders", unguarded, memory, workgroups=7, order=order)


def test_a_flag_orders_what_it_announces():
    """Workgroup 0 writes and raises a flag by an atomic; the others poll it with loads that miss the caches."""

    def body(flag: str) -> str:
        return (
            SHARE
            + f"""
s_cmp_eq_u32 s2, 0
s_cbranch_scc0 .Lpoll
v_mov_b32 v3, 9
global_store_dword v2, v3, s[4:5] offset:64
s_waitcnt vmcnt(0)
{flag}
s_branch .Lend_
.Lpoll:
global_load_dword v3, v2, s[4:5] sc1
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s7, v3
s_cmp_eq_u32 s7, 0
s_cbranch_scc1 .Lpoll
global_load_dword v4, v2, s[4:5] offset:64
.Lend_:
"""
        )

    memory = np.zeros(64, np.uint32)
    run(body("global_atomic_swap v2, v3, s[4:5]"), memory, workgroups=3)
    run(body("global_store_dword v2, v3, s[4:5] sc1"), memory, workgroups=3)
    fault("race", "are loaded, and were stored by wavefront 0 of workgroup .0, 0, 0. with",
            body("global_store_dword v2, v3, s[4:5]"), memory, workgroups=3)  # fmt: skip
