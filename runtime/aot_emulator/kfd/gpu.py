"""GPU process of one program: takes packets from the queues and executes them.

The packets of a queue are processed in order. Queues take turns of one packet or a few milliseconds of a kernel, so
that a kernel can wait for another queue or for the program. A barrier packet that waits for signals blocks only its own
queue. Before a packet starts, all messages that the program sent before writing it are processed.

A fault stops the GPUs, prints a line to standard error, and is reported to ROCr by driver events. An unmapped access is
a memory exception, an endless kernel a device hang, and anything else a queue exception. ROCr and HIP then report the
error and abort, as on hardware.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from aot_emulator.errors import (  # fmt: skip
    EmulationError,
    InstructionBudgetError,
    MemoryAccessError,
    SanitizerError,
    UnsupportedInstructionError,
)
from aot_emulator.machine.execution import Result, Turns
from aot_emulator.machine.launch_options import Options
from aot_emulator.progress import shown_progress

from . import packets, protocol
from .address_space import AddressSpace, Process
from .code_objects import CodeObjects
from .launches import Place, launch_of, run_dispatch_in_turns
from .models import Model
from .packets import DispatchPacket
from .protocol import FaultKind, Message, Operation
from .report import Report
from .sdma import BOXES, Engine, clock
from .signals import complete
from .timed import Timed, model_text

_AQL = 2
_SDMA = (1, 3, 4)
"""Queue types (KFD_IOC_QUEUE_TYPE_*)."""
_WAVE_ABORT, _ILLEGAL_INSTRUCTION, _PACKET_UNSUPPORTED = 1, 4, 20
"""Queue exceptions (kfd_dbg_trap_exception_code)."""
_REASON, _EVENT = 24, 32
"""Offsets in the header of a queue's save area: address for the exception's reason, and event number."""
_READ_ID, _WRITE_ID = 128, 56
"""Offsets of the read and write indices in an `amd_queue_t` (ROCr's amd_hsa_queue.h)."""
_EAGER, _EAGER_NAP_S, _NAP_S = 2000, 20e-6, 1e-3
"""Polling of doorbells when idle: number of short sleeps, their duration, and the duration of later ones."""


class Gone(Exception):
    """Raised when the program has ended."""


@dataclass
class Queue:
    """A queue in memory.

    Attributes:
        index: index of the current or next packet; for SDMA rings, its byte offset.
        turns: iterator over turns of the queue's work; yields True if progress was made.
    """

    number: int
    kind: int
    device: Device
    ring: int
    nbytes: int
    read_pointer: int
    write_pointer: int
    doorbell: int
    save_area: int
    index: int = 0
    turns: Iterator[bool] = field(default_factory=lambda: iter(()))

    @property
    def header(self) -> int:
        """Address of the queue's `amd_queue_t`; 0 if the pointers are not part of one."""
        start = self.read_pointer - _READ_ID
        return start if start == self.write_pointer - _WRITE_ID else 0


@dataclass(frozen=True)
class Device:
    """A GPU visible to the program."""

    index: int
    model: Model
    memory: AddressSpace
    code: CodeObjects
    engine: Engine

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.model.title})"


