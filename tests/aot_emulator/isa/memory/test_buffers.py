"""Bounds and offsets of buffers, from their resource descriptors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aot_emulator.errors import MemoryAccessError, UnsupportedInstructionError
from tests.support.emulation.machine import LANE, OLD, Machine, every_isa, every_rdna
from tests.support.emulation.values import integers

RAW, STRUCTURED, INDEX_ONLY, EMPTY_ONLY = 3, 0, 1, 2


def with_buffer(arch: str, records: int, stride: int = 0, select: int = RAW) -> tuple[Machine, np.ndarray]:
    """Return a machine, and the dwords of its buffer; v1 has the byte offsets of dwords."""
    machine = Machine(arch).fill({1: 4 * LANE})
    content, address = machine.hold()
    machine.describe(address, records, stride)
    if select != RAW:
        machine.s[11] = machine.s[11] & ~np.uint32(3 << 28) | np.uint32(select << 28)
    return machine, content.view(np.uint32)


@pytest.mark.parametrize("arch,highest", (("gfx942", 4095), ("gfx1100", 4095), ("gfx1201", (1 << 23) - 1)))
def test_offsets(arch: str, highest: int):
    machine, content = Machine(arch).fill({1: 4 * LANE + 1}), integers(0, highest // 4 + 512)
    machine.describe(machine.allocate(content), content.nbytes)
    machine.portable(f"buffer_load_dword v8, v1, s[8:11], 0 offen offset:{highest}")
    machine.expect({8: content[(highest + 1) // 4 :][:256]})


@pytest.mark.parametrize("arch,soffset", (("gfx942", "s6"), ("gfx1100", "64"), ("gfx1100", "m0"), ("gfx1201", "m0")))
def test_soffset_counts_in_the_check(arch: str, soffset: str):
    machine, dwords = with_buffer(arch, 128)
    machine.s[6] = 64
    machine.portable("s_mov_b32 m0, 64", f"buffer_load_dword v8, v1, s[8:11], {soffset} offen")
    machine.expect({8: np.where(LANE < 16, dwords[LANE + 16], 0)})


@every_isa
def test_large_offsets(arch: str):
    """Offsets wrap at 32 bits, and Triton masks a lane by 2**31. An access in range, but outside of its allocation, is
    an error."""
    machine, dwords = with_buffer(arch, 0x7FFFFFFE)
    machine.put(1, 4 * LANE - 12)
    machine.portable("buffer_load_dword v8, v1, s[8:11], 0 offen offset:12").expect({8: dwords[:256]})
    machine.put(1, np.where(LANE % 2, 0x80000000, 4 * LANE))
    machine.portable("buffer_load_dword v8, v1, s[8:11], 0 offen", "buffer_store_dword v1, v1, s[8:11], 0 offen")
    machine.expect({8: np.where(LANE % 2, 0, dwords[:256])})
    machine.v[1] = 4096
    with pytest.raises(MemoryAccessError):
        machine.portable("buffer_load_dword v8, v1, s[8:11], 0 offen")


def test_structures():
    machine, dwords = with_buffer("gfx942", 50, 24)
    machine.fill({2: LANE, 3: 8}).execute("buffer_load_dword v8, v[2:3], s[8:11], 0 idxen offen offset:4")
    machine.expect({8: np.where(LANE < 50, dwords[(24 * LANE + 12) // 4 % 1024], 0)})


@pytest.mark.parametrize("select,indexed,inside", (
    (RAW, False, lambda index, offset: offset + 8 <= 40),
    (STRUCTURED, True, lambda index, offset: (index < 40) & (offset + 8 <= 24)),
    (INDEX_ONLY, True, lambda index, offset: index < 40), (EMPTY_ONLY, True, lambda index, offset: index >= 0),
    (EMPTY_ONLY, False, lambda index, offset: offset >= 0), (STRUCTURED, False, lambda index, offset: offset + 8 <= 24),
))  # fmt: skip
@every_rdna
def test_what_is_out_of_range(arch: str, select: int, indexed: bool, inside: Callable[..., np.ndarray]):
    """OOB_SELECT decides for 40 records, of 24 bytes where they are structures; a load of two dwords is never split."""
    machine, dwords = with_buffer(arch, 40, 0 if select == RAW else 24, select)
    index, offset = LANE % 32 * 3, LANE % 8 * 8
    machine.fill({2: index if indexed else offset, 3: offset})
    operands = "v[2:3], s[8:11], null idxen" if indexed else "v2, s[8:11], null"
    machine.execute(f"buffer_load_b64 v[8:9], {operands} offen")
    at = ((24 * index * indexed + offset) // 4)[:, None] + [0, 1]
    machine.expect({8: np.where(inside(index, offset)[:, None], dwords[at], 0)})


@every_rdna
def test_an_empty_buffer_has_nothing(arch: str):
    for select in (RAW, STRUCTURED, INDEX_ONLY, EMPTY_ONLY):
        machine, _ = with_buffer(arch, 0, 24, select)
        machine.v[1], machine.v[8] = 0, OLD
        machine.execute("buffer_store_b32 v8, v1, s[8:11], null offen", "buffer_load_b32 v8, v1, s[8:11], null offen")
        assert not machine.v[8].any()


@pytest.mark.parametrize("word,bits,text,message", (
    (9, 1 << 30, "offen", "swizzle"), (9, 1 << 31, "offen", "swizzle"), (11, 1 << 23, "offen", "add_tid"),
    (11, 0, "idxen", "index into a raw buffer"),
))  # fmt: skip
@every_isa
def test_resources_that_are_refused(arch: str, word: int, bits: int, text: str, message: str):
    """Bit 30 is about the cache on CDNA, where the index is not checked like that."""
    machine, _ = with_buffer(arch, 64)
    machine.s[word] |= bits
    if arch == "gfx942" and (bits == 1 << 30 or text == "idxen"):
        machine.execute(f"buffer_load_dword v8, v1, s[8:11], 0 {text}")
        return
    with pytest.raises(UnsupportedInstructionError, match=message):
        machine.portable(f"buffer_load_dword v8, v1, s[8:11], 0 {text}")


@every_rdna
def test_checks_that_differ_by_wavefront_are_refused(arch: str):
    machine, _ = with_buffer(arch, 64)
    machine.s[11, 1] &= ~np.uint32(3 << 28)
    with pytest.raises(UnsupportedInstructionError, match="OOB_SELECT"):
        machine.execute("buffer_load_b32 v8, v1, s[8:11], null offen")
