"""Strict mode: races between wavefronts, and operations that order accesses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_emulator import EmulatorDriver, Options, Order
from aot_emulator.errors import Thread
from tests.support.emulation.assembled import ORDERS, POINTER, WAVE, data, fault, launch, run
from tests.support.emulation.machine import every_rdna

BARRIER = "wait lds\ns_barrier\n"
OWN = "v_lshlrev_b32 v1, 2, v0\nds_write_b32 v1, v0\n"
EXCHANGE = "v_lshlrev_b32 v1, 2, v0\nv_xor_b32 v2, 0x100, v1\nds_write_b32 v1, v0\n{}ds_read_b32 v3, v2\n"
"""Two wavefronts give each other their values."""
FIVE = "v_mov_b32 v1, 0\nv_mov_b32 v2, 5\nds_write_b32 v1, v2\n"
TURNS = (
    WAVE + "v_mov_b32 v1, 0\nv_mov_b32 v2, 5\ns_cmp_eq_u32 s6, 0\ns_cbranch_scc0 .Lsecond\nds_write_b32 v1, v2\n"
    "s_branch .Lend_\n.Lsecond:\nv_mov_b32 v2, {}\nds_write_b32 v1, v2\n.Lend_:\n"
)
"""Wavefront 1 writes after wavefront 0, by another instruction."""
CLEAR = "v_mov_b32 v1, 0\nds_write_b32 v1, v1\n" + BARRIER
SHARE = POINTER + "v_mov_b32 v2, 0\n"
SWAP = (
    POINTER
    + "v_xor_b32 v2, 0x100, v1\nglobal_store_dword v1, v0, s[4:5]\nwait stores\n{}global_load_dword v3, v2, s[4:5]\n"
)

FINE = {
    "barrier between write and read": EXCHANGE.format(BARRIER),
    # A barrier need not wait for what others do not touch.
    "what is one's own": OWN + "s_barrier\nds_read_b32 v3, v1\n",
    "barrier between read and write": EXCHANGE.format(BARRIER) + BARRIER + "ds_write_b32 v1, v3\n",
    "writes alike": FIVE,
    # Halves of one dword are two places.
    "halves": WAVE + "v_mov_b32 v1, s6\nv_lshlrev_b32 v1, 1, v1\nv_mov_b32 v2, s6\nds_write_b16 v1, v2\n",
    "writes in turn alike": TURNS.format(5),
    "atomics": CLEAR + "ds_add_u32 v1, v0\n",
    "global memory with a barrier": SWAP.format("s_barrier\n"),
}


@ORDERS
@pytest.mark.parametrize("name", FINE)
def test_what_does_not_race(name: str, order: Order):
    run(FINE[name], data(), wavefronts=2, order=order)


# (body, kind, message; in serial order, if another)
RACES = {
    # In serial order wavefront 0 would read what nothing has written: write it before.
    "no barrier between write and read": (
        OWN + BARRIER + EXCHANGE.format("wait lds\n"), "race",
        "are loaded, and were stored by wavefront . of .* with `ds_write_b32 v1, v0` at pc 0x.*no barrier",
        "are stored, and were loaded by wavefront 0 of .* with `ds_read_b32 .*no barrier"),
    "no wait before a barrier": (
        EXCHANGE.format("s_barrier\n"), "wait",
        "were stored by wavefront . .* with `ds_write_b32 .*not waited for before the barrier"),
    "no barrier between read and write": (
        EXCHANGE.format(BARRIER) + "wait lds\nds_write_b32 v1, v3\n", "race",
        "are stored, and were loaded by wavefront . .* with `ds_read_b32", "were (stored|loaded) by wavefront 0 .* with `ds_"),
    "writes that differ": (
        WAVE + "v_mov_b32 v1, 0\nv_mov_b32 v2, s6\nds_write_b32 v1, v2\n", "race",
        "are stored, and were stored by wavefront .* with `ds_write_b32"),
    "writes in turn that differ": (TURNS.format(6), "race", "are stored, and were stored by wavefront"),
    "an atomic and a write": (CLEAR + "ds_add_u32 v1, v0\nds_write_b32 v1, v0\n", "race", "ds_(add_u32|write_b32)"),
    "global memory without a barrier": (SWAP.format(""), "race", "no barrier in between"),
}  # fmt: skip


@ORDERS
@pytest.mark.parametrize("name", RACES)
def test_what_races(name: str, order: Order):
    body, kind, message, *serial = RACES[name]
    message = serial[0] if serial and order is Order.SERIAL else message
    error = fault(kind, message, body, data(), wavefronts=2, order=order)
    assert error.thread.wavefront is not None and error.thread.lane is not None


@every_rdna
def test_a_race_on_rdna(arch: str):
    barrier = "s_barrier\n" if arch == "gfx1100" else "s_barrier_signal -1\ns_barrier_wait -1\n"
    exchange = EXCHANGE.replace("0x100", "0x80")
    run(exchange.format("wait lds\n" + barrier), wavefronts=2, arch=arch)
    fault("wait", "not waited for before the barrier", exchange.format(barrier), wavefronts=2, arch=arch)
    fault(
        "race",
        "no barrier in between",
        OWN + "wait lds\n" + barrier + exchange.format("wait lds\n"),
        wavefronts=2,
        arch=arch,
    )


def test_wavefronts_of_their_own():
    """A wavefront that reads back its own writes needs no barrier, for accesses of any size."""
    lines = "v_lshlrev_b32 v1, 4, v0\n"
    for write, read, register in (("b8", "u8", "v4"), ("b16", "u16", "v4"), ("b32", "b32", "v4"), ("b64", "b64", "v[4:5]"),
                                  ("b96", "b96", "v[4:6]"), ("b128", "b128", "v[4:7]")):  # fmt: skip
        lines += f"ds_write_{write} v1, {register}\nds_read_{read} {register}, v1\nwait lds\n"
    run(lines, wavefronts=4)


def test_memory_that_lives_elsewhere_may_end_anywhere():
    """The double of libamdhip64 passes arrays of the host, whose sizes are not rounded up."""
    driver, host = EmulatorDriver(Options(strict=True)), np.zeros(260, np.uint8)
    driver._devices[0].memory.adopt(1 << 20, host)
    body = POINTER + "v_and_b32 v2, 0xf0, v1\nglobal_load_dwordx4 v[4:7], v2, s[4:5]\n"
    launch(driver, body + "global_store_dword v1, v0, s[4:5] offset:4", 1 << 20)
    assert (host[4:].view(np.uint32) == np.arange(64)).all()


# Between workgroups


def racing(message: str, body: str, order: Order, **launch: Any) -> None:
    fault("race", message, body, data(), workgroups=3, order=order, **launch)


OWN_NUMBER = SHARE + "v_mov_b32 v3, s2\nglobal_store_dword v2, v3, s[4:5]\n"


@ORDERS
def test_workgroups_that_share_memory(order: Order):
    for access in (
        "global_load_dword v3, v2, s[4:5]",
        "global_store_dword v2, v2, s[4:5]",
        "global_atomic_add v2, v0, s[4:5]",
    ):
        run(SHARE + access, data(), workgroups=3, order=order)  # stores alike
    racing("are stored, and were stored by .* with `global_store", OWN_NUMBER, order)
    load = "global_load_dword v3, v2, s[4:5]\nwait loads\nv_add_u32 v3, 1, v3\nglobal_store_dword v2, v3, s[4:5]\n"
    racing("nothing orders them", SHARE + load, order)
    mixed = "s_cmp_eq_u32 s2, 0\ns_cbranch_scc1 .Lfirst\nglobal_atomic_add v2, v0, s[4:5]\ns_endpgm\n.Lfirst:\n"
    racing("global_(atomic_add|store_dword)", SHARE + mixed + "global_store_dword v2, v2, s[4:5]\n", order)
    # Another workgroup's barriers say nothing of this one's accesses: each adds its number, so values differ.
    apart = SWAP.format("s_barrier\n").replace(
        "global_store_dword v1, v0", "v_add_u32 v0, s2, v0\nglobal_store_dword v1, v0"
    )
    racing("nothing orders them", apart, order, wavefronts=2)


def test_races_between_batches():
    """Workgroups that run one after another are still checked for races."""
    message = "stored by wavefront 0 of workgroup .0, 0, 0. with"
    error = fault("race", message, OWN_NUMBER, data(), workgroups=3, batch_wavefronts=1)
    assert error.thread == Thread((1, 0, 0), 0, 0)


LOCKED = SHARE + """
s_mov_b64 exec, 1
v_mov_b32 v4, 1
v_mov_b32 v5, 0
.Lspin:
{acquire}
v_readfirstlane_b32 s7, v6
s_cmp_eq_u32 s7, 0
s_cbranch_scc0 .Lspin
global_load_dword v7, v2, s[4:5] offset:128
wait loads
v_add_u32 v7, 1, v7
global_store_dword v2, v7, s[4:5] offset:128
wait stores
{release}
"""  # fmt: skip


@ORDERS
def test_a_lock_orders_what_it_guards(order: Order):
    acquire, memory = "global_atomic_cmpswap v6, v2, v[4:5], s[4:5] sc0\nwait loads", np.zeros(64, np.uint32)
    body = LOCKED.format(acquire=acquire, release="global_atomic_swap v2, v5, s[4:5]")
    after = run(body, memory, workgroups=3, order=order)
    assert after[32] == 3 and after[0] == 0
    fault(
        "race",
        "nothing orders",
        LOCKED.format(acquire="v_mov_b32 v6, 0", release=""),
        memory,
        workgroups=3,
        order=order,
    )


ANNOUNCED = SHARE + """
s_cmp_eq_u32 s2, 0
s_cbranch_scc0 .Lpoll
v_mov_b32 v3, 9
global_store_dword v2, v3, s[4:5] offset:64
wait stores
{flag}
s_branch .Lend_
.Lpoll:
global_load_dword v3, v2, s[4:5] sc1
wait loads
v_readfirstlane_b32 s7, v3
s_cmp_eq_u32 s7, 0
s_cbranch_scc1 .Lpoll
global_load_dword v4, v2, s[4:5] offset:64
.Lend_:
"""  # fmt: skip


def test_a_flag_orders_what_it_announces():
    """Workgroup 0 writes and raises a flag by an atomic; the others poll it with loads that miss the caches."""
    memory = np.zeros(64, np.uint32)
    for flag in ("global_atomic_swap v2, v3, s[4:5]", "global_store_dword v2, v3, s[4:5] sc1"):
        run(ANNOUNCED.format(flag=flag), memory, workgroups=3)
    body = ANNOUNCED.format(flag="global_store_dword v2, v3, s[4:5]")
    fault("race", "are loaded, and were stored by wavefront 0 of workgroup .0, 0, 0. with", body, memory, workgroups=3)
