"""Messages and memory between the preloaded library and the GPU's process: names and layouts of `shim/shim.h`.

| Message | Device | Values |
|---|---|---|
| HELLO | number of devices | the program's process; with it come the shared file and each device's memory |
| MAP | that may reach it | virtual address, bytes, offset in a device's memory, number of that device, flags |
| MAP_USER | that may reach it | virtual address, bytes, address in the program |
| UNMAP | that may no longer | virtual address, bytes |
| CREATE_QUEUE | whose it is | number (type from bit 32), ring, its bytes, read and write pointer, doorbell, save area |
| DESTROY_QUEUE | whose it is | number |
| RUNTIME | none | address of ROCr's list of loaded code objects; 0: none |

In the shared file, doorbells are written by the program, and the rest by the GPU: how often each event was raised, and
the one fault that ends the program.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

SHARED_BYTES = 0x50000
FAULT_AT = 0x1000
RAISED_AT = 0x40000
MEMORY_BYTES = 1 << 40
"""Size of the file with a device's memory, which is sparse."""
MAX_DEVICES, MAX_EVENTS = 16, 4096
LOADED, OPENED = "loaded", "opened"
"""Files in the machine's folder that are there when a program has loaded the library, and opened the driver."""
NO_PACKET = (1 << 64) - 1
"""A doorbell that was never rung."""

_MESSAGE = struct.Struct("<II7Q")
MESSAGE_BYTES = _MESSAGE.size
_FAULT = struct.Struct("<QIIII")
_DEVICE = struct.Struct("<IIIIQQQ64s")


class Operation(IntEnum):
    """Subjects of messages."""

    HELLO = 1
    MAP = 2
    MAP_USER = 3
    UNMAP = 4
    CREATE_QUEUE = 5
    DESTROY_QUEUE = 6
    RUNTIME = 7


class FaultKind(IntEnum):
    """Faults that end a program, as the driver's events tell ROCr."""

    MEMORY = 1
    HANG = 2


@dataclass(frozen=True)
class Message:
    """Something that the program did with the driver."""

    operation: Operation
    device: int
    values: tuple[int, ...]

    @classmethod
    def read(cls, raw: bytes) -> Message:
        """Raises ValueError for bytes that are no message."""
        if len(raw) != MESSAGE_BYTES:
            raise ValueError(f"a message of {len(raw)} bytes; {MESSAGE_BYTES} are needed")
        operation, device, *values = _MESSAGE.unpack(raw)
        return cls(Operation(operation), device, tuple(values))

    def packed(self) -> bytes:
        """The bytes that the library sends."""
        return _MESSAGE.pack(self.operation, self.device, *self.values, *[0] * (7 - len(self.values)))


def packed_fault(kind: FaultKind, device: int, address: int = 0) -> bytes:
    """Bytes of a fault, for `FAULT_AT` of the shared file."""
    return _FAULT.pack(address, kind, device, False, 0)


def packed_device(
    gpu_id: int, pci_id: int, family: int, memory_bytes: int, clock: int, memory_clock: int, name: str
) -> bytes:
    """A device in the list that the library reads. clock, memory_clock: kHz."""
    return _DEVICE.pack(gpu_id, pci_id, family, 0, memory_bytes, clock, memory_clock, name.encode()[:63])
