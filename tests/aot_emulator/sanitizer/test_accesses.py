"""Strict mode: accesses out of bounds or not aligned, and reads of uninitialised memory."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aot_emulator.errors import MemoryAccessError, SanitizerError, Thread
from aot_emulator.state.device_memory import Memory
from tests.support.emulation.assembled import POINTER, RESOURCE, WAVE, data, fault, run
from tests.support.emulation.machine import every_isa, every_rdna

COPY = POINTER + "global_load_dword v2, v1, s[4:5]\n"


def test_an_error_names_everything():
    body = POINTER + WAVE + "s_mul_i32 s7, s6, 0x100\nv_add_u32 v1, s7, v1\nglobal_load_dword v2, v1, s[4:5] offset:16"
    error = fault("bounds", "in no allocation", body, data(3 * 64), workgroups=2, wavefronts=2)
    # Wavefront 1 reaches 0x110 + 4 * lane of its 64 + the 256 bytes of v1: past 768 bytes from lane 60 on.
    assert error.thread == Thread((0, 0, 0), 1, 60)
    assert (error.kernel, error.mnemonic) == ("kernel", "global_load_dword")
    assert error.nbytes == 4 and error.address & 0xFFFF == 0x300
    start = r"global_load_dword v2, v1, s\[4:5\] offset:16 at pc 0x\w+ of kernel, workgroup \(0, 0, 0\), wavefront 1, lane 60: "
    assert re.match(start, str(error)) and re.fullmatch(".*[(]code object [0-9a-f]{16}[)]", str(error))


def test_the_workgroup_and_wavefront_at_fault():
    body = POINTER + "s_lshl_b32 s7, s2, 8\nv_add_u32 v1, s7, v1\nglobal_load_dword v2, v1, s[4:5]\n"
    error = fault("bounds", "in no allocation", body, data(5 * 64 + 7), workgroups=9)
    assert error.thread == Thread((5, 0, 0), 0, 7)
    with pytest.raises(MemoryAccessError) as raised:  # it is known without strict mode, too
        run(body, data(5 * 64 + 7), workgroups=9, strict=False)
    assert raised.value.thread == error.thread and raised.value.address == error.address


def test_the_end_of_an_array_is_exact():
    run(COPY + "wait loads\nglobal_store_dword v1, v2, s[4:5]", data(64))
    for nbytes in (255, 252, 1):
        error = fault("bounds", "in no allocation", COPY, data(64).view("u1")[:nbytes].copy())
        assert error.thread.lane == nbytes // 4


@pytest.mark.parametrize("access", ("ds_read_b32 v2, v1 offset:{}", "ds_write_b32 v1, v1 offset:{}"))
@every_isa
def test_beyond_lds(arch: str, access: str):
    lanes = 64 if arch == "gfx942" else 32
    body = POINTER + access.format(4100 - 4 * lanes)
    error = fault("bounds", "4 bytes outside the 4096 bytes of LDS", body, data(), arch=arch)
    assert error.thread.lane == lanes - 1 and error.address == 4096


@every_isa
def test_beyond_scratch(arch: str):
    fault("bounds", "bytes of scratch", POINTER + "scratch_store_dword off, v1, off offset:64", data(), arch=arch)


# Alignment

ALIGNMENTS = {
    "ds_write_b16 v3, v4": 2, "ds_write_b32 v3, v4": 4, "ds_write_b64 v3, v[4:5]": 8,
    "ds_write2_b32 v3, v4, v5 offset1:1": 4, "ds_write_b96 v3, v[4:6]": 16, "ds_write_b128 v3, v[4:7]": 16,
}  # fmt: skip


@pytest.mark.parametrize("access", ALIGNMENTS, ids=lambda value: value.split(" ")[0])
def test_alignment(access: str):
    alignment = ALIGNMENTS[access]

    def body(offset: int) -> str:
        return POINTER + f"v_lshlrev_b32 v3, 5, v0\nv_add_u32 v3, {offset}, v3\n{access}"

    run(body(alignment), data(1024))
    for offset in (alignment // 2, alignment + alignment // 2, 1):
        error = fault("alignment", f"not a multiple of {alignment}", body(offset), data(1024))
        assert error.thread.lane == 0 and error.address % 32 == offset


def test_padded_layouts_of_gfx950():
    """They place 16 bytes at multiples of 8."""
    body = "v_lshlrev_b32 v3, 5, v0\nds_write_b128 v3, v[4:7] offset:{}"
    run(body.format(8), arch="gfx950")
    fault("alignment", "not a multiple of 8", body.format(4), arch="gfx950")


@every_rdna
def test_alignment_on_rdna(arch: str):
    fault("alignment", "not a multiple of 8", POINTER + "ds_write_b64 v1, v[8:9]", data(), arch=arch)


# What nothing has written


@pytest.mark.parametrize("text", (
    "global_load_ubyte v2, v1, s[4:5]", "buffer_load_short_d16_hi v2, v1, s[8:11], 0 offen", "s_load_dword s12, s[4:5], 0x10",
    "s_buffer_load_dwordx2 s[12:13], s[8:11], 0x10",
))  # fmt: skip
@every_isa
def test_unwritten_memory(arch: str, text: str):
    error = fault("uninitialised", "never written", POINTER + RESOURCE + text, 1024, arch=arch)
    assert error.thread.wavefront == 0 and re.search(r"of the allocation of 1024 bytes at 0x\w+ are read", str(error))


def test_masked_lanes_read_nothing():
    run(POINTER + "s_mov_b64 exec, 0\nglobal_load_dword v2, v1, s[4:5]\n", 1024)
    half = POINTER + "s_mov_b64 exec, 0xffff\nglobal_store_dword v1, v0, s[4:5]\n{}global_load_dword v2, v1, s[4:5]\n"
    run(half.format(""), 1024)
    error = fault("uninitialised", "never written", half.format("s_mov_b64 exec, 0x1ffff\n"), 1024)
    assert error.thread.lane == 16


@every_isa
def test_what_is_out_of_range_of_a_buffer_is_not_read(arch: str):
    """256 bytes of which 128 are written: lanes beyond them, by the resource's size, read nothing."""
    body = POINTER + RESOURCE + "{}v_mov_b32 v8, 0\nbuffer_store_dword v8, v1, s[8:11], 0 offen\nwait stores\n"
    body += "s_mov_b32 s10, {}\nbuffer_load_dwordx2 v[10:11], v1, s[8:11], 0 offen\ns_buffer_load_dwordx4 s[12:15], s[8:11], 0x78\n"
    run(body.format("s_mov_b32 s10, 128\n", 128), 256, arch=arch)
    fault("uninitialised", "never", body.format("s_mov_b32 s10, 128\n", 256), 256, arch=arch)


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
    write = "v_lshlrev_b32 v1, 2, v0\nds_write_b32 v1, v0\nwait lds\n"
    run(write + "ds_read_b32 v2, v1")
    error = fault("uninitialised", "bytes of LDS", write + "ds_read_b32 v2, v1 offset:4")
    assert error.thread.lane == 63 and error.address == 256
    fault("uninitialised", "never written", "v_mov_b32 v1, 0\nds_add_u32 v1, v0")


def test_scratch_may_be_read_before_it_is_written():
    """A compiler that keeps scalars in lanes of a register spills and reloads all of it."""
    run("scratch_load_dword v1, off, off offset:8\nwait loads\nscratch_store_dword off, v1, off offset:8\n")


def test_loads_past_lds_give_0_where_hardware_is_followed():
    """AMD's rocBLAS zeroes registers that way. Strict mode takes such loads for faults, whatever the option says."""
    body = (
        f"{POINTER}v_mov_b32 v2, 0xf00000\nv_mov_b32 v3, 7\nds_write_b32 v2, v3\nds_read_b32 v3, v2\n"
        "wait lds\nglobal_store_dword v1, v3, s[4:5]\n"
    )
    found = run(body, data() + 1, strict=False, lds_is_bounded=False)
    np.testing.assert_array_equal(found[:64], 0)
    with pytest.raises(MemoryAccessError, match="outside the 4096 bytes of LDS"):
        run(body, data(), strict=False)
    with pytest.raises(SanitizerError, match="outside the 4096 bytes of LDS"):
        run(body, data(), lds_is_bounded=False)
