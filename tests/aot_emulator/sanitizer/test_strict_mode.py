"""Strict mode: a kernel with each fault, and the nearest one without; both orders."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from aot_emulator import ARCHS, EmulatorDriver, Options, Order
from aot_emulator.state.device_memory import Memory

from aot_runtime.errors import InstructionBudgetError, MemoryAccessError, SanitizerError, Thread
from tests.support.emulation.assembled import link

POINTER = "s_load_dwordx2 s[4:5], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\nv_lshlrev_b32 v1, 2, v0\n"
"""The array in s[4:5], and the byte offset of the thread's dword in v1."""
WAVE = "v_readfirstlane_b32 s6, v0\ns_lshr_b32 s6, s6, 6\n"
"""The wavefront's number in s6."""
ORDERS = pytest.mark.parametrize("order", tuple(Order), ids=lambda order: order.value)


def data(count: int = 256) -> np.ndarray:
    return np.arange(count, dtype=np.uint32)


def run(
    body: str,
    array: np.ndarray | int = 4,
    wavefronts: int = 1,
    workgroups: int = 1,
    strict: bool = True,
    order: Order = Order.LOCKSTEP,
    arch: str = "gfx942",
    **options: int,
) -> np.ndarray | None:
    """Run a kernel's lines on an array; returns it as it is after that.

    An int stands for so many bytes that nothing has written. There are 4096 bytes of LDS, and 64 of scratch for a lane.
    """
    driver, device = EmulatorDriver(Options(strict=strict, order=order, **options)), list(ARCHS).index(arch)
    is_given = isinstance(array, np.ndarray)
    address = driver.allocate_now(device, array.nbytes if is_given else array)
    if is_given:
        driver.copy_to_device(device, address, array.ctypes.data, array.nbytes, 0)
    code = link(tuple(body.split("\n")), arch)
    function = driver.get_function(device, driver.load_module(device, code), "kernel", 0)
    kernargs = struct.pack("<2Q", address, 0)
    driver.prepare(device, function, (workgroups, 1, 1), 64 * wavefronts, 0, kernargs).run(0)
    if not is_given:
        return None
    result = np.empty_like(array)
    driver.copy_to_host(device, result.ctypes.data, address, result.nbytes, 0)
    return result


def fault(kind: str, message: str, body: str, *array, **launch) -> SanitizerError:
    """The fault of a kernel, which without strict mode runs to its end, or leaves its bounds."""
    try:
        run(body, *array, strict=False, **launch)
    except MemoryAccessError as error:
        assert kind == "bounds", error
    else:
        assert kind != "bounds"
    with pytest.raises(SanitizerError, match=message) as raised:
        run(body, *array, **launch)
    assert raised.value.kind == kind, raised.value
    return raised.value


# Places


def test_an_error_names_everything():
    body = POINTER + WAVE + "s_mul_i32 s7, s6, 0x100\nv_add_u32 v1, s7, v1\nglobal_load_dword v2, v1, s[4:5] offset:16"
    error = fault("bounds", "in no allocation", body, data(3 * 64), workgroups=2, wavefronts=2)
    # Wavefront 1 reaches 0x110 + 4 * lane of its 64 + the 256 bytes of v1: past 768 bytes from lane 60 on.
    assert error.thread == Thread((0, 0, 0), 1, 60)
    assert (error.kernel, error.mnemonic) == ("kernel", "global_load_dword")
    assert error.nbytes == 4 and error.address & 0xFFFF == 0x300
    assert re.fullmatch("[0-9a-f]{16}", error.code)
    start = r"global_load_dword v2, v1, s\[4:5\] offset:16 at pc 0x\w+ of kernel, workgroup \(0, 0, 0\), wavefront 1, lane 60: "
    assert re.match(start, str(error)) and str(error).endswith(f"(code object {error.code})")


def test_the_workgroup_and_wavefront_at_fault():
    body = POINTER + "s_lshl_b32 s7, s2, 8\nv_add_u32 v1, s7, v1\nglobal_load_dword v2, v1, s[4:5]\n"
    error = fault("bounds", "in no allocation", body, data(5 * 64 + 7), workgroups=9)
    assert error.thread == Thread((5, 0, 0), 0, 7)
    with pytest.raises(MemoryAccessError) as raised:  # it is known without strict mode, too
        run(body, data(5 * 64 + 7), workgroups=9, strict=False)
    assert raised.value.thread == error.thread and raised.value.address == error.address


