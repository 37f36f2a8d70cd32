"""The parts of the emulated driver in isolation: models, memory, packets, commands of SDMA rings, reports."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from pathlib import Path

import numpy as np
import pytest

from aot_emulator import ARCHS, Options
from aot_emulator.errors import EmulationError, MemoryAccessError
from aot_emulator.kfd import packets, protocol
from aot_emulator.kfd.address_space import AddressSpace, Process
from aot_emulator.kfd.gpu import Gpus
from aot_emulator.kfd.models import MODELS, find_model
from aot_emulator.kfd.protocol import MESSAGE_BYTES, Message, Operation
from aot_emulator.kfd.sdma import BOXES, Engine
from aot_emulator.kfd.signals import value_of
from aot_emulator.kfd.topology import write_machine
from aot_runtime.device.drivers.unseen import gpus_of_linux
from aot_runtime.errors import DeviceError

VA = 0x7F0000000000
SIZE = 1 << 20


@pytest.fixture
def memory() -> AddressSpace:
    """Return a device's memory at `VA`."""
    space = AddressSpace(Process(os.getpid()), [mmap.mmap(-1, SIZE)])
    space.map(VA, SIZE, 0, 0)
    return space


class Lent:
    """Memory of this process that a device may reach."""

    def __init__(self, space: AddressSpace, nbytes: int):
        self.buffer = (ctypes.c_uint8 * nbytes)()
        self.va = ctypes.addressof(self.buffer)
        space.map_lent(self.va, nbytes, self.va)
        self.array = np.ctypeslib.as_array(self.buffer)


# Models


def test_gpus_are_found_by_any_name():
    assert find_model("MI300X") is find_model("AMD Instinct MI300X") is find_model("gfx942") is MODELS["mi300x"]
    part = find_model("mi300x-cpx")
    assert (part.num_cus, part.num_xcds, part.memory_bytes) == (38, 1, 24 << 30)
    with pytest.raises(DeviceError, match="unknown GPU 'gfx1150'; emulated GPUs: mi210"):
        find_model("gfx1150")
    assert find_model("Radeon 8060S") is find_model("gfx1151") is MODELS["8060s"]


def test_linux_shows_what_was_written(tmp_path: Path):
    write_machine(tmp_path, [MODELS["mi210"], MODELS["mi355x"], MODELS["rx7900xtx"]])
    assert gpus_of_linux(tmp_path / "sys/kfd/kfd/topology/nodes") == ["gfx90a", "gfx950", "gfx1100"]
    links = [(tmp_path / f"sys/kfd/kfd/topology/nodes/1/{kind}").iterdir() for kind in ("io_links", "p2p_links")]
    assert [len(list(found)) for found in links] == [1, 2]


def test_every_emulated_architecture_has_a_gpu():
    assert {model.arch.name for model in MODELS.values()} == set(ARCHS)


# Messages


def test_messages_are_read_as_they_are_written():
    told = Message(Operation.MAP, 1, (VA, SIZE, 0, 0, 1, 0, 0))
    assert Message.read(told.packed()) == told and len(told.packed()) == MESSAGE_BYTES
    with pytest.raises(ValueError, match="a message has 64 bytes, got 3"):
        Message.read(b"abc")


