"""Strict mode: each kind of fault is found and named, and correct kernels pass."""

from __future__ import annotations

import numpy as np
import pytest
from assembled import Assembled, assembled

from aot_runtime.drivers.emulator import EmulatorDriver, Options, Order
from aot_runtime.errors import EmulationError, SanitizerError, Thread

PROLOGUE = ("s_load_dwordx2 s[4:5], s[0:1], 0x0", "s_load_dwordx2 s[6:7], s[0:1], 0x8", "s_waitcnt lgkmcnt(0)")
"""Two pointers: input in s[4:5], output in s[6:7]. v0 is the thread, s2 the workgroup."""
BOTH_ORDERS = pytest.mark.parametrize("order", tuple(Order), ids=lambda order: order.value)


def run(*lines: str, strict: bool = True, order: Order = Order.LOCKSTEP, **launch) -> Assembled:
    return assembled((*PROLOGUE, *lines), Options(strict=strict, order=order), **launch)


def fault(*lines: str, **launch) -> SanitizerError:
    """The fault that strict mode finds, in code that runs to its end otherwise."""
    if launch.pop("runs_otherwise", True):
        run(*lines, strict=False, **launch)
    with pytest.raises(SanitizerError) as raised:
        run(*lines, **launch)
    return raised.value


COPY = (
    "v_lshlrev_b32 v1, 2, v0", "global_load_dword v2, v1, s[4:5]", "s_waitcnt vmcnt(0)",
    "global_store_dword v1, v2, s[6:7]",
)  # fmt: skip


@BOTH_ORDERS
def test_a_sound_kernel_passes(order: Order):
    found = run(*COPY, order=order)
    assert np.array_equal(found.output[: found.threads], found.input[: found.threads])


# Bounds, alignment, what was never written


def test_past_the_end_of_an_array():
    error = fault("v_mov_b32 v1, 0", "v_cmp_eq_u32 vcc, 70, v0", "v_cndmask_b32 v1, 0, 1, vcc",
                  "v_mul_u32_u24 v1, 0x3ff, v1", "global_load_ubyte v2, v1, s[4:5]", runs_otherwise=False,
                  input_bytes=1023)  # fmt: skip
    assert (error.kind, error.thread) == ("bounds", Thread((0, 0, 0), 1, 6))
    assert "in no allocation; the nearest below is 1023 bytes at 0x" in str(error)
    assert str(error).startswith("global_load_ubyte v2, v1, s[4:5] at pc 0x")
    assert error.address is not None and error.nbytes == 1


def test_past_the_end_of_lds():
    error = fault("v_mov_b32 v1, 0x1000", "ds_read_b32 v2, v1", runs_otherwise=False)
    assert (error.kind, error.address, error.thread) == ("bounds", 4096, Thread((0, 0, 0), 0, 0))
    assert "4 bytes outside the 4096 bytes of LDS of the workgroup" in error.message


@pytest.mark.parametrize("access", ("global_load_dword v2, v1, s[4:5]", "global_load_dwordx4 v[2:5], v1, s[4:5]",
                                    "global_load_ushort v2, v1, s[4:5] offset:1"))  # fmt: skip
def test_alignment(access: str):
    error = fault("v_mul_u32_u24 v1, 2, v0", access, "s_waitcnt vmcnt(0)")
    assert error.kind == "alignment" and "no multiple of" in error.message
    assert error.thread == Thread((0, 0, 0), 0, 0 if "ushort" in access else 1)


def test_memory_that_was_never_written():
    error = fault("v_lshlrev_b32 v1, 2, v0", "global_load_dword v2, v1, s[6:7] offset:64", "s_waitcnt vmcnt(0)")
    assert error.kind == "uninitialised" and "4 bytes of the allocation of 4096 bytes at 0x" in error.message


def test_memory_that_the_kernel_wrote():
    run("v_lshlrev_b32 v1, 2, v0", "global_store_dword v1, v0, s[6:7]", "global_load_dword v2, v1, s[6:7]")


def test_only_the_lanes_that_take_part_read():
    masked = ("v_lshlrev_b32 v1, 2, v0", "s_mov_b64 exec, 0xff", "global_load_dword v2, v1, s[6:7]")
    run("v_lshlrev_b32 v1, 2, v0", "s_mov_b64 s[8:9], exec", "s_mov_b64 exec, 0xff",
        "global_store_dword v1, v0, s[6:7]", *masked[2:], wavefronts=1)  # fmt: skip
    assert fault(*masked, wavefronts=1).thread == Thread((0, 0, 0), 0, 0)