def test_the_end_of_an_array_is_exact():
    body = POINTER + "global_load_dword v2, v1, s[4:5]\ns_waitcnt vmcnt(0)\nglobal_store_dword v1, v2, s[4:5]"
    run(body, data(64))
    for nbytes in (255, 252, 1):
        error = fault("bounds", "in no allocation", body, data(64).view(np.uint8)[:nbytes].copy())
        assert error.thread.lane == nbytes // 4


@pytest.mark.parametrize("access", ("ds_read_b32 v2, v1 offset:3844", "ds_write_b32 v1, v1 offset:3844"))
def test_beyond_lds(access: str):
    error = fault("bounds", "4 bytes outside the 4096 bytes of LDS", POINTER + access, data())
    assert error.thread.lane == 63 and error.address == 4096


# Alignment

ALIGNMENTS = [
    ("global_load_ushort v2, v3, s[4:5]", 2),
    ("global_load_dword v2, v3, s[4:5]", 4),
    ("global_load_dwordx2 v[4:5], v3, s[4:5]", 4),
    ("global_load_dwordx4 v[4:7], v3, s[4:5]", 4),
    ("global_store_dwordx3 v3, v[4:6], s[4:5]", 4),
    ("global_store_short v3, v4, s[4:5]", 2),
    ("ds_write_b16 v3, v4", 2),
    ("ds_write_b32 v3, v4", 4),
    ("ds_write_b64 v3, v[4:5]", 8),
    ("ds_write2_b32 v3, v4, v5 offset1:1", 4),
    ("ds_write_b96 v3, v[4:6]", 16),
    ("ds_write_b128 v3, v[4:7]", 16),
]


