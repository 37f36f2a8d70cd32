"""Addresses and offsets of memory, scratch, LDS and flat accesses; scalar loads; refused accesses."""

from __future__ import annotations

import numpy as np
import pytest

from aot_emulator.errors import MemoryAccessError, UnsupportedInstructionError
from aot_emulator.isa.memory.buffer import scratch_resource
from tests.support.emulation.machine import ACTIVE, LANE, OLD, RDNA, Machine, block, every_isa, every_rdna, is_rdna
from tests.support.emulation.values import WAVE64, integers

# Scalar loads

WIDTHS = [
    (arch, words) for arch in ("gfx942", *RDNA) for words in (1, 2, 3, 4, 8, 16) if words != 3 or arch == "gfx1201"
]
SHORTS = ("u8", "i8", "u16", "i16")


def width_of(arch: str, words: int) -> str:
    return f"b{32 * words}" if is_rdna(arch) else f"dword{f'x{words}' if words > 1 else ''}"


@pytest.mark.parametrize("arch,words", WIDTHS)
def test_scalar_load(arch: str, words: int):
    """The sum of base, register and immediate is taken at a multiple of 4; wavefronts may differ."""
    machine, name = Machine(arch, 4), width_of(arch, words)
    content, address = machine.hold()
    machine.set_pair(4, address + 1024 + 256 * np.arange(4))
    machine.s[6] = places = np.array([12, 16, 24, 46])
    back = 8 if is_rdna(arch) else 0  # CDNA has no negative ones with a register
    machine.execute(f"s_load_{name} {block(16, words, 's')}, s[4:5], 0x43", f"s_load_{name} {block(60, words, 's')}, s[4:5], -0x8",
                    f"s_load_{name} {block(40, words, 's')}, s[4:5], s6 offset:{-back if back else '0x4'}")  # fmt: skip
    dwords = content.view(np.uint32)
    for wave in range(4):
        for first, skip in ((16, 16), (40, (int(places[wave]) + (-8 if back else 4)) // 4), (60, -2)):
            start = 256 + 64 * wave + skip
            np.testing.assert_array_equal(machine.s[first : first + words, wave], dwords[start : start + words])


@pytest.mark.parametrize("name", SHORTS)
@pytest.mark.parametrize("form", ("s_load", "s_buffer_load"))
def test_scalar_loads_of_bytes_and_shorts(form: str, name: str):
    machine = Machine("gfx1201", 4)
    content, address = machine.hold()
    machine.describe(address, 400)
    nbytes = int(name[1:]) // 8
    machine.s[6] = places = np.array([3, 100, 397, 398])
    machine.execute(f"{form}_{name} s20, {'s[4:5]' if form == 's_load' else 's[8:11]'}, s6 offset:0x2")
    at = (places + 2) // nbytes * nbytes
    want = [int.from_bytes(content[i : i + nbytes].tobytes(), "little", signed=name[0] == "i") for i in at]
    if form == "s_buffer_load":
        want = [value if place + 2 + nbytes <= 400 else 0 for value, place in zip(want, places, strict=True)]
        assert 0 in want
    assert machine.s[20].view(np.int32).tolist() == want


@pytest.mark.parametrize("stride", (0, 16))
@pytest.mark.parametrize("arch,words", WIDTHS)
def test_scalar_buffer_load(arch: str, words: int, stride: int):
    """Dwords past the end are 0, each by itself; with a stride, records are structures."""
    machine = Machine(arch, 4)
    content, address = machine.hold()
    machine.describe(address, 320 // (stride or 1), stride)
    machine.s[6] = places = np.array([0, 288, 312, 0x80000000])
    machine.execute(f"s_buffer_load_{width_of(arch, words)} {block(16, words, 's')}, s[8:11], s6 offset:0x4")
    dwords = np.where(np.arange(4096) < 320, content, 0).astype(np.uint8).view(np.uint32)
    for wave, place in enumerate(places.tolist()):
        first = (place + 4) // 4
        want = [int(dwords[i]) if i < dwords.size else 0 for i in range(first, first + words)]
        assert machine.s[16 : 16 + words, wave].tolist() == want


@every_rdna
def test_scalar_loads_outside_are_errors(arch: str):
    machine = Machine(arch)
    machine.describe(machine.hold()[1], 8192)
    for text in ("s_load_b64 s[16:17], s[4:5], 0xffc", "s_buffer_load_b32 s16, s[8:11], 0x1000"):
        with pytest.raises(MemoryAccessError, match="in no allocation"):
            machine.execute(text)


# Global memory


@pytest.mark.parametrize("arch,bits", (("gfx942", 13), ("gfx1100", 13), ("gfx1201", 24)))
def test_offsets_of_global_memory(arch: str, bits: int):
    machine = Machine(arch)
    content, address = machine.hold()
    for offset in (-1 << bits - 1, (1 << bits - 1) - 4):
        base = address - offset & 0xFFFFFFFFFFFFFFFF  # below the first allocation it wraps around
        machine.fill({2: np.uint64(base) + 4 * LANE.astype(np.uint64), 1: 4 * LANE, 10: content.view(np.uint32)[:256]})
        machine.set_pair(4, base)
        flat = [f"flat_load_dword v10, v[2:3] offset:{offset}"] if arch == "gfx1201" or offset >= 0 else []
        machine.portable(
            f"global_load_dword v8, v[2:3], off offset:{offset}",
            f"global_load_dword v9, v1, s[4:5] offset:{offset}",
            *flat,
        )
        machine.expect(dict.fromkeys((8, 9, 10), content.view(np.uint32)[:256]))


@pytest.mark.parametrize("offset,name,nbytes", ((4093, "dword", 4), (4096, "ubyte", 1), (-1, "ubyte", 1)))
def test_memory_outside_is_an_error(offset: int, name: str, nbytes: int):
    machine = Machine()
    _, address = machine.hold()
    machine.put(2, np.where(LANE == 133, address + offset, address).astype(np.uint64))
    with pytest.raises(MemoryAccessError, match="in no allocation") as raised:
        machine.execute(f"global_load_{name} v8, v[2:3], off")
    assert raised.value.address == address + offset and raised.value.nbytes == nbytes


def test_pointers_of_this_process_and_to_freed_memory_are_errors():
    host = np.zeros(64, np.uint8)
    for freed in (False, True):
        machine = Machine()
        _, address = machine.hold()
        machine.memory.free(address)
        machine.set_pair(4, address if freed else host.ctypes.data)
        machine.v[1] = 0
        for text in (
            "global_load_dword v8, v1, s[4:5]",
            "global_store_dword v1, v8, s[4:5]",
            "s_load_dword s8, s[4:5], 0x0",
        ):
            with pytest.raises(MemoryAccessError):
                machine.execute(text)
    assert not host.any()


# Scratch and flat addresses


@every_isa
def test_scratch_is_of_each_lane(arch: str):
    machine, data = Machine(arch), integers(0, 256, 2)
    machine.fill({8: data, 1: 8})
    machine.s[6] = 16
    machine.portable("scratch_store_dwordx2 off, v[8:9], s6 offset:4", "scratch_store_byte v1, v8, off offset:-2",
                     "scratch_load_dwordx2 v[10:11], off, off offset:20", "scratch_load_ubyte v12, v1, off offset:-2",
                     "scratch_load_dword v13, v1, s6")  # fmt: skip
    machine.expect({10: data, 12: data[:, 0] & 0xFF, 13: data[:, 1]})
    with pytest.raises(MemoryAccessError, match="scratch of a lane"):
        machine.portable("scratch_load_dword v8, off, s6 offset:46")


def with_scratch(nbytes: int = 64) -> Machine:
    """gfx90a's scratch is a buffer, whose resource a kernel gets."""
    machine = Machine("gfx90a", scratch_bytes=nbytes)
    machine.s[:4] = np.array(scratch_resource(nbytes, 64), np.uint32)[:, None]
    return machine


def test_scratch_by_buffer_instructions():
    data = np.random.default_rng(0).integers(0, 1 << 32, (256, 4), np.uint32)
    machine = with_scratch().fill({2: data, 1: LANE % 8 * 4})
    machine.s[6], machine.s[32] = 0, 2 * 4 * 64  # two dwords of every lane
    machine.execute("buffer_store_dwordx4 v[2:5], off, s[0:3], 0 offset:16", "buffer_load_dword v8, off, s[0:3], 0 offset:20",
                    "buffer_load_ubyte v9, off, s[0:3], s32 offset:17", "buffer_store_short v4, v1, s[0:3], s32 offen offset:24",
                    "buffer_load_ushort v10, v1, s[0:3], 0 offen offset:32")  # fmt: skip
    machine.expect({8: data[:, 1], 9: data[:, 2] >> 8 & 255, 10: data[:, 2] & 0xFFFF})
    lanes = machine.access.scratch.reshape(256, machine.access.scratch_stride)
    np.testing.assert_array_equal(lanes[:, 16:32].view(np.uint32), data, "the scratch of a lane is its own")
    machine.execute("scratch_store_dword v1, v2, off offset:4", "scratch_load_dword v12, v1, off offset:4",
                    "scratch_load_dword v13, off, s6")  # fmt: skip
    machine.expect({12: data[:, 0]})
    with pytest.raises(MemoryAccessError, match="64 bytes of scratch of a lane"):
        machine.execute("buffer_load_dwordx2 v[2:3], off, s[0:3], 0 offset:60")


def test_other_swizzled_buffers_are_refused():
    for register, value in ((0, 256), (1, 1 << 31 | 4 << 16), (32, 12)):
        machine = with_scratch()
        machine.s[32] = 0
        machine.s[register] = value
        with pytest.raises(UnsupportedInstructionError, match=r"swizzle|scratch"):
            machine.execute("buffer_load_dword v2, off, s[0:3], s32")
    machine = Machine("gfx942")
    machine.s[:4] = np.array(scratch_resource(64, 64), np.uint32)[:, None]
    with pytest.raises(UnsupportedInstructionError, match=r"swizzle|scratch"):
        machine.execute("buffer_load_dword v2, off, s[0:3], 0")


@every_isa
def test_flat_addresses_choose_the_memory(arch: str):
    machine, kind = Machine(arch).fill({6: 77}), LANE % 3  # global memory, LDS, scratch
    content, address = machine.hold()
    machine.execute("s_mov_b64 s[6:7], src_shared_base", "s_mov_b64 s[8:9], src_private_base")
    bases = np.array([address, int(machine.s[7, 0]) << 32 | 16, int(machine.s[9, 0]) << 32 | 16], np.uint64)
    machine.fill({2: bases[kind]}).portable("flat_store_dword v[2:3], v6 offset:8", "flat_load_dword v4, v[2:3] offset:8",
                                            "scratch_load_dword v5, off, off offset:24")  # fmt: skip
    assert machine.read(address, content).view(np.uint32)[2] == 77
    assert [machine.lds(i).view(np.uint32)[6] for i in (0, 1)] == [77, 77]
    machine.expect({4: np.full(256, 77), 5: np.where(kind == 2, 77, 0xFFFFFFFF)})


# LDS


@pytest.mark.parametrize("text", ("ds_read_b32 v2, v1", "ds_write_b64 v1, v[2:3]", "ds_add_u32 v1, v2"))
@every_isa
def test_lds_has_an_end(arch: str, text: str):
    machine = Machine(arch).fill({1: np.where(LANE == 71, 4096 - 2, 0)})
    with pytest.raises(MemoryAccessError, match="LDS of a workgroup") as raised:
        machine.portable(text)
    assert raised.value.address == 4094
    machine.activate(LANE != 71)
    machine.portable(text)


def test_loads_to_lds_end_there_too():
    machine = Machine("gfx950", lds_bytes=2048)
    machine.describe(machine.hold(8192)[1], 8192)
    machine.put(1, LANE * 16)
    with pytest.raises(MemoryAccessError, match="2048 bytes of LDS"):
        machine.execute("s_mov_b32 m0, 0x700", "buffer_load_dwordx4 v1, s[8:11], 0 offen lds")


@every_isa
def test_lanes_exchange_through_the_crossbar(arch: str):
    """Inactive lanes give 0; of several senders to a lane the highest wins. RDNA 3 exchanges only within 32 lanes."""
    data, to = integers(1), integers(0)
    machine = Machine(arch).fill({1: to, 2: data})
    machine.activate(ACTIVE)
    machine.execute("ds_bpermute_b32 v3, v1, v2 offset:8", "ds_permute_b32 v4, v1, v2 offset:4",
                    "ds_swizzle_b32 v5, v2 offset:swizzle(QUAD_PERM,2,3,1,0)",
                    'ds_swizzle_b32 v6, v2 offset:swizzle(BITMASK_PERM,"0p1i0")')  # fmt: skip
    lanes, seen, sent = (
        32 if arch == WAVE64 else machine.arch.lanes,
        np.where(ACTIVE, data, 0),
        np.zeros(256, np.uint32),
    )
    first = LANE & -lanes
    for lane in np.flatnonzero(ACTIVE):
        sent[first[lane] + (int(to[lane]) + 4) // 4 % lanes] = data[lane]
    named, quads = first + (to.astype(np.int64) + 8) // 4 % lanes, LANE & ~3 | np.array([2, 3, 1, 0])[LANE & 3]
    masked = LANE & 0x1E8 | 4 | ~LANE & 2  # 0: cleared, p: kept, 1: set, i: inverted
    for register, want in ((3, seen[named]), (4, sent), (5, seen[quads]), (6, seen[masked])):
        machine.expect({register: np.where(ACTIVE, want, OLD)})
    if arch == "gfx1201":  # this reads inactive lanes
        machine.execute("ds_bpermute_fi_b32 v7, v1, v2 offset:8").expect({7: np.where(ACTIVE, data[named], OLD)})