@pytest.mark.parametrize("nbytes", (1, 2, 4, 8, 16))
def test_lds_that_was_never_written(nbytes: int):
    name = {1: "u8", 2: "u16", 4: "b32", 8: "b64", 16: "b128"}[nbytes]
    destination = {8: "v[4:5]", 16: "v[4:7]"}.get(nbytes, "v4")
    write = ("v_lshlrev_b32 v1, 4, v0", "ds_write_b128 v1, v[8:11]", "s_waitcnt lgkmcnt(0)", "s_barrier")
    run(*write, f"ds_read_{name} {destination}, v1")
    error = fault(
        *write[:1], "ds_write_b96 v1, v[8:10]", *write[2:], f"ds_read_{name} {destination}, v1 offset:{16 - nbytes}"
    )
    assert error.kind == "uninitialised" and f"{nbytes} bytes of LDS of the workgroup are read" in error.message


# Waits


@pytest.mark.parametrize(
    "lines, register, counter",
    [
        (("v_lshlrev_b32 v1, 2, v0", "global_load_dword v2, v1, s[4:5]", "v_add_u32 v3, v2, v2"), "v2", "vm"),
        (("v_lshlrev_b32 v1, 2, v0", "global_load_dwordx2 v[2:3], v1, s[4:5]", "v_mov_b32 v3, 0"), "v3", "vm"),
        (("v_lshlrev_b32 v1, 2, v0", "global_load_dword v2, v1, s[4:5]", "global_load_dword v3, v1, s[4:5]",
          "s_waitcnt vmcnt(1)", "v_mov_b32 v4, v3"), "v3", "vm"),
        (("s_load_dword s8, s[4:5], 0x0", "s_add_u32 s9, s8, s8"), "s8", "lgkm"),
        (("s_load_dword s8, s[4:5], 0x0", "s_load_dword s9, s[4:5], 0x4", "s_waitcnt lgkmcnt(1)", "s_mov_b32 s10, s8"),
         "s8", "lgkm"),
        (("v_mov_b32 v1, 0", "ds_write_b32 v1, v1", "s_waitcnt lgkmcnt(0)", "s_barrier", "ds_read_b32 v2, v1",
          "global_store_dword v1, v2, s[6:7]"), "v2", "lgkm"),
        (("v_mov_b32 v1, 0", "v_mov_b32 v2, 1", "global_atomic_add v3, v1, v2, s[4:5] sc0", "v_mov_b32 v4, v3"),
         "v3", "vm"),
        (("v_mov_b32 v1, 0", "global_load_dword a2, v1, s[4:5]", "v_accvgpr_read_b32 v3, a2"), "a2", "vm"),
    ],
)  # fmt: skip
def test_a_register_that_is_not_waited_for(lines: tuple[str, ...], register: str, counter: str):
    error = fault(*lines)
    assert error.kind == "wait" and error.message.startswith(f"{register} is used before ")
    assert f"(counter {counter})" in error.message


def test_waits_that_suffice():
    run("v_lshlrev_b32 v1, 2, v0", "global_load_dword v2, v1, s[4:5]", "global_load_dword v3, v1, s[4:5]",
        "s_waitcnt vmcnt(1)", "v_mov_b32 v4, v2", "s_waitcnt vmcnt(0)", "v_mov_b32 v4, v3",
        "global_load_dword v2, v1, s[4:5]", "global_load_dword v2, v1, s[4:5]")  # fmt: skip


def test_waits_on_either_way_to_a_place():
    """One way waits and one does not: where they meet, the register may still be busy."""
    lines = ("v_mov_b32 v1, 0", "global_load_dword v2, v1, s[4:5]", "v_readfirstlane_b32 s8, v0",
             "s_cmp_eq_u32 s8, 0", "s_cbranch_scc1 skip", "s_waitcnt vmcnt(0)", "skip:", "v_mov_b32 v3, v2")  # fmt: skip
    assert fault(*lines).message.startswith("v2 is used before")
    run(*lines[:-1], "s_waitcnt vmcnt(0)", lines[-1])


# Races and barriers

EXCHANGE = ("v_lshlrev_b32 v1, 2, v0", "ds_write_b32 v1, v0", "s_waitcnt lgkmcnt(0)", "s_barrier",
            "v_xor_b32 v2, 0x100, v1", "ds_read_b32 v3, v2", "s_waitcnt lgkmcnt(0)", "s_barrier",
            "ds_write_b32 v1, v3", "s_waitcnt lgkmcnt(0)")  # fmt: skip