@pytest.mark.parametrize("access,alignment", ALIGNMENTS, ids=lambda value: str(value).split(" ")[0])
def test_alignment(access: str, alignment: int):
    def body(offset: int) -> str:
        return POINTER + f"v_lshlrev_b32 v3, 5, v0\nv_add_u32 v3, {offset}, v3\n{access}"

    for offset in range(alignment, 17, alignment):
        run(body(offset), data(1024))
    for offset in (alignment // 2, alignment + alignment // 2, 1):
        error = fault("alignment", f"no multiple of {alignment}", body(offset), data(1024))
        assert error.thread.lane == 0 and error.address % 32 == offset


def test_padded_layouts_of_gfx950():
    """They place 16 bytes at multiples of 8."""
    body = "v_lshlrev_b32 v3, 5, v0\nds_write_b128 v3, v[4:7] offset:{}"
    run(body.format(8), arch="gfx950")
    fault("alignment", "no multiple of 8", body.format(4), arch="gfx950")


# What nothing has written

COPY = POINTER + "global_load_dword v2, v1, s[4:5]\n"


def test_unwritten_global_memory():
    error = fault("uninitialised", "never written", COPY, 1024)
    assert error.thread.lane == 0 and error.thread.wavefront == 0
    assert re.search(r"4 bytes of the allocation of 1024 bytes at 0x\w+ are read", str(error))


def test_masked_lanes_read_nothing():
    run(POINTER + "s_mov_b64 exec, 0\nglobal_load_dword v2, v1, s[4:5]\n", 1024)
    half = POINTER + "s_mov_b64 exec, 0xffff\nglobal_store_dword v1, v0, s[4:5]\n"
    run(half + "global_load_dword v2, v1, s[4:5]\n", 1024)
    error = fault(
        "uninitialised",
        "never written",
        half + "s_mov_b64 exec, 0x1ffff\nglobal_load_dword v2, v1, s[4:5]\n",
        1024,
    )
    assert error.thread.lane == 16


def test_a_store_of_part_of_what_is_read():
    short = POINTER + "global_store_short v1, v0, s[4:5]\n"
    run(short + "global_load_ushort v2, v1, s[4:5]\n", 1024)
    fault("uninitialised", "never written", short + "global_load_dword v2, v1, s[4:5]\n", 1024)
    fault("uninitialised", "never written", short + "global_load_ubyte v2, v1, s[4:5] offset:2\n", 1024)


def test_what_is_unwritten_is_copied():
    memory = Memory(1 << 20, 1 << 20, tracked=True)
    source, target = (memory.allocate(64) for _ in range(2))
    memory.write(source + 8, 8, 7)
    memory.copy(target, source + 4, 16)
    assert memory.find(target).written[:20].tolist() == [0] * 4 + [1] * 8 + [0] * 8
    memory.copy(target, source + 8, 8)
    assert memory.find(target).written[:12].tolist() == [1] * 12


def test_unwritten_lds():
    write = "v_lshlrev_b32 v1, 2, v0\nds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\n"
    run(write + "ds_read_b32 v2, v1")
    error = fault("uninitialised", "bytes of LDS", write + "ds_read_b32 v2, v1 offset:4")
    assert error.thread.lane == 63 and error.address == 256
    fault("uninitialised", "never written", "v_mov_b32 v1, 0\nds_add_u32 v1, v0")


def test_scratch_may_be_read_before_it_is_written():
    """A compiler that keeps scalars in lanes of a register spills and reloads all of it."""
    run("scratch_load_dword v1, off, off offset:8\ns_waitcnt vmcnt(0)\nscratch_store_dword off, v1, off offset:8\n")


def test_scalar_loads_read_what_is_written():
    fault("uninitialised", "s_load", POINTER + "s_load_dword s8, s[4:5], 0x10\n", 64)


# Registers before their loads are back

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


# Races

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


# Barriers

FORK = WAVE + "s_cmp_eq_u32 s6, {}\ns_cbranch_scc1 .Lother\ns_barrier\n{}\n.Lother:\n{}\n.Lend_:\n"


# Loads that go to LDS: gfx950

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


@ORDERS
def test_different_barriers(order: Order):
    run(WAVE + "s_barrier\n", wavefronts=3, order=order)
    error = fault("barrier", r"s_barrier at pc .*waits here, another at the barrier at pc 0x",
                    FORK.format(1, "s_branch .Lend_", "s_barrier"), wavefronts=3, workgroups=2, order=order)  # fmt: skip
    assert error.thread.workgroup == (0, 0, 0) and error.instruction == "s_barrier"


SHIFT = "s_cmp_eq_u32 s6, {0}\ns_cbranch_scc1 .Lover{0}\ns_barrier\n.Lover{0}:\n"


@ORDERS
def test_barriers_that_are_shifted_on_purpose(order: Order):
    """Wavefront 0 is a barrier ahead of 1 between the two branches; without the second it would end too early."""
    run(WAVE + SHIFT.format(0) + "s_barrier\ns_nop 0\ns_barrier\n" + SHIFT.format(1), wavefronts=2, order=order)
    fault("barrier", "have ended", WAVE + SHIFT.format(0) + "s_barrier\n", wavefronts=2, order=order)


@ORDERS
def test_a_wavefront_that_ends_before_a_barrier(order: Order):
    fault("barrier", "have ended", FORK.format(2, "s_endpgm", "s_endpgm"), wavefronts=3, order=order)


# Switches and budgets


def test_the_environment_switches_it_on(monkeypatch: pytest.MonkeyPatch):
    for value, strict in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("AOTBUILD_EMULATOR_STRICT", value)
        assert EmulatorDriver().options.strict is strict
        assert EmulatorDriver(Options()).options.strict is False


def test_a_launch_that_is_not_strict_ends_the_record_of_what_was_written():
    driver = EmulatorDriver(Options(strict=True))
    address, kernargs = driver.allocate_now(0, 256), bytearray(16)
    struct.pack_into("<Q", kernargs, 0, address)

    def launch(body: str, strict: bool) -> None:
        driver.options = Options(strict=strict)
        function = driver.get_function(0, driver.load_module(0, link(tuple(body.split("\n")))), "kernel", 0)
        driver.prepare(0, function, (1, 1, 1), 64, 0, bytes(kernargs)).run(0)

    with pytest.raises(SanitizerError, match="never written"):
        launch(COPY, True)
    launch(POINTER + "global_store_dword v1, v0, s[4:5]", False)
    launch(COPY, True)


@pytest.mark.parametrize("options", ({"budget": 100}, {"launch_budget": 400}), ids=str)
def test_budgets(options: dict[str, int]):
    with pytest.raises(InstructionBudgetError, match=r"s_branch 0x0 at pc .*endless"):
        run(".Lloop:\ns_branch .Lloop", wavefronts=4, **options)
    run("s_nop 0\n" * 90, wavefronts=4, **options)


def test_the_launch_budget_is_of_all_wavefronts():
    run("s_nop 0\n" * 90, wavefronts=1, launch_budget=100)
    with pytest.raises(InstructionBudgetError):
        run("s_nop 0\n" * 90, wavefronts=2, launch_budget=100)


@ORDERS
@pytest.mark.parametrize("strict", (False, True))
def test_a_barrier_that_others_never_reach_ends_in_the_budget(strict: bool, order: Order):
    with pytest.raises(InstructionBudgetError):
        run(
            FORK.format(1, "s_endpgm", ".Lloop:\ns_branch .Lloop"),
            wavefronts=2,
            budget=2000,
            order=order,
            strict=strict,
        )
