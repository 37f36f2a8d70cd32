"""LDS, global, flat, scratch and buffer instructions, and atomics."""

from __future__ import annotations

import numpy as np
import pytest
from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.memory.transfers import LDS_LOADS, LDS_STORES, MEMORY_LOADS, MEMORY_STORES, Transfer

from aot_runtime.errors import MemoryAccessError, UnsupportedInstructionError
from tests.support.emulation.machine import Machine, integers
from tests.support.emulation.memory_machine import OLD, SPARSE, is_rdna, lds_bytes, resource, with_memory
from tests.support.emulation.memory_text import block, every_arch, named, no_soffset


def ds(arch: str, text: str) -> str:
    """`read` and `write` of a data-share instruction as the arch has them, `read2st64` and `write2` too."""
    if not is_rdna(arch):
        return f"ds_{text}"
    for old, new in (("read", "load"), ("write", "store"), ("2st64", "_2addr_stride64"), ("2_", "_2addr_")):
        text = text.replace(old, new)
    return f"ds_{text}"


def expected(transfer: Transfer, raw: bytes, old: int = OLD) -> list[int]:
    """The registers after a load of these bytes."""
    if transfer.nbytes >= 4:
        return list(np.frombuffer(raw, "<u4"))
    value = int.from_bytes(raw, "little", signed=transfer.signed)
    if transfer.half is None:
        return [value & 0xFFFFFFFF]
    value &= 0xFFFF
    return [(old & 0xFFFF) | value << 16 if transfer.half else (old & 0xFFFF0000) | value]


def stored(transfer: Transfer, words: list[int]) -> bytes:
    raw = b"".join(int(word).to_bytes(4, "little") for word in words)
    return raw[2 * (transfer.half or 0) :][: transfer.nbytes]