@BOTH_ORDERS
def test_a_deleted_barrier(order: Order):
    run(*EXCHANGE, order=order)
    first = [line for at, line in enumerate(EXCHANGE) if at != 3]
    if order is Order.LOCKSTEP:  # in the other order the second wavefront's data are not even there
        assert fault(*first, order=order).kind == "race"
    else:
        assert fault(*first, order=order).kind == "uninitialised"
    error = fault(*(line for at, line in enumerate(EXCHANGE) if at != 7), order=order)
    seen = "stored, and were loaded" if order is Order.LOCKSTEP else "loaded, and were stored"
    assert error.kind == "race" and f"4 bytes of LDS are {seen} by another wavefront" in error.message


@pytest.mark.parametrize("wait", (2, 6))
def test_an_access_of_lds_that_the_barrier_does_not_wait_for(wait: int):
    error = fault(*(line for at, line in enumerate(EXCHANGE) if at != wait))
    assert error.kind == "wait" and "is not waited for before the barrier" in error.message


@BOTH_ORDERS
def test_stores_of_two_wavefronts(order: Order):
    place = ("v_and_b32 v1, 63, v0", "v_lshlrev_b32 v1, 2, v1")
    run(*place, "v_mov_b32 v2, 7", "ds_write_b32 v1, v2", order=order)  # the same value does no harm
    error = fault(*place, "ds_write_b32 v1, v0", order=order)
    assert error.kind == "race" and "stored, and were stored" in error.message


@BOTH_ORDERS
def test_races_of_workgroups_on_memory(order: Order):
    place = ("v_lshlrev_b32 v1, 2, v0", "v_add_u32 v2, s2, v0")
    run(*place, "v_mov_b32 v2, 7", "global_store_dword v1, v2, s[6:7]", order=order, workgroups=2)
    error = fault(*place, "global_store_dword v1, v2, s[6:7]", order=order, workgroups=2)
    assert error.kind == "race" and "of the allocation of" in error.message
    in_place = (
        "global_load_dword v3, v1, s[4:5]",
        "s_waitcnt vmcnt(0)",
        "v_add_u32 v3, 1, v3",
        "v_xor_b32 v4, 0x100, v1",
    )
    run(*place, *in_place, "global_store_dword v1, v3, s[4:5]", order=order)
    error = fault(*place, *in_place, "global_store_dword v4, v3, s[4:5]", order=order)
    assert error.kind == "race"


def test_neighbouring_bytes_are_no_race():
    run("global_store_byte v0, v0, s[6:7]", "v_add_u32 v1, 0x80, v0", "s_barrier", workgroups=1)
    run("s_lshl_b32 s8, s2, 7", "v_add_u32 v1, s8, v0", "v_add_u32 v1, 1, v1", "global_store_byte v1, v0, s[6:7]",
        workgroups=3)  # fmt: skip


def test_atomics_do_not_race_and_order():
    run("v_mov_b32 v1, 0", "v_mov_b32 v2, 1", "global_atomic_add v1, v2, s[4:5]", workgroups=3)


def test_a_barrier_that_a_wavefront_never_comes_to():
    error = fault("v_readfirstlane_b32 s8, v0", "s_cmp_eq_u32 s8, 0", "s_cbranch_scc1 skip", "s_barrier", "skip:")
    assert error.kind == "barrier" and "1 of the workgroup's wavefronts have ended" in error.message
    assert error.thread == Thread((0, 0, 0), 1)


def test_different_barriers():
    error = fault("v_readfirstlane_b32 s8, v0", "s_cmp_eq_u32 s8, 0", "s_cbranch_scc1 other", "s_barrier", "s_endpgm",
                  "other:", "s_barrier")  # fmt: skip
    assert error.kind == "barrier" and "another at that before" in error.message


# How it is switched on


def test_the_environment_variable(monkeypatch: pytest.MonkeyPatch):
    for value, strict in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("AOTBUILD_EMULATOR_STRICT", value)
        assert EmulatorDriver().options.strict is strict


def test_without_strict_mode_an_access_outside_names_its_place_too():
    with pytest.raises(EmulationError, match=r"global_load_dword v2, v1, s\[4:5\] at pc 0x\w+ of kernel.* in no alloc"):
        run("v_mov_b32 v1, 0x100000", "global_load_dword v2, v1, s[4:5]", strict=False)
