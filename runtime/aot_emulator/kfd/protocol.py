"""Messages and shared memory between the preloaded library and the GPU process, as in `shim/shim.h`.

| Message | Device | Values |
|---|---|---|
| HELLO | number of devices | the program's pid; with it come fds of the shared file and of each device's memory |
| MAP | device with access | virtual address, bytes, offset in a device's memory, index of that device, flags |
| MAP_USER | device with access | virtual address, bytes, address in the program |
| UNMAP | device that loses access | virtual address, bytes |
| CREATE_QUEUE | owner | number (type from bit 32), ring, ring bytes, read and write pointer, doorbell, save area |
| DESTROY_QUEUE | owner | number |
| RUNTIME | unused | address of ROCr's list of loaded code objects; 0: none |

In the shared file, the program writes the doorbells. The GPU writes the rest: a counter for each event, and the fault
that ends the program.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

SHARED_BYTES = 0x50000
FAULT_AT = 0x1000
RAISED_AT = 0x40000
MEMORY_BYTES = 1 << 40
"""Size of the sparse file that holds a device's memory."""
MAX_DEVICES, MAX_EVENTS = 16, 4096
LOADED, OPENED = "loaded", "opened"
"""Marker files in the machine's folder, created when a program loads the library, and when it opens the driver."""
NO_PACKET = (1 << 64) - 1
"""Value of a doorbell that has never been rung."""

_MESSAGE = struct.Struct("<II7Q")
MESSAGE_BYTES = _MESSAGE.size
_FAULT = struct.Struct("<QIIII")
_DEVICE = struct.Struct("<IIIIQQQ64s")


class Operation(IntEnum):
    """Message types."""

    HELLO = 1
    MAP = 2
    MAP_USER = 3
    UNMAP = 4
    CREATE_QUEUE = 5
    DESTROY_QUEUE = 6
    RUNTIME = 7


class FaultKind(IntEnum):
    """Faults that end a program, as reported to ROCr by driver events."""

    MEMORY = 1
    HANG = 2


@dataclass(frozen=True)
class Message:
    """A driver operation of the program."""

    operation: Operation
    device: int
    values: tuple[int, ...]

    @classmethod
    def read(cls, raw: bytes) -> Message:
        """Decode a message. Raises ValueError for invalid bytes."""
        if len(raw) != MESSAGE_BYTES:
            raise ValueError(f"a message has {MESSAGE_BYTES} bytes, got {len(raw)}")
        operation, device, *values = _MESSAGE.unpack(raw)
        return cls(Operation(operation), device, tuple(values))

    def packed(self) -> bytes:
        """Encode the message as the library sends it."""
        return _MESSAGE.pack(self.operation, self.device, *self.values, *[0] * (7 - len(self.values)))


def packed_fault(kind: FaultKind, device: int, address: int = 0) -> bytes:
    """Encode a fault for `FAULT_AT` in the shared file."""
    return _FAULT.pack(address, kind, device, False, 0)


def packed_device(
    gpu_id: int, pci_id: int, family: int, memory_bytes: int, clock: int, memory_clock: int, name: str
) -> bytes:
    """Encode an entry of the device list that the library reads. clock, memory_clock: kHz."""
    return _DEVICE.pack(gpu_id, pci_id, family, 0, memory_bytes, clock, memory_clock, name.encode()[:63])
