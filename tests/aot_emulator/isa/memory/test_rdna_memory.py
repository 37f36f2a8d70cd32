"""Memory instructions of RDNA, as far as they differ from CDNA's; the others are in `test_memory_instructions`."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime.errors import MemoryAccessError, UnsupportedInstructionError
from tests.support.emulation.machine import Machine, integers
from tests.support.emulation.memory_machine import OLD, SPARSE, lds_bytes, resource, with_memory

RDNA = ("gfx1100", "gfx1201")
every_rdna = pytest.mark.parametrize("arch", RDNA)
WIDTHS = [(arch, words) for arch in RDNA for words in (1, 2, 3, 4, 8, 16) if words != 3 or arch == "gfx1201"]
SHORTS = ("u8", "i8", "u16", "i16")
RAW, STRUCTURED, INDEX_ONLY, EMPTY_ONLY = 3, 0, 1, 2


def scalars(first: int, count: int) -> str:
    return f"s[{first}:{first + count - 1}]" if count > 1 else f"s{first}"


def choose_check(machine: Machine, select: int) -> None:
    machine.s[11] = machine.s[11] & ~np.uint32(3 << 28) | np.uint32(select << 28)


# Scalar loads


@pytest.mark.parametrize("arch,words", WIDTHS)
def test_scalar_load(arch: str, words: int):
    """The sum of base, register and immediate is taken at a multiple of 4; wavefronts may differ."""
    machine, content, address = with_memory(arch=arch)
    machine.set_pair(4, address + 1024 + 256 * np.arange(4))
    machine.s[6] = np.array([0, 4, 12, 34])
    machine.execute(
        f"s_load_b{32 * words} {scalars(16, words)}, s[4:5], 0x43",
        f"s_load_b{32 * words} {scalars(40, words)}, s[4:5], s6 offset:-8",
        f"s_load_b{32 * words} {scalars(60, words)}, s[4:5], null",
    )
    dwords = content.view(np.uint32)
    for wave in range(4):
        start = 256 + 64 * wave
        for first, skip in ((16, 16), (40, (int(machine.s[6, wave]) - 8) // 4), (60, 0)):
            want = dwords[start + skip : start + skip + words]
            np.testing.assert_array_equal(machine.s[first : first + words, wave], want)


@pytest.mark.parametrize("name", SHORTS)
@pytest.mark.parametrize("form", ("s_load", "s_buffer_load"))
def test_scalar_loads_of_bytes_and_shorts(form: str, name: str):
    machine, content, address = with_memory(arch="gfx1201")
    resource(machine, address, 400)
    nbytes = int(name[1:]) // 8
    machine.s[6] = places = np.array([3, 100, 397, 398])
    base = "s[4:5]" if form == "s_load" else "s[8:11]"
    machine.execute(f"{form}_{name} s20, {base}, s6 offset:0x2")
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
    machine, content, address = with_memory(arch=arch)
    resource(machine, address, 320 // (stride or 1), stride)
    machine.s[6] = places = np.array([0, 288, 312, 0x80000000])
    machine.execute(f"s_buffer_load_b{32 * words} {scalars(16, words)}, s[8:11], s6 offset:0x4")
    dwords = np.where(np.arange(4096) < 320, content, 0).astype(np.uint8).view(np.uint32)
    for wave, place in enumerate(places.tolist()):
        first = (place + 4) // 4
        want = [int(dwords[i]) if i < dwords.size else 0 for i in range(first, first + words)]
        assert machine.s[16 : 16 + words, wave].tolist() == want


# Offsets and addresses


@pytest.mark.parametrize("arch,lowest,highest", (("gfx1100", -4096, 4095), ("gfx1201", -(1 << 23), (1 << 23) - 1)))
def test_offsets_of_global_memory(arch: str, lowest: int, highest: int):
    machine, content, address = with_memory(arch=arch)
    dwords, lane = content.view(np.uint32), np.arange(32)
    for offset in (lowest, highest - 3):
        base = np.uint64(address - offset & 0xFFFFFFFFFFFFFFFF)  # below the first allocation it wraps around
        start = base + 4 * lane.astype(np.uint64)
        machine.v[2], machine.v[3] = start & np.uint64(0xFFFFFFFF), start >> np.uint64(32)
        machine.set_pair(4, base)
        machine.v[1] = 4 * lane
        machine.execute(
            f"global_load_b32 v8, v[2:3], off offset:{offset}",
            f"global_load_b32 v9, v1, s[4:5] offset:{offset}",
            *([f"flat_load_b32 v10, v[2:3] offset:{offset}"] if arch == "gfx1201" or offset >= 0 else []),
        )
        np.testing.assert_array_equal(machine.v[8, 1], dwords[:32])
        np.testing.assert_array_equal(machine.v[9, 2], dwords[:32])
        if arch == "gfx1201" or offset >= 0:
            np.testing.assert_array_equal(machine.v[10, 3], dwords[:32])


@pytest.mark.parametrize("arch,highest", (("gfx1100", 4095), ("gfx1201", (1 << 23) - 1)))
def test_offsets_of_buffers(arch: str, highest: int):
    machine = Machine(arch=arch)
    content = integers(0, (highest // 4 + 64,))
    address = machine.allocate(content)
    resource(machine, address, content.nbytes)
    machine.v[1] = 4 * np.arange(32) + 1
    machine.execute(f"buffer_load_b32 v8, v1, s[8:11], null offen offset:{highest}")
    np.testing.assert_array_equal(machine.v[8, 0], content[(highest + 1) // 4 :][:32])


@pytest.mark.parametrize("arch,soffset", (("gfx1100", "64"), ("gfx1100", "m0"), ("gfx1201", "m0"), ("gfx1201", "s6")))
def test_soffset_of_buffers(arch: str, soffset: str):
    """It counts in the check of a raw buffer."""
    machine, content, address = with_memory(arch=arch)
    resource(machine, address, 128)
    machine.s[6] = 64
    machine.execute("s_mov_b32 m0, 64")
    machine.v[1] = 4 * np.arange(32)
    machine.execute(f"buffer_load_b32 v8, v1, s[8:11], {soffset} offen")
    want = np.where(np.arange(32) < 16, content.view(np.uint32)[16:48], 0)
    np.testing.assert_array_equal(machine.v[8, 0], want)


@every_rdna
def test_scratch_without_registers(arch: str):
    machine = Machine(arch=arch)
    machine.v[8] = integers(0, (4, 32))
    machine.execute("scratch_store_b32 off, v8, off offset:12", "scratch_load_d16_hi_b16 v9, off, off offset:14")
    np.testing.assert_array_equal(machine.v[9], machine.v[8] & 0xFFFF0000 | 0xFFFF)


# Buffers


@pytest.mark.parametrize(
    "select,indexed,inside",
    (
        (RAW, False, lambda index, offset: offset + 8 <= 40),
        (STRUCTURED, True, lambda index, offset: index < 40 and offset + 8 <= 24),
        (INDEX_ONLY, True, lambda index, offset: index < 40),
        (EMPTY_ONLY, True, lambda index, offset: True),
        (EMPTY_ONLY, False, lambda index, offset: True),
        (STRUCTURED, False, lambda index, offset: offset + 8 <= 24),
    ),
)
@every_rdna
def test_what_is_out_of_range(arch: str, select: int, indexed: bool, inside):
    """OOB_SELECT, on 40 records, of 24 bytes where they are structures; a load of two dwords, none split."""
    machine, content, address = with_memory(arch=arch)
    resource(machine, address, 40, 0 if select == RAW else 24)
    choose_check(machine, select)
    index, offset = np.arange(32) * 3, np.arange(32) % 8 * 8
    machine.v[2], machine.v[3] = index if indexed else offset, offset
    machine.execute("buffer_load_b64 v[8:9], v[2:3], s[8:11], null idxen offen" if indexed else
                    "buffer_load_b64 v[8:9], v2, s[8:11], null offen")  # fmt: skip
    dwords = content.view(np.uint32)
    for lane in range(32):
        at = (24 * int(index[lane]) * indexed + int(offset[lane])) // 4
        ok = inside(int(index[lane]), int(offset[lane]))
        assert machine.v[8:10, 0, lane].tolist() == ([int(dwords[at]), int(dwords[at + 1])] if ok else [0, 0]), lane


@every_rdna
def test_an_empty_buffer_has_nothing(arch: str):
    machine, _, address = with_memory(arch=arch)
    machine.v[1] = 0
    for select in (RAW, STRUCTURED, INDEX_ONLY, EMPTY_ONLY):
        resource(machine, address, 0, 24)
        choose_check(machine, select)
        machine.v[8] = OLD
        machine.execute("buffer_store_b32 v8, v1, s[8:11], null offen", "buffer_load_b32 v8, v1, s[8:11], null offen")
        assert not machine.v[8].any()


@every_rdna
def test_resources_that_are_refused(arch: str):
    machine, _, address = with_memory(arch=arch)
    plain, indexed = "buffer_load_b32 v8, v1, s[8:11], null offen", "buffer_load_b32 v8, v1, s[8:11], null idxen"
    machine.v[1] = 0
    for word, bits, text, message in (
        (9, 1 << 30, plain, "swizzle"),
        (9, 1 << 31, plain, "swizzle"),
        (11, 1 << 23, plain, "add_tid"),
        (11, 0, indexed, "index into a raw buffer"),
    ):
        resource(machine, address, 64)
        machine.s[word] |= bits
        with pytest.raises(UnsupportedInstructionError, match=message):
            machine.execute(text)
    resource(machine, address, 64)
    machine.s[11, 1] &= ~np.uint32(3 << 28)
    with pytest.raises(UnsupportedInstructionError, match="OOB_SELECT"):
        machine.execute(plain)


# Lanes, caches, and what there is not


def test_bpermute_reads_inactive_lanes():
    machine = Machine(arch="gfx1201")
    machine.v[1], machine.v[2] = 4 * np.arange(32)[::-1], integers(0, (4, 32))
    machine.v[3:5] = OLD
    machine.set_exec(SPARSE)
    active = machine.lanes(126)
    machine.execute("ds_bpermute_fi_b32 v3, v1, v2", "ds_bpermute_b32 v4, v1, v2")
    np.testing.assert_array_equal(machine.v[3], np.where(active, machine.v[2][:, ::-1], OLD))
    seen = np.where(active, machine.v[2], 0)[:, ::-1]
    np.testing.assert_array_equal(machine.v[4], np.where(active, seen, OLD))
    assert (machine.v[3] != machine.v[4]).any()


def test_minimum_with_nan():
    """gfx11 compares, gfx12 takes the number."""
    for arch, name, want in (("gfx1100", "min_f32", [np.nan, 3]), ("gfx1201", "min_num_f32", [2, 3])):
        machine = Machine(wavefronts=1, arch=arch)
        lds_bytes(machine, 0)[:8] = np.array([np.nan, 3], np.float32).view(np.uint8)
        machine.v[1] = np.arange(32) % 2 * 4
        machine.v[2] = np.where(np.arange(32) % 2, np.nan, 2).astype(np.float32).view(np.uint32)
        machine.execute(f"ds_{name} v1, v2")
        np.testing.assert_array_equal(lds_bytes(machine, 0)[:8].view(np.float32), np.array(want, np.float32))


@pytest.mark.parametrize(
    "arch,text",
    [("gfx1100", text) for text in ("buffer_gl0_inv", "buffer_gl1_inv", "s_gl1_inv", "s_dcache_inv")]
    + [("gfx1201", f"global_{name} scope:SCOPE_SYS") for name in ("inv", "wb", "wbinv")]
    + [("gfx1201", "s_prefetch_data s[4:5], 100, null, 7"), ("gfx1201", "s_dcache_inv")],
)
def test_caches_do_not_matter(arch: str, text: str):
    machine = Machine(arch=arch)
    before, scalars_before = machine.v.copy(), machine.s.copy()
    machine.execute(text)
    np.testing.assert_array_equal(machine.v, before)
    np.testing.assert_array_equal(machine.s, scalars_before)


@pytest.mark.parametrize(
    "arch,text",
    (
        ("gfx1100", "ds_bvh_stack_rtn_b32 v1, v0, v1, v[2:5]"),
        ("gfx1100", "ds_wrap_rtn_b32 v5, v1, v2, v3"),
        ("gfx1100", "ds_add_u32 v1, v2 gds"),
        ("gfx1100", "global_atomic_cmpswap_f32 v1, v[2:3], s[4:5]"),
        ("gfx1100", "buffer_load_format_x v1, v2, s[8:11], null offen"),
        ("gfx1201", "ds_condxchg32_rtn_b64 v[5:6], v1, v[2:3]"),
        ("gfx1201", "ds_storexchg_2addr_rtn_b32 v[6:7], v1, v2, v3"),
        ("gfx1201", "global_load_tr_b128 v[1:4], v[0:1], off"),
        ("gfx1201", "buffer_load_b32 v[1:2], v3, s[8:11], null offen tfe"),
        ("gfx1201", "s_atc_probe 7, s[4:5], 64"),
    ),
)
def test_what_is_refused(arch: str, text: str):
    with pytest.raises(UnsupportedInstructionError) as raised:
        Machine(arch=arch).execute(text)
    assert raised.value.mnemonic == text.split()[0]


@every_rdna
def test_scalar_loads_outside_are_errors(arch: str):
    machine, _, address = with_memory(arch=arch)
    resource(machine, address, 8192)
    for text in ("s_load_b64 s[16:17], s[4:5], 0xffc", "s_buffer_load_b32 s16, s[8:11], 0x1000"):
        with pytest.raises(MemoryAccessError, match="in no allocation"):
            machine.execute(text)
    with pytest.raises(UnsupportedInstructionError, match="null"):
        machine.execute("s_load_b32 null, s[4:5], 0x0")


@every_rdna
@pytest.mark.parametrize("text", ("global_atomic_add_u32 v1, v8, s[4:5]", "ds_add_u32 v1, v8"))
def test_misaligned_atomics_are_errors(arch: str, text: str):
    machine, _, _ = with_memory(arch=arch)
    machine.v[1] = 2
    with pytest.raises(MemoryAccessError, match="not aligned"):
        machine.execute(text)
