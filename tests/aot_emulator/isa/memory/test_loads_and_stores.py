"""Loads and stores of every width, by vectors: LDS, global memory and buffers."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

from aot_emulator.isa.memory.transfers import LDS_LOADS, LDS_STORES, MEMORY_LOADS, MEMORY_STORES
from tests.support.emulation.machine import ACTIVE, LANE, OLD, RDNA, Machine, block, every_isa
from tests.support.emulation.values import arch_of, integers

SPACES = ("lds", "global", "global with a scalar", "buffer")


@dataclass(frozen=True)
class Form:
    """An instruction's transfer: its number of bytes, its sign extension, and whether it fills half a register."""

    nbytes: int
    signed: bool
    half: int | None

    @property
    def words(self) -> int:
        return max(1, self.nbytes // 4)


def form_of(name: str) -> Form:
    found = re.fullmatch(r"([usib]?)(byte|short|dword|\d+)(x\d)?", re.sub(r"_?d16(_hi)?_?", "", name))
    assert found is not None, name
    unit = {"byte": 1, "short": 2, "dword": 4}.get(found[2]) or int(found[2]) // 8
    half = 1 if "d16_hi" in name else 0 if "d16" in name else None
    return Form(unit * int((found[3] or "x1")[1:]), found[1] in ("s", "i"), half)


def random_offsets(step: int, size: int) -> np.ndarray:
    """Return a multiple of the step for each lane, in no order."""
    return (np.random.default_rng(1).permutation(256) * step % size).astype(np.uint32)


def prepare(
    arch: str, space: str, offsets: np.ndarray, offset: int, records: int
) -> tuple[Machine, np.ndarray, int, str, str]:
    """Return (machine, content, address, start of the mnemonic, operands) of an access at some offsets of 8192 bytes.

    Addresses of inactive lanes do not matter.
    """
    machine = Machine(arch, lds_bytes=8192)
    content, address = machine.hold(8192)
    machine.activate(ACTIVE)
    wild = np.where(ACTIVE, offsets, 0xDEADBEEF).astype(np.uint32)
    machine.put(1, wild)
    if space == "lds":
        machine.lds(0)[:], machine.lds(1)[:] = content, content[::-1]
        return machine, content, address, "ds", f"v1 offset:{offset}"
    if space == "buffer":
        machine.describe(address, records)
        machine.s[6] = 20
        return machine, content, address, "buffer", f"v1, s[8:11], s6 offen offset:{offset - 20}"
    if space == "global":
        machine.put(2, np.where(ACTIVE, address + offsets.astype(np.uint64), 0xDEADBEEFDEADBEEF).astype(np.uint64))
        return machine, content, address, "global", f"v[2:3], off offset:{offset}"
    return machine, content, address, "global", f"v1, s[4:5] offset:{offset}"


def every(loads: bool) -> list[tuple[str, str, str]]:
    """Return (arch, space, name) of every load or store."""
    memory = MEMORY_LOADS if loads else MEMORY_STORES
    return [(arch, space, name) for arch in ("gfx942", *RDNA) for space in SPACES
            for name in ((LDS_LOADS[arch_of(arch).isa] if loads else LDS_STORES) if space == "lds"
                         else memory[arch_of(arch).isa])]  # fmt: skip


@pytest.mark.parametrize("arch,space,name", every(loads=True))
def test_load(arch: str, space: str, name: str):
    """Loads are aligned, at dwords, or anywhere; each dword past the end of a buffer reads as 0."""
    form = form_of(name)
    for step in (16, 12) if space == "buffer" else (16, 12, 7):
        offsets = random_offsets(step, 1024 if space == "buffer" else 8000)
        machine, content, _, start, operands = prepare(arch, space, offsets, 48, 900)
        mnemonic = f"{start}_{'read' if space == 'lds' else 'load'}_{name}"
        machine.portable(f"{mnemonic} {block(8, form.words)}, {operands}")
        sources = np.stack([content, content[::-1]]) if space == "lds" else np.stack([content, content])
        if space == "buffer":
            sources[:, 900:] = 0
            assert (offsets[ACTIVE] + 48 + form.nbytes > 900).any()
        raw = sources[LANE[:, None] // 128, offsets[:, None] + 48 + np.arange(form.nbytes)]
        if form.nbytes >= 4:
            want = raw.view(np.uint32)
        else:
            want = raw.view(f"{'i' if form.signed else 'u'}{form.nbytes}").astype(np.int64) & 0xFFFFFFFF
        if form.half is not None:
            other = 0 if arch == "gfx942" else OLD & 0xFFFF << 16 * (1 - form.half)  # its SRAM has ECC
            want = (want & 0xFFFF) << 16 * form.half | other
        want = np.where(ACTIVE[:, None], want, OLD)
        np.testing.assert_array_equal(machine.get(8, count=form.words).reshape(256, -1), want, f"step {step}")
        assert (machine.v[8 + form.words] == OLD).all()


@pytest.mark.parametrize("arch,space,name", every(loads=False))
def test_store(arch: str, space: str, name: str):
    """Dwords past the end of a buffer are not written."""
    form = form_of(name)
    for step in (16,) if space == "buffer" else (16, 21):
        offsets = random_offsets(step, 1 << 20)
        records = int(np.sort(offsets[ACTIVE])[80]) + 36  # which ends within a lane's data
        machine, content, address, start, operands = prepare(arch, space, offsets, 32, records)
        data = integers(0, 256, 4)
        machine.put(8, data)
        mnemonic = f"{start}_{'write' if space == 'lds' else 'store'}_{name}"
        registers, (vector, _, rest) = block(8, form.words), operands.partition(",")
        if space == "buffer":
            machine.portable(f"{mnemonic} {registers}, {operands}")
        elif space == "lds":
            machine.portable(f"{mnemonic} {operands.replace(' offset', f', {registers} offset')}")
        else:
            machine.portable(f"{mnemonic} {vector}, {registers},{rest}")
        first = 2 * (form.half or 0)
        raw = data.view(np.uint8).reshape(256, 16)[:, first : first + form.nbytes]
        wants = np.stack([content, content[::-1]]) if space == "lds" else np.stack([content])
        workgroup = LANE // 128 if space == "lds" else np.zeros(256, int)
        places = offsets[:, None] + 32 + np.arange(form.nbytes)
        inside = np.ones(places.shape, bool) if space != "buffer" else (places | min(3, form.nbytes - 1)) < records
        written = inside & ACTIVE[:, None]
        wants[np.broadcast_to(workgroup[:, None], places.shape)[written], places[written]] = raw[written]
        got = [machine.lds(i) for i in (0, 1)] if space == "lds" else [machine.read(address, content)]
        np.testing.assert_array_equal(np.stack(got), wants, f"step {step}")


@pytest.mark.parametrize("width,words", (("b32", 1), ("b64", 2)))
@pytest.mark.parametrize("form,unit", (("2", 1), ("2st64", 64)))
@every_isa
def test_lds_two_at_once(arch: str, form: str, unit: int, width: str, words: int):
    data, lane = integers(0, 256, 2 * words), LANE % 128
    machine = Machine(arch).fill({8: data, 1: lane * 4 * words})
    first, second = (1, 131) if unit == 1 else (1, 3)
    tail = f"offset0:{first} offset1:{second}"
    machine.portable(f"ds_write{form}_{width} v1, {block(8, words)}, {block(8 + words, words)} {tail}")
    for workgroup in (0, 1):
        lds, mine = machine.lds(workgroup).view(np.uint32).reshape(-1, words), data[128 * workgroup :][:128]
        assert (lds[second * unit :][:128] == mine[:, words:]).all()
        assert (lds[first * unit :][:128] == mine[:, :words]).all()
    machine.lds(0)[:] = machine.lds(1)[:] = np.random.default_rng(0).integers(0, 256, 4096)
    machine.portable(f"ds_read{form}_{width} {block(20, 2 * words)}, v1 {tail}")
    lds = machine.lds(0).view(np.uint32).reshape(-1, words)
    want = np.concatenate([lds[lane + first * unit], lds[lane + second * unit]], 1)
    machine.expect({20: want})


def test_lds_reads_into_its_own_address():
    machine = Machine().fill({8: LANE * 8})
    machine.lds(0).view(np.uint32)[:] = machine.lds(1).view(np.uint32)[:] = np.arange(1024)
    machine.execute("ds_read2_b32 v[8:9], v8 offset0:0 offset1:1").expect({9: LANE * 2 + 1})


def test_lanes_may_reach_different_allocations_and_use_accumulation_registers():
    machine, third = Machine(), LANE % 3 == 0
    first, second = (machine.allocate(np.full(256, value, np.uint32)) for value in (11, 22))
    machine.put(2, np.where(third, first, second).astype(np.uint64) + 4 * LANE.astype(np.uint64))
    machine.execute("global_load_dword a3, v[2:3], off", "v_accvgpr_read_b32 v6, a3", "v_accvgpr_write_b32 a4, 7",
                    "global_store_dword v[2:3], a4, off")  # fmt: skip
    machine.expect({6: np.where(third, 11, 22)})
    assert (machine.read(first, np.zeros(256, np.uint32)) == np.where(third, 7, 11)).all()


@pytest.mark.parametrize("bits", (16, 8, 4))
def test_transposed_load(bits: int):
    """Sixteen lanes' 64 bits are a matrix of 16 columns; lane `column` gets its column."""
    machine, places = Machine("gfx950"), random_offsets(8, 1 << 20)
    for workgroup in (0, 1):
        machine.lds(workgroup)[:] = np.random.default_rng(bits + workgroup).integers(0, 256, 4096, np.uint8)
    machine.put(8, places)
    machine.execute(f"ds_read_b64_tr_b{bits} v[2:3], v8 offset:16")
    got, count = machine.get(2, np.uint64).tolist(), 64 // bits
    for group in range(0, 256, 16):
        lds, elements = machine.lds(group // 128).tobytes(), []
        for lane in range(group, group + 16):
            whole = int.from_bytes(lds[int(places[lane]) + 16 :][:8], "little")
            elements += [whole >> bits * i & (1 << bits) - 1 for i in range(count)]
        wanted = [sum(elements[16 * row + column] << bits * row for row in range(count)) for column in range(16)]
        assert got[group : group + 16] == wanted


# Loads direct to LDS (gfx950)


@pytest.mark.parametrize("space", ("buffer", "global", "global with a scalar"))
@pytest.mark.parametrize("name,nbytes,stride", (("dword", 4, 4), ("dwordx3", 12, 16), ("dwordx4", 16, 16)))
def test_load_to_lds(space: str, name: str, nbytes: int, stride: int):
    """The lanes' data is side by side from M0 on, which differs by wavefront; outside of a buffer it is 0."""
    offsets = random_offsets(16, 1024 if space == "buffer" else 8000)
    machine, content, *_, operands = prepare("gfx950", space, offsets, 48, 900)
    machine.s[124] = base = 0x800 + np.array([0, 0x400, 0, 0x400])
    for workgroup in (0, 1):
        machine.lds(workgroup)[:] = 0xA5
    machine.execute(f"buffer_load_{name} {operands} lds" if space == "buffer" else f"global_load_lds_{name} {operands}")
    seen = np.where(np.arange(8192) < (900 if space == "buffer" else 8192), content, 0).astype(np.uint8)
    wants = np.full((2, 8192), 0xA5, np.uint8)
    offset = 48 if space != "buffer" else 28  # of the instruction, which counts in LDS too
    for lane in np.flatnonzero(ACTIVE):
        place, source = int(base[lane // 64]) + offset + lane % 64 * stride, int(offsets[lane]) + 48
        wants[lane // 128, place : place + nbytes] = seen[source : source + nbytes]
    np.testing.assert_array_equal(np.stack([machine.lds(0), machine.lds(1)]), wants)
    assert (machine.v[0] == OLD).all(), "which the field of the target names"


def test_lds_address_has_18_bits():
    machine = Machine("gfx950", lds_bytes=160 << 10)
    content, address = machine.hold()
    machine.describe(address, 4096)
    machine.put(1, LANE * 4)
    machine.execute("s_mov_b32 m0, 0xfffe6000", "buffer_load_dword v1, s[8:11], 0 offen lds")
    np.testing.assert_array_equal(machine.lds(0)[0x26000:][:256], content[256:512])