class Gpus:
    """The GPUs of the program at the other end of a connection.

    Raises `Gone` if the program has ended, and `OSError` if its memory is not accessible.
    """

    def __init__(
        self, connection: socket.socket, models: Sequence[Model], options: Options, say: Callable[[str], None],
        timed: Timed | None = None,
    ):  # fmt: skip
        self._connection, self._options, self._say, self._timed = connection, options, say, timed
        raw, fds, _, _ = socket.recv_fds(connection, protocol.MESSAGE_BYTES, 1 + protocol.MAX_DEVICES)
        if not raw:
            raise Gone
        hello = Message.read(raw)
        if hello.operation is not Operation.HELLO or len(fds) != 1 + len(models):
            raise OSError("unexpected first message from the program")
        self._shared = mmap.mmap(fds[0], protocol.SHARED_BYTES)
        files = [mmap.mmap(fd, protocol.MEMORY_BYTES) for fd in fds[1:]]
        for fd in fds:
            os.close(fd)
        self._process = Process(hello.values[0])
        self._doorbells = np.frombuffer(self._shared, np.uint64)
        self._raised = np.frombuffer(self._shared, np.uint32, offset=protocol.RAISED_AT)
        self._devices = [self._device(index, model, files) for index, model in enumerate(models)]
        self._queues: dict[int, Queue] = {}
        self._is_stopped = False
        self.report = Report()
        connection.setblocking(False)

    def _device(self, index: int, model: Model, files: Sequence[mmap.mmap]) -> Device:
        memory = AddressSpace(self._process, files)
        code = CodeObjects(model.arch, memory, self._process)
        memory.interrupt = self._raise_events_like
        engine = Engine(memory, BOXES[model.arch.isa], self._raise_event)
        return Device(index, model, memory, code, engine)

    def serve(self) -> None:
        """Process the program's queues until it ends."""
        naps = 0
        try:
            while True:
                self._listen()
                advanced = [self._advance(queue) for queue in list(self._queues.values())]
                if any(advanced):
                    naps = 0
                else:
                    naps += 1
                    time.sleep(_EAGER_NAP_S if naps < _EAGER else _NAP_S)
        except Gone:
            return

    # Messages

    def _listen(self) -> None:
        while True:
            try:
                raw = self._connection.recv(protocol.MESSAGE_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                raise Gone from None
            if not raw:
                raise Gone
            self._heed(Message.read(raw))

    def _heed(self, message: Message) -> None:
        device, values = self._devices[message.device], message.values
        if message.operation is Operation.MAP:
            device.code.forget(values[0], values[1])
            device.memory.map(*values[:4])
        elif message.operation is Operation.MAP_USER:
            device.memory.map_lent(*values[:3])
        elif message.operation is Operation.UNMAP:
            device.code.forget(*values[:2])
            device.memory.unmap(*values[:2])
        elif message.operation is Operation.RUNTIME:
            for each in self._devices:
                each.code.list_address = values[0]
        elif message.operation is Operation.DESTROY_QUEUE:
            self._queues.pop(values[0], None)
        elif message.operation is Operation.CREATE_QUEUE:
            number, kind = values[0] & 0xFFFFFFFF, values[0] >> 32
            ring, nbytes, read_pointer, write_pointer, doorbell, save_area = values[1:7]
            queue = Queue(number, kind, device, ring, nbytes, read_pointer, write_pointer, doorbell, save_area)
            if kind == _AQL or kind in _SDMA:
                queue.turns = self._packets(queue) if kind == _AQL else self._commands(queue)
                self._queues[number] = queue
            else:
                self._fault(queue, EmulationError(f"unsupported queue type {kind}"))

    def _raise_event(self, event: int) -> None:
        self._raised[event % protocol.MAX_EVENTS] += 1

    def _raise_events_like(self, event: int) -> None:
        """Raise all events with the same low 8 bits. Spurious events are harmless, as ROCr checks signal values."""
        self._raised[event & 0xFF : protocol.MAX_EVENTS : 0x100] += 1

    # Packets

    def _advance(self, queue: Queue) -> bool:
        if self._is_stopped:
            return False
        try:
            return next(queue.turns)
        except Gone:
            raise
        except Exception as error:  # any error must be reported to the program
            self._fault(queue, error)
            return True

    def _bell(self, queue: Queue) -> int:
        """Return the latest doorbell value of a queue, or -1 if it has not been rung."""
        bell = int(self._doorbells[queue.doorbell >> 3])
        return -1 if bell == protocol.NO_PACKET else bell

    def _packets(self, queue: Queue) -> Iterator[bool]:
        memory = queue.device.memory
        while True:
            # With several producers, the last doorbell value need not be the highest index. The doorbell only signals
            # activity; a packet is complete once its type is valid.
            bell = self._bell(queue)
            if bell < 0 or (queue.index > bell and queue.index >= memory.word(queue.write_pointer)):
                yield False
                continue
            address = queue.ring + queue.index * packets.PACKET_BYTES % queue.nbytes
            raw = memory.read(address, packets.PACKET_BYTES)
            if packets.packet_type(raw) == packets.INVALID:
                yield False
                continue
            self._listen()  # after the packet was seen: it may use memory that was mapped just before it was written
            started = clock()
            yield from self._packet(queue, address, raw)
            memory.put_word(address, packets.INVALID, "<H")
            queue.index += 1
            memory.put_word(queue.read_pointer, queue.index)
            complete(memory, packets.completion_signal(raw), started, clock(), self._raise_event)
            yield True

    def _packet(self, queue: Queue, address: int, raw: bytes) -> Iterator[bool]:
        kind, memory = packets.packet_type(raw), queue.device.memory
        if kind == packets.DISPATCH:
            for _ in self._dispatch(queue, address, DispatchPacket.read(raw)):
                yield True
        elif kind in (packets.BARRIER_AND, packets.BARRIER_OR):
            while not packets.barrier_is_passed(raw, memory):
                yield False
        elif kind == packets.VENDOR:
            while not packets.vendor_is_passed(raw, memory):
                yield False
        else:
            raise packets.refusal(raw)

    def _dispatch(self, queue: Queue, address: int, dispatch: DispatchPacket) -> Iterator[None]:
        device = queue.device
        kernel = device.code.kernel(dispatch.descriptor)
        place = Place(address, queue.header, queue.index)
        if self._timed is not None and self._timed.takes(kernel):
            launch = launch_of(kernel, dispatch, device.memory, place)
            self._say(model_text(launch, device.model, device.memory, self._options))
            if self._timed.only:
                return
        with shown_progress(kernel.symbol, self._options) as options:
            turns = run_dispatch_in_turns(kernel, dispatch, device.memory, options, place)
            done = yield from _lending(turns, device.memory)
        if self._options.profile:
            self.report.add(kernel.symbol, done)

    def _commands(self, queue: Queue) -> Iterator[bool]:
        """Process the commands of an SDMA ring up to its doorbell, stopping at a poll that has to wait."""
        memory = queue.device.memory
        while True:
            before, bell = queue.index, self._bell(queue)
            if before < bell:
                self._listen()
            while queue.index < bell:
                at = queue.index % queue.nbytes
                raw = memory.read(queue.ring + at, min(64, queue.nbytes - at))
                size = queue.device.engine.do(raw)
                if not size:
                    break
                queue.index += size
                memory.put_word(queue.read_pointer, queue.index)
            yield queue.index > before

    # Faults

    def _fault(self, queue: Queue, error: Exception) -> None:
        self._is_stopped = True
        if not isinstance(error, EmulationError):
            self._say("".join(traceback.format_exception(error)).rstrip())
        self._say(f"{queue.device}, queue {queue.number}, packet {queue.index}: {error}")
        if isinstance(error, MemoryAccessError) or (isinstance(error, SanitizerError) and error.kind == "bounds"):
            self._report_fault(FaultKind.MEMORY, queue.device, error.address or 0)
            return
        hangs = isinstance(error, InstructionBudgetError) or not isinstance(error, EmulationError)
        if hangs or not self._report_exception(queue, _exception_of(error)):
            self._report_fault(FaultKind.HANG, queue.device)

    def _report_fault(self, kind: FaultKind, device: Device, address: int = 0) -> None:
        raw = protocol.packed_fault(kind, device.index, address % (1 << 64))
        self._shared[protocol.FAULT_AT + 8 : protocol.FAULT_AT + len(raw)] = bytes(len(raw) - 8)
        self._shared[protocol.FAULT_AT : protocol.FAULT_AT + 8] = raw[:8]
        self._shared[protocol.FAULT_AT + 8 : protocol.FAULT_AT + len(raw)] = raw[8:]  # with the kind, written last

    def _report_exception(self, queue: Queue, code: int) -> bool:
        """Report a queue exception to ROCr like the driver does. Returns False if that is not possible."""
        if not queue.save_area:
            return False
        reason = self._anywhere(queue, queue.save_area + _REASON, 8)
        event = self._anywhere(queue, queue.save_area + _EVENT, 4)
        if not reason or not event:
            return False
        queue.device.memory.put_word(reason, 1 << (code - 1))
        self._raise_event(event)
        return True

    def _anywhere(self, queue: Queue, address: int, nbytes: int) -> int:
        try:
            raw = queue.device.memory.read(address, nbytes)
        except MemoryAccessError:
            raw = self._process.read(address, nbytes)
        return int.from_bytes(raw, "little")


def _lending(turns: Turns[Result], memory: AddressSpace) -> Turns[Result]:
    """Run a launch in turns, synchronising registered memory with the program in between."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            memory.return_lent()
            result: Result = end.value
            return result
        memory.return_lent_now_and_then()
        yield


def _exception_of(error: Exception) -> int:
    if isinstance(error, UnsupportedInstructionError):
        return _ILLEGAL_INSTRUCTION
    is_in_kernel = getattr(error, "pc", None) is not None or isinstance(error, SanitizerError)
    return _WAVE_ABORT if is_in_kernel else _PACKET_UNSUPPORTED
