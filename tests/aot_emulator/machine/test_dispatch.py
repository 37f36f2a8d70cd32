"""Launches from dispatch packets: grids of any number of work-items, in three dims, and the fields that kernels read."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from aot_emulator import ARCHS, Options, Order
from aot_emulator.errors import EmulationError
from aot_emulator.kfd.launches import Place, run_dispatch
from aot_emulator.kfd.packets import DispatchPacket
from aot_emulator.kfd.timed import Copies
from aot_emulator.machine.loader import Module
from aot_emulator.state.device_memory import Memory
from tests.support.emulation.assembled import POINTER, data, link, link_several
from tests.support.hip_kernels import places_code, spill_code

PACKET_BYTES = 64
every_arch = pytest.mark.parametrize("arch", ARCHS)


def put(memory: Memory, content: bytes) -> int:
    address = memory.allocate(len(content))
    memory.write(address, len(content), np.frombuffer(content, np.uint8))
    return address


def run_places(arch: str, threads: tuple[int, int, int], shape: tuple[int, int, int], options: Options) -> np.ndarray:
    """Return an array [z, y, x] with room for whole workgroups, after `places` has written into it; elsewhere it is
    -1."""
    memory = Memory(1 << 32, 1 << 30)
    kernel = Module(places_code(arch), ARCHS[arch], memory).kernel("places")
    width, height, depth = (-(-n // size) * size for n, size in zip(threads, shape, strict=True))
    out = put(memory, b"\xff" * (4 * width * height * depth))
    kernarg = put(memory, struct.pack("<Q5I", out, width, height, *shape))
    packet = put(memory, struct.pack("<6H3I", 2, 3, *shape, 0, *threads).ljust(PACKET_BYTES, b"\0"))
    dispatch = DispatchPacket(shape, threads, 0, 0, 0, kernarg)
    done = run_dispatch(kernel, dispatch, memory, options, Place(packet))
    assert done.workgroups == width * height * depth // np.prod(shape)
    return memory.bytes_at(out, 4 * width * height * depth).view(np.int32).reshape(depth, height, width).copy()


@every_arch
@pytest.mark.parametrize(
    ("threads", "shape"),
    [((128, 1, 1), (64, 1, 1)), ((100, 1, 1), (64, 1, 1)), ((33, 7, 3), (16, 4, 2)), ((5, 3, 9), (64, 2, 2))],
)
@pytest.mark.parametrize("options", [Options(strict=True), Options(order=Order.SERIAL, batch_wavefronts=4)])
def test_each_work_item_has_its_place(
    arch: str, threads: tuple[int, int, int], shape: tuple[int, int, int], options: Options
):
    found = run_places(arch, threads, shape, options)
    expected = np.full_like(found, -1)
    x, y, z = threads
    expected[:z, :y, :x] = (np.arange(found.size).reshape(found.shape) | x << 16)[:z, :y, :x]
    np.testing.assert_array_equal(found, expected)


def test_wavefronts_that_do_not_exist_are_not_run():
    """The smaller workgroups at the end of an axis have fewer wavefronts."""
    memory = Memory(1 << 32, 1 << 30)
    kernel = Module(places_code("gfx942"), ARCHS["gfx942"], memory).kernel("places")
    out, packet = put(memory, bytes(4 * 1024)), put(memory, bytes(PACKET_BYTES))
    kernarg = put(memory, struct.pack("<Q5I", out, 1024, 1, 256, 1, 1))
    dispatch = DispatchPacket((256, 1, 1), (300, 1, 1), 0, 0, 0, kernarg)
    done = run_dispatch(kernel, dispatch, memory, Options(), Place(packet))
    assert (done.workgroups, done.wavefronts) == (2, 5)


@every_arch
def test_scratch_is_the_packets(arch: str):
    memory = Memory(1 << 32, 1 << 30)
    kernel = Module(spill_code(arch), ARCHS[arch], memory).kernel("spill")
    out = put(memory, bytes(4 * 128))
    kernarg = put(memory, struct.pack("<Q", out))
    dispatch = DispatchPacket((128, 1, 1), (128, 1, 1), kernel.metadata.scratch_bytes, 0, 0, kernarg)
    assert kernel.metadata.scratch_bytes >= 256
    run_dispatch(kernel, dispatch, memory, Options(strict=True))
    i = np.arange(128)
    np.testing.assert_array_equal(memory.bytes_at(out, 512).view(np.int32), i % 64 * i)


def test_too_much_lds_is_refused():
    memory = Memory(1 << 32, 1 << 30)
    kernel = Module(places_code("gfx942"), ARCHS["gfx942"], memory).kernel("places")
    dispatch = DispatchPacket((64, 1, 1), (64, 1, 1), 0, 1 << 17, 0, 0)
    with pytest.raises(EmulationError, match="places requests 131072 bytes of LDS, a workgroup has 65536"):
        run_dispatch(kernel, dispatch, memory, Options())


def test_a_module_that_is_loaded_already():
    """Its kernels are found by the addresses of their descriptors."""
    memory = Memory(1 << 32, 1 << 30)
    image = places_code("gfx942")
    loaded = Module(image, ARCHS["gfx942"], memory)
    again = Module(image, ARCHS["gfx942"], memory, loaded.base)
    found = again.kernel_at(loaded.base + loaded.address_of("places.kd"))
    assert found is not None and found.program.address == loaded.kernel("places").program.address
    assert again.kernel_at(loaded.base) is None


STORE = f"{POINTER}v_mov_b32 v2, {{}}\nglobal_store_dword v1, v2, s[4:5]"


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "gfx1201"])
def test_kernels_whose_symbols_have_no_size(arch: str):
    """A kernel's code then reaches to the next kernel's, or to the end of the code."""
    memory = Memory(1 << 32, 1 << 30)
    module = Module(link_several(arch, first=STORE.format(11), second=STORE.format(22)), ARCHS[arch], memory)
    stores = []
    for name, expected in (("first", 11), ("second", 22)):
        kernel = module.kernel(name)
        out = put(memory, bytes(4 * 32))
        dispatch = DispatchPacket((32, 1, 1), (32, 1, 1), 0, 0, 0, put(memory, struct.pack("<2Q", out, 0)))
        run_dispatch(kernel, dispatch, memory, Options())
        assert set(memory.bytes_at(out, 128).view(np.uint32)) == {expected}
        stores.append(sum("store" in found.mnemonic for found in kernel.program.instructions.values()))
    assert stores == [1, 1]


def test_what_is_written_to_copies_stays_there():
    memory = Memory(1 << 32, 1 << 30)
    address, other = put(memory, data(4).tobytes()), put(memory, data(4).tobytes())
    copies = Copies(memory)
    copies.write(address, 4, 0xAA)
    assert copies.bytes_at(address, 8).tobytes() == b"\xaa" * 4 + struct.pack("<I", 1)
    assert memory.bytes_at(address, 16).tobytes() == memory.bytes_at(other, 16).tobytes() == data(4).tobytes()


PRELOADED = """s_branch start
.fill 63, 4, 0xbf800000
start:
v_lshlrev_b32 v1, 2, v0
v_mov_b32 v2, s7
global_store_dword v1, v2, s[2:3]"""
"""The address in the first two of six dwords that are put in s[2:7]; hardware that does so starts 256 bytes on."""


def test_arguments_beyond_the_segment_that_the_metadata_tell_of_are_preloaded():
    """Without metadata, the preload alone gives the size that is read."""
    image = bytearray(link(PRELOADED))
    descriptor = image.index(struct.pack("<2I", 4096, 64))  # it begins with bytes of LDS and scratch
    (settings,) = struct.unpack_from("<I", image, descriptor + 52)
    struct.pack_into("<I", image, descriptor + 52, settings & ~(0x1F << 1) | (2 + 6) << 1)
    struct.pack_into("<H", image, descriptor + 58, 6)
    memory = Memory(1 << 32, 1 << 30)
    out = put(memory, bytes(256))
    dispatch = DispatchPacket((64, 1, 1), (64, 1, 1), 64, 0, 0, put(memory, struct.pack("<Q4I", out, 5, 6, 7, 77)))
    run_dispatch(Module(bytes(image), ARCHS["gfx942"], memory).kernel("kernel"), dispatch, memory, Options())
    assert (memory.bytes_at(out, 256).view(np.int32) == 77).all()