class Program:
    """A program with one GPU, as the GPU process sees it: it has mapped SIZE bytes at VA, where its queue's ring is."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files = [os.memfd_create(name) for name in ("shared", "memory")]
        for file, nbytes in zip(files, (protocol.SHARED_BYTES, protocol.MEMORY_BYTES), strict=True):
            os.truncate(file, nbytes)
        socket.send_fds(self._end, [Message(Operation.HELLO, 1, (os.getpid(),)).packed()], files)
        self.gpus = Gpus(theirs, [find_model("mi300x")], Options(), self.said.append)
        self.memory = self.gpus._devices[0].memory
        self.tell(Operation.MAP, VA, SIZE, 0, 0)
        self.tell(Operation.CREATE_QUEUE, 2 << 32, VA, 4096, VA + 8192, VA + 8200, 0, 0)
        self.gpus._listen()
        self.gpus._doorbells[0] = 0
        for packet in range(64):
            self.memory.put_word(VA + 64 * packet, packets.INVALID, "<H")

    def tell(self, operation: Operation, *values: int) -> None:
        self._end.send(Message(operation, 0, values).packed())


def test_what_was_mapped_before_a_packet_was_written_is_there_for_it(monkeypatch: pytest.MonkeyPatch):
    """Also if the program does both while the GPU process looks at the queue."""
    program, signal = Program(), VA + 2 * SIZE
    read = AddressSpace.read

    def write_meanwhile(self: AddressSpace, address: int, nbytes: int) -> bytes:
        if address == VA and nbytes == 64:
            program.tell(Operation.MAP, signal, 4096, SIZE, 0)
            self.put(VA, barrier(packets.BARRIER_AND, [])[:56] + struct.pack("<Q", signal))
            monkeypatch.undo()
        return read(self, address, nbytes)

    monkeypatch.setattr(AddressSpace, "read", write_meanwhile)
    (queue,) = program.gpus._queues.values()
    assert program.gpus._advance(queue) and not program.said
    assert value_of(program.memory, signal) == -1


# Memory


def test_lent_memory_is_read_once_and_written_back_where_it_changed(memory: AddressSpace):
    lent = Lent(memory, 8192)
    lent.array[:] = 1
    memory.write(lent.va + 5000, 3, 7)  # a kernel's store
    lent.array[0] = 9  # the program goes on meanwhile
    assert memory.bytes_at(lent.va, 1)[0] == 1
    memory.return_lent()
    assert lent.array[0] == 9 and lent.array[5000:5003].tolist() == [7] * 3 and lent.array[5003] == 1
    assert memory.bytes_at(lent.va, 1)[0] == 9  # the next kernel sees it


def test_copies_reach_lent_memory_at_once(memory: AddressSpace):
    lent = Lent(memory, 4096)
    lent.array[:] = np.arange(4096) % 251
    memory.move(VA + 100, lent.va + 10, 1000)
    assert (memory.bytes_at(VA + 100, 1000) == lent.array[10:1010]).all()
    memory.fill(lent.va, b"\x01\x02", 5)
    assert lent.array[:6].tolist() == [1, 2, 1, 2, 1, 5]


def test_copies_go_over_neighbouring_allocations(memory: AddressSpace):
    memory.map(VA + SIZE, 4096, 0, 0)
    memory.move(VA + SIZE - 10, VA, 20)
    with pytest.raises(MemoryAccessError):
        memory.move(VA + SIZE + 4090, VA, 20)


def test_what_is_unmapped_is_gone(memory: AddressSpace):
    memory.unmap(VA, SIZE)
    memory.unmap(VA, SIZE)
    with pytest.raises(MemoryAccessError, match="4 bytes at 0x7f0000000000 are in no allocation"):
        memory.word(VA, "<I")


# Packets


def put_signals(memory: AddressSpace, *values: int) -> list[int]:
    for number, value in enumerate(values):
        memory.put_word(VA + 64 * number + 8, value, "<q")
    return [VA + 64 * number for number in range(len(values))]


def barrier(kind: int, signals: list[int]) -> bytes:
    return struct.pack("<HHI5Q", kind, 0, 0, *signals, *[0] * (5 - len(signals))).ljust(64, b"\0")


@pytest.mark.parametrize(
    ("values", "both", "either"),
    [((), True, True), ((0, 0), True, True), ((0, 1), False, True), ((1, 2), False, False)],
)
def test_barriers(memory: AddressSpace, values: tuple[int, ...], both: bool, either: bool):
    signals = put_signals(memory, *values)
    assert packets.barrier_is_passed(barrier(packets.BARRIER_AND, signals), memory) is both
    assert packets.barrier_is_passed(barrier(packets.BARRIER_OR, signals), memory) is either


@pytest.mark.parametrize(("condition", "passes"), [(0, (5,)), (1, (4, 6)), (2, (4,)), (3, (5, 6))])
def test_barriers_of_a_value(memory: AddressSpace, condition: int, passes: tuple[int, ...]):
    for value in (4, 5, 6):
        (signal,) = put_signals(memory, value | 1 << 40)
        raw = struct.pack("<HBBIQqqI", 0, 2, 0, 0, signal, 5, 0xFF, condition).ljust(64, b"\0")
        assert packets.vendor_is_passed(raw, memory) is (value in passes)


def test_commands_of_a_vendor_packet(memory: AddressSpace):
    """Cache commands pass; any other is refused by its number."""
    for command, served in ((0x58, True), (0x76, False)):
        words = [0xC0000000 | 2 << 16 | command << 8, 1, 2, 3, 0x80000000]
        memory.put(VA, struct.pack("<5I", *words))
        raw = struct.pack("<HBBIIII", 0, 1, 0, 0xC0023F00, VA & 0xFFFFFFFF, VA >> 32, 5).ljust(64, b"\0")
        if served:
            assert packets.vendor_is_passed(raw, memory)
        else:
            with pytest.raises(EmulationError, match="unsupported PM4 command 0x76 in a vendor packet"):
                packets.vendor_is_passed(raw, memory)
    with pytest.raises(EmulationError, match="unsupported vendor packet format 9"):
        packets.vendor_is_passed(struct.pack("<HB", 0, 9).ljust(64, b"\0"), memory)


def test_sizes_that_no_launch_has():
    for shape, threads in (((0, 1, 1), (1, 1, 1)), ((64, 64, 1), (64, 64, 1)), ((64, 1, 1), (64, 0, 1))):
        raw = struct.pack("<6H3I", 2, 3, *shape, 0, *threads).ljust(64, b"\0")
        with pytest.raises(EmulationError, match="invalid dispatch of"):
            packets.DispatchPacket.read(raw)


# Commands of SDMA rings


@pytest.fixture
def engine(memory: AddressSpace) -> Engine:
    return Engine(memory, BOXES["cdna"], lambda event: None)


def command(engine: Engine, *words: int) -> int:
    return engine.do(struct.pack(f"<{len(words)}I", *words))


def split(address: int) -> tuple[int, int]:
    return address & 0xFFFFFFFF, address >> 32


@pytest.mark.parametrize("isa", ["cdna", "rdna4"])
def test_a_box_is_copied(memory: AddressSpace, isa: str):
    form = BOXES[isa]
    source = np.random.default_rng(0).integers(0, 256, (3, 8, 40), np.uint8)
    memory.put(VA, source.tobytes())
    target, at = np.zeros((3, 6, 64), np.uint8), VA + 8192
    memory.put(at, target.tobytes())
    # 5 x 4 x 2 elements of 4 bytes, from (1, 2, 1) to (3, 0, 0).
    words = [1 | 4 << 8 | 2 << 29, *split(VA), 1 | 2 << 16, 1 | 9 << form.pitch_at, 79, *split(at), 3, 15 << form.pitch_at,
             95, 4 | 3 << 16, 1]  # fmt: skip
    assert command(Engine(memory, form, lambda event: None), *words) == 52
    target[:2, :4, 12:32] = source[1:, 2:6, 4:24]
    assert (memory.bytes_at(at, target.size).reshape(target.shape) == target).all()


def test_fills_atomics_and_polls(memory: AddressSpace, engine: Engine):
    assert command(engine, 11 | 2 << 30, *split(VA + 4), 0x01020304, 12) == 20
    assert memory.read(VA, 24) == bytes(4) + b"\x04\x03\x02\x01" * 4 + bytes(4)
    command(engine, 10 | 47 << 25, *split(VA), 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 0)
    assert memory.word(VA) == (0x01020304 << 32) - 1
    poll = 8 | 3 << 28 | 1 << 31  # equal
    assert command(engine, poll, *split(VA + 4), 0x04, 0xFF, 0) == 0
    assert command(engine, poll, *split(VA + 4), 0x03, 0xFF, 0) == 24


def test_commands_that_are_not_served(engine: Engine):
    for words, text in (((3, 0), "command 3"), ((1 | 1 << 8, 0), "copy sub-command 1"), ((10, 0), "atomic 0")):
        with pytest.raises(EmulationError, match=f"unsupported SDMA {text}"):
            command(engine, *words)
