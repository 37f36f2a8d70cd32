"""Loads that go to LDS and pass by the registers (gfx950)."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime.errors import MemoryAccessError
from tests.support.emulation.gfx950_machine import OLD, gfx950
from tests.support.emulation.machine import Machine

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# Loads direct to LDS


def with_memory(nbytes: int = 8192, lds_bytes: int = 8192) -> tuple[Machine, np.ndarray, np.ndarray]:
    """A machine with random bytes in memory, their address in s[4:5], a resource for them in s[8:11], and offsets in v1,
    which are a dword apart from each other in no order."""
    machine = gfx950(lds_bytes=lds_bytes)
    content = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    address = machine.allocate(content)
    machine.set_pair(4, address)
    machine.set_pair(8, address)
    machine.s[10], machine.s[11] = nbytes, 0x27000
    offsets = np.random.default_rng(1).permutation(256).reshape(4, 64).astype(np.uint32) * 16
    machine.v[1] = offsets
    machine.access.lds[:] = 0xA5
    return machine, content, offsets


def expected_lds(machine: Machine, places: np.ndarray, data: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """LDS of all workgroups after lanes' data [4, 64, bytes] went to places [4, 64]."""
    size = machine.access.lds_stride
    want = np.full(2 * size, 0xA5, np.uint8)
    for wave, lane in zip(*np.nonzero(lanes), strict=True):
        start = wave // 2 * size + int(places[wave, lane])
        want[start : start + data.shape[-1]] = data[wave, lane]
    return want


SPARSE = np.array([0xFFFFFFFFFFFFFFFF, 0xF0F0F0F0F0F0F0F0, 1 << 40, 0], np.uint64)


@pytest.mark.parametrize("segment", ("buffer", "global", "global with a scalar"))
@pytest.mark.parametrize("form,nbytes,stride", (("dword", 4, 4), ("dwordx3", 12, 16), ("dwordx4", 16, 16)))
def test_load_to_lds(segment: str, form: str, nbytes: int, stride: int):
    machine, content, offsets = with_memory()
    machine.set_exec(SPARSE)
    machine.execute("s_mov_b32 m0, 0x800")
    machine.s[124] += np.array([0, 0x400, 0, 0x400], np.uint32)  # by wavefront
    if segment == "buffer":
        machine.execute(f"buffer_load_{form} v1, s[8:11], 0 offen offset:32 lds")
    elif segment == "global":
        machine.v[2] = machine.s[4][:, None] + offsets
        machine.v[3] = machine.s[5][:, None]
        machine.execute(f"global_load_lds_{form} v[2:3], off offset:32")
    else:
        machine.execute(f"global_load_lds_{form} v1, s[4:5] offset:32")
    places = machine.s[124][:, None] + 32 + np.arange(64) * stride
    data = content[(offsets + 32)[..., None] + np.arange(nbytes)]
    np.testing.assert_array_equal(machine.access.lds, expected_lds(machine, places, data, machine.lanes(126)))
    assert (machine.v[0] == OLD).all()  # which the field of the target names


def test_load_to_lds_from_outside_of_the_buffer_is_0():
    machine, content, offsets = with_memory()
    machine.s[10] = 2048 + 8  # ends within a lane's load
    machine.execute("s_mov_b32 m0, 0", "buffer_load_dwordx4 v1, s[8:11], 0 offen lds")
    data = np.where(np.arange(content.size) < 2048 + 8, content, 0).astype(np.uint8)[offsets[..., None] + np.arange(16)]
    want = expected_lds(machine, np.tile(np.arange(64) * 16, (4, 1)), data, np.ones((4, 64), bool))
    # Two wavefronts of a workgroup store to one place: the later one stays.
    np.testing.assert_array_equal(machine.access.lds, want)


def test_load_past_the_end_of_lds():
    machine, _, _ = with_memory(lds_bytes=2048)
    with pytest.raises(MemoryAccessError, match="2048 bytes of LDS"):
        machine.execute("s_mov_b32 m0, 0x700", "buffer_load_dwordx4 v1, s[8:11], 0 offen lds")


def test_lds_address_has_18_bits():
    machine, content, offsets = with_memory(lds_bytes=160 << 10)
    machine.execute("s_mov_b32 m0, 0xfffe6000", "buffer_load_dword v1, s[8:11], 0 offen lds")
    np.testing.assert_array_equal(
        machine.access.lds[0x26000:][:256].reshape(64, 4), content[offsets[1][:, None] + np.arange(4)]
    )