def spread(machine: Machine, step: int, size: int = 3072) -> np.ndarray:
    """Byte offsets, a different multiple of `step` for each lane, in no order."""
    lanes = machine.arch.lanes
    order = np.random.default_rng(1).permutation(4 * lanes) * step * (64 // lanes) % size
    return order.reshape(4, lanes).astype(np.uint32)


def permutation(machine: Machine) -> np.ndarray:
    """A number for each lane, in no order."""
    count = 4 * machine.arch.lanes
    return np.random.default_rng(1).permutation(count).reshape(machine.waves.shape).astype(np.uint32)


def check_loaded(machine: Machine, transfer: Transfer, content: np.ndarray, offsets: np.ndarray, what: str) -> None:
    active = machine.lanes(126)
    for wave in range(4):
        for lane in range(0, machine.arch.lanes, 3):
            got = machine.v[8 : 8 + transfer.words, wave, lane].tolist()
            start = int(offsets[wave, lane])
            want = expected(transfer, content[start : start + transfer.nbytes].tobytes())
            assert got == (want if active[wave, lane] else [OLD] * transfer.words), (what, wave, lane)


# LDS


@pytest.mark.parametrize("step", (16, 12, 3), ids=("aligned", "dwords", "odd"))
@pytest.mark.parametrize("name", LDS_LOADS)
@every_arch
def test_lds_load(arch: str, name: str, step: int):
    machine, content, _ = with_memory(sparse=True, arch=arch)
    transfer = LDS_LOADS[name]
    for workgroup in (0, 1):
        lds_bytes(machine, workgroup)[:] = content if workgroup else content[::-1]
    machine.v[8:12] = OLD
    machine.v[1] = spread(machine, step, 4096 - 256)
    machine.execute(f"{ds(arch, 'read')}_{name} {block(transfer.words)}, v1 offset:48")
    loaded, mirrored = machine.v, content[::-1]
    active = machine.lanes(126)
    for wave in range(4):
        source = content if wave >= 2 else mirrored
        for lane in range(0, machine.arch.lanes, 3):
            start = int(machine.v[1, wave, lane]) + 48
            want = expected(transfer, source[start : start + transfer.nbytes].tobytes())
            got = loaded[8 : 8 + transfer.words, wave, lane].tolist()
            assert got == (want if active[wave, lane] else [OLD] * transfer.words)


@pytest.mark.parametrize("step", (16, 21), ids=("aligned", "odd"))
@pytest.mark.parametrize("name", LDS_STORES)
@every_arch
def test_lds_store(arch: str, name: str, step: int):
    machine = Machine(arch=arch)
    transfer, lanes = LDS_STORES[name], machine.arch.lanes
    machine.set_exec(SPARSE)
    machine.v[8:12] = integers(0, (4, 4, lanes))
    # The two wavefronts of a workgroup write in one LDS.
    places = np.stack([np.random.default_rng(i).permutation(2 * lanes) for i in range(2)]).reshape(4, lanes) * step
    machine.v[1] = places
    machine.execute(f"{ds(arch, 'write')}_{name} v1, {block(transfer.words)} offset:32")
    want = np.full((2, 4096), 0xFF, np.uint8)
    for wave, lane in zip(*np.nonzero(machine.lanes(126)), strict=True):
        start = int(places[wave, lane]) + 32
        raw = stored(transfer, machine.v[8 : 8 + transfer.words, wave, lane].tolist())
        want[wave // 2, start : start + transfer.nbytes] = np.frombuffer(raw, np.uint8)
    for workgroup in (0, 1):
        np.testing.assert_array_equal(lds_bytes(machine, workgroup), want[workgroup])


@pytest.mark.parametrize("width", ("b32", "b64"))
@pytest.mark.parametrize("form,unit", (("2", 1), ("2st64", 64)))
@every_arch
def test_lds_two_at_once(arch: str, form: str, unit: int, width: str):
    nbytes = {"b32": 4, "b64": 8}[width]
    machine, words = Machine(arch=arch), nbytes // 4
    lanes = machine.arch.lanes
    machine.v[8 : 8 + 2 * words] = integers(0, (2 * words, 4, lanes))
    machine.v[1] = np.tile(np.arange(2 * lanes, dtype=np.uint32).reshape(2, lanes), (2, 1)) * nbytes
    offsets = (1, 131) if unit == 1 else (1, 5)
    tail = f"offset0:{offsets[0]} offset1:{offsets[1]}"
    machine.execute(f"{ds(arch, f'write{form}_{width}')} v1, {block(words)}, {block(words, 8 + words)} {tail}",
                    f"{ds(arch, f'read{form}_{width}')} {block(2 * words, 20)}, v1 {tail}")  # fmt: skip
    np.testing.assert_array_equal(machine.v[20 : 20 + 2 * words], machine.v[8 : 8 + 2 * words])
    lds = lds_bytes(machine, 0).view(np.uint32).reshape(-1, words)
    np.testing.assert_array_equal(lds[offsets[0] * unit + np.arange(lanes)], machine.v[8 : 8 + words, 0].T)
    np.testing.assert_array_equal(lds[offsets[1] * unit + np.arange(lanes)], machine.v[8 + words : 8 + 2 * words, 0].T)


def test_lds_reads_into_its_own_address():
    machine = Machine()
    lds_bytes(machine, 0).view(np.uint32)[:] = np.arange(1024)
    machine.v[8] = np.arange(64, dtype=np.uint32) * 8
    machine.execute("ds_read2_b32 v[8:9], v8 offset0:0 offset1:1")
    np.testing.assert_array_equal(machine.v[9, 0], np.arange(64) * 2 + 1)


@pytest.mark.parametrize("text", ("read_b32 v2, v1", "write_b64 v1, v[2:3]", "add_u32 v1, v2"))
@every_arch
def test_lds_has_an_end(arch: str, text: str):
    machine, text = Machine(arch=arch), ds(arch, text)
    machine.v[1], machine.v[1, 1, 7] = 0, 4096 - 2
    with pytest.raises(MemoryAccessError, match="LDS of a workgroup") as raised:
        machine.execute(text)
    assert raised.value.address == 4094
    machine.set_exec(np.uint64(0x7F))
    machine.execute(text)


@every_arch
def test_lanes_exchange_through_the_crossbar(arch: str):
    machine = Machine(arch=arch)
    lanes = machine.arch.lanes
    machine.v[1] = integers(0, (4, lanes))
    machine.v[2] = source = integers(1, (4, lanes))
    machine.set_exec(SPARSE)
    active = machine.lanes(126)
    machine.v[3:8] = OLD
    machine.execute("ds_bpermute_b32 v3, v1, v2 offset:8", "ds_permute_b32 v4, v1, v2 offset:4",
                    "ds_swizzle_b32 v5, v2 offset:swizzle(QUAD_PERM,2,3,1,0)",
                    "ds_swizzle_b32 v6, v2 offset:swizzle(BITMASK_PERM,\"0p1i0\")")  # fmt: skip
    for wave in range(4):
        sent = [0] * lanes
        for lane in range(lanes):
            if active[wave, lane]:
                sent[(int(machine.v[1, wave, lane]) + 4) // 4 % lanes] = int(source[wave, lane])
        for lane in range(lanes):

            def value(origin: int, wave: int = wave) -> int:
                return int(source[wave, origin]) if active[wave, origin] else 0

            wanted = [value((int(machine.v[1, wave, lane]) + 8) // 4 % lanes), sent[lane],
                      value(lane & ~3 | (2, 3, 1, 0)[lane & 3]),
                      value(mask_swizzle(lane))]  # fmt: skip
            got = machine.v[3:7, wave, lane].tolist()
            assert got == (wanted if active[wave, lane] else [OLD] * 4)


def mask_swizzle(lane: int) -> int:
    """Bits of the lane from the pattern 0p1i0: 0 → 0, p → kept, 1 → 1, i → inverted; within 32 lanes."""
    bits = [lane >> 4 - i & 1 for i in range(5)]
    found = [{"0": 0, "1": 1, "p": bit, "i": 1 - bit}[symbol] for symbol, bit in zip("0p1i0", bits, strict=True)]
    return lane & 32 | int("".join(map(str, found)), 2)


# Global, flat, scratch


@pytest.mark.parametrize("step", (16, 12, 7), ids=("aligned", "dwords", "odd"))
@named(MEMORY_LOADS)
def test_global_load(arch: str, name: str, step: int):
    transfer = MEMORY_LOADS[ARCHS[arch].isa][name]
    for scalar in (False, True):
        machine, content, address = with_memory(sparse=True, arch=arch)
        offsets = spread(machine, step)
        machine.v[8:12] = OLD
        machine.v[2], machine.v[3] = offsets + (0 if scalar else address & 0xFFFFFFFF), address >> 32
        machine.v[2][~machine.lanes(126)] = 0xDEADBEEF  # addresses of inactive lanes do not matter
        if not scalar:
            machine.v[3][~machine.lanes(126)] = 0xDEADBEEF
        operand = "v2, s[4:5] offset:64" if scalar else "v[2:3], off offset:64"
        machine.execute(f"global_load_{name} {block(transfer.words)}, {operand}")
        check_loaded(machine, transfer, content, offsets + 64, name)


@pytest.mark.parametrize("step", (16, 19), ids=("aligned", "odd"))
@named(MEMORY_STORES)
def test_global_store(arch: str, name: str, step: int):
    machine, content, address = with_memory(8192, sparse=True, arch=arch)
    transfer = MEMORY_STORES[ARCHS[arch].isa][name]
    machine.v[8:12] = integers(0, (4, *machine.waves.shape))
    machine.v[1] = offsets = permutation(machine) * step
    machine.execute(f"global_store_{name} v1, {block(transfer.words)}, s[4:5]")
    want = content.copy()
    for wave, lane in zip(*np.nonzero(machine.lanes(126)), strict=True):
        start = int(offsets[wave, lane])
        raw = stored(transfer, machine.v[8 : 8 + transfer.words, wave, lane].tolist())
        want[start : start + transfer.nbytes] = np.frombuffer(raw, np.uint8)
    np.testing.assert_array_equal(machine.read(address, want), want)


def test_lanes_may_reach_different_allocations_and_use_accumulation_registers():
    machine = Machine()
    first, second = (machine.allocate(np.full(64, value, np.uint32)) for value in (11, 22))
    addresses = np.where(np.arange(64) % 3 == 0, first, second) + 4 * np.arange(64)
    machine.v[2], machine.v[3] = (addresses & 0xFFFFFFFF).astype(np.uint32), (addresses >> 32).astype(np.uint32)
    machine.execute(
        "global_load_dword a3, v[2:3], off", "v_accvgpr_read_b32 v6, a3", "global_store_dword v[2:3], a3, off"
    )
    np.testing.assert_array_equal(machine.v[6], np.broadcast_to(np.where(np.arange(64) % 3 == 0, 11, 22), (4, 64)))


@pytest.mark.parametrize("offset,nbytes", ((4093, 4), (4096, 1), (-1, 1)))
def test_memory_outside_is_an_error(offset: int, nbytes: int):
    machine, _, address = with_memory()
    target = address + offset
    machine.v[2], machine.v[3] = address & 0xFFFFFFFF, address >> 32
    machine.v[2, 2, 5], machine.v[3, 2, 5] = target & 0xFFFFFFFF, target >> 32
    form = {4: "dword", 1: "ubyte"}[nbytes]
    with pytest.raises(MemoryAccessError, match="in no allocation") as raised:
        machine.execute(f"global_load_{form} v8, v[2:3], off")
    assert raised.value.address == target and raised.value.nbytes == nbytes


def test_a_pointer_of_this_process_is_an_error():
    machine, host = Machine(), np.zeros(64, np.uint8)
    machine.set_pair(4, host.ctypes.data)
    machine.v[1] = 0
    for text in (
        "global_load_dword v8, v1, s[4:5]",
        "global_store_dword v1, v8, s[4:5]",
        "s_load_dword s8, s[4:5], 0x0",
    ):
        with pytest.raises(MemoryAccessError):
            machine.execute(text)
    assert not host.any()


def test_freed_memory_is_an_error():
    machine, _, address = with_memory()
    machine.memory.free(address)
    machine.v[1] = 0
    with pytest.raises(MemoryAccessError):
        machine.execute("global_load_dword v8, v1, s[4:5]")


@every_arch
def test_scratch_is_of_each_lane(arch: str):
    machine = Machine(arch=arch)
    machine.v[8:10] = integers(0, (2, *machine.waves.shape))
    machine.s[6] = 16
    machine.v[1] = 8
    machine.execute("scratch_store_dwordx2 off, v[8:9], s6 offset:4", "scratch_store_byte v1, v8, off offset:-2",
                    "scratch_load_dwordx2 v[10:11], off, off offset:20", "scratch_load_ubyte v12, v1, off offset:-2",
                    "scratch_load_dword v13, v1, s6")  # fmt: skip
    np.testing.assert_array_equal(machine.v[10:12], machine.v[8:10])
    np.testing.assert_array_equal(machine.v[12], machine.v[8] & 0xFF)
    np.testing.assert_array_equal(machine.v[13], machine.v[9])
    with pytest.raises(MemoryAccessError, match="scratch of a lane"):
        machine.execute("scratch_load_dword v8, off, s6 offset:46")


@every_arch
def test_flat_addresses_choose_the_memory(arch: str):
    machine, content, address = with_memory(arch=arch)
    machine.v[6] = 77
    # Lane by lane: global memory, LDS, scratch.
    kind = np.arange(machine.arch.lanes) % 3
    machine.v[2] = np.where(kind == 0, address & 0xFFFFFFFF, 16)
    machine.execute("s_mov_b64 s[6:7], src_shared_base", "s_mov_b64 s[8:9], src_private_base")
    machine.v[3] = np.where(kind == 0, address >> 32, np.where(kind == 1, machine.s[7, 0], machine.s[9, 0]))
    machine.execute("flat_store_dword v[2:3], v6 offset:8", "flat_load_dword v4, v[2:3] offset:8")
    assert (machine.v[4] == 77).all()
    assert machine.read(address, content).view(np.uint32)[2] == 77
    assert lds_bytes(machine, 1).view(np.uint32)[6] == 77
    machine.execute("scratch_load_dword v5, off, off offset:24")
    np.testing.assert_array_equal(machine.v[5, 0], np.where(kind == 2, 77, 0xFFFFFFFF))


# Buffers


@named(MEMORY_LOADS)
def test_buffer_load(arch: str, name: str):
    """What is past the end reads as 0, dword by dword; soffset counts."""
    transfer = MEMORY_LOADS[ARCHS[arch].isa][name]
    machine, content, address = with_memory(sparse=True, arch=arch)
    offsets = spread(machine, 4, 1024)
    records = 900
    resource(machine, address, records)
    machine.s[6] = 20
    machine.v[1] = offsets
    machine.v[8:12] = OLD
    machine.execute(f"buffer_load_{name} {block(transfer.words)}, v1, s[8:11], s6 offen offset:8")
    seen = np.where(np.arange(4096) < records, content, 0).astype(np.uint8)
    check_loaded(machine, transfer, seen, offsets + 28, name)
    assert (offsets + 28 + transfer.nbytes > records)[machine.lanes(126)].any()


@pytest.mark.parametrize("sparse", (False, True))
@named(MEMORY_STORES)
def test_buffer_store(arch: str, name: str, sparse: bool):
    machine, content, address = with_memory(sparse=sparse, arch=arch)
    transfer, records = MEMORY_STORES[ARCHS[arch].isa][name], 1000
    resource(machine, address, records)
    machine.v[1] = offsets = permutation(machine) * 16 - 36
    machine.v[8:12] = integers(0, (4, *machine.waves.shape))
    data = block(transfer.words)
    machine.execute(f"buffer_store_{name} {data}, v1, s[8:11], {no_soffset(arch)} offen offset:36")
    want = content.copy()
    for wave, lane in zip(*np.nonzero(machine.lanes(126)), strict=True):
        start = int(offsets[wave, lane]) + 36 & 0xFFFFFFFF  # the hardware adds in 32 bits
        raw = stored(transfer, machine.v[8 : 8 + transfer.words, wave, lane].tolist())
        unit = min(4, transfer.nbytes)
        for at in range(0, transfer.nbytes, unit):
            if start + at + unit <= records:
                want[start + at : start + at + unit] = np.frombuffer(raw[at : at + unit], np.uint8)
    np.testing.assert_array_equal(machine.read(address, want), want)


@every_arch
def test_buffer_offsets_that_wrap_are_outside(arch: str):
    """Triton masks a lane by an offset of 2**31."""
    machine, content, address = with_memory(arch=arch)
    resource(machine, address, 0x7FFFFFFE)
    lane = np.arange(machine.arch.lanes)
    machine.v[1] = np.where(lane % 2, 0x80000000, 4 * lane)
    machine.v[8] = OLD
    operands = f"v1, s[8:11], {no_soffset(arch)} offen"
    machine.execute(f"buffer_load_dword v8, {operands}", f"buffer_store_dword v1, {operands}")
    words = content.view(np.uint32)[: machine.arch.lanes]
    np.testing.assert_array_equal(machine.v[8, 0], np.where(lane % 2, 0, words))


def test_buffers_of_structures():
    machine, content, address = with_memory()
    resource(machine, address, 50, stride=24)
    machine.v[2], machine.v[3] = np.arange(64), 8
    machine.execute("buffer_load_dword v8, v[2:3], s[8:11], 0 idxen offen offset:4")
    want = [content.view(np.uint32)[(24 * i + 12) // 4] if i < 50 else 0 for i in range(64)]
    assert machine.v[8, 3].tolist() == want


def test_buffer_in_range_but_outside_its_allocation_is_an_error():
    machine, _, address = with_memory()
    resource(machine, address, 0x7FFFFFFE)
    machine.v[1] = 4096
    with pytest.raises(MemoryAccessError):
        machine.execute("buffer_load_dword v8, v1, s[8:11], 0 offen")


def test_swizzled_buffers_and_loads_to_lds_are_refused():
    machine, _, address = with_memory()
    resource(machine, address, 4096)
    machine.s[9] |= 1 << 31
    machine.v[1] = 0
    with pytest.raises(UnsupportedInstructionError, match="swizzle"):
        machine.execute("buffer_load_dword v8, v1, s[8:11], 0 offen")
    with pytest.raises(UnsupportedInstructionError, match="LDS"):
        machine.execute("buffer_load_ubyte v1, s[8:11], 0 offen lds")
