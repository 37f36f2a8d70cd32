"""AQL packet formats (HSA Runtime specification, "Architected Queuing Language").

AMD's vendor packets follow ROCr's hsa_ven_amd_aqlprofile and `hsa_amd_barrier_value_packet_t` in hsa_ext_amd.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from aot_emulator.errors import EmulationError

from .address_space import AddressSpace
from .signals import value_of

PACKET_BYTES = 64
VENDOR, INVALID, DISPATCH, BARRIER_AND, AGENT_DISPATCH, BARRIER_OR = range(6)
_NAMES = {AGENT_DISPATCH: "agent dispatch"}
_COMPLETION = 56
_PM4_BUFFER, _BARRIER_VALUE = 1, 2
"""Formats of vendor packets."""
_CONDITIONS = {
    0: lambda value, wanted: value == wanted,
    1: lambda value, wanted: value != wanted,
    2: lambda value, wanted: value < wanted,
    3: lambda value, wanted: value >= wanted,
}
_PM4_CACHES = {0x10: "NOP", 0x46: "EVENT_WRITE", 0x49: "RELEASE_MEM", 0x58: "ACQUIRE_MEM", 0x42: "PFP_SYNC_ME"}
"""PM4 commands that only affect caches, which the emulator does not model."""


@dataclass(frozen=True)
class DispatchPacket:
    """A kernel dispatch packet. shape: workgroup size; threads: grid size in work-items."""

    shape: tuple[int, int, int]
    threads: tuple[int, int, int]
    scratch_bytes: int
    lds_bytes: int
    descriptor: int
    kernarg: int

    @classmethod
    def read(cls, raw: bytes) -> DispatchPacket:
        """Decode a packet. Raises `EmulationError` for invalid sizes."""
        _, sx, sy, sz, _, tx, ty, tz, scratch, lds, descriptor, kernarg = struct.unpack_from("<5H5I2Q", raw, 2)
        found = cls((sx, sy, sz), (tx, ty, tz), scratch, lds, descriptor, kernarg)
        if not all(found.shape) or not all(found.threads) or sx * sy * sz > 1024:
            raise EmulationError(f"invalid dispatch of {found.threads} work-items in workgroups of {found.shape}")
        return found


def packet_type(raw: bytes) -> int:
    return raw[0]


def completion_signal(raw: bytes) -> int:
    return int(struct.unpack_from("<Q", raw, _COMPLETION)[0])


def barrier_is_passed(raw: bytes, memory: AddressSpace) -> bool:
    """Return True if the wait of a barrier packet is satisfied."""
    signals = [signal for signal in struct.unpack_from("<5Q", raw, 8) if signal]
    done = (value_of(memory, signal) == 0 for signal in signals)
    return not signals or (all(done) if packet_type(raw) == BARRIER_AND else any(done))


def vendor_is_passed(raw: bytes, memory: AddressSpace) -> bool:
    """Return True if a vendor packet is complete. Raises `EmulationError` for unsupported packets."""
    form = raw[2]
    if form == _BARRIER_VALUE:
        signal, wanted, mask, condition = struct.unpack_from("<QqqI", raw, 8)
        return not signal or _CONDITIONS[condition & 3](value_of(memory, signal) & mask, wanted)
    if form == _PM4_BUFFER:
        _check_commands(raw, memory)
        return True
    raise EmulationError(f"unsupported vendor packet format {form}")


def refusal(raw: bytes) -> EmulationError:
    kind = packet_type(raw)
    return EmulationError(f"unsupported packet type {kind}{_named(kind)}")


def _named(kind: int) -> str:
    return f" ({_NAMES[kind]})" if kind in _NAMES else ""


def _check_commands(raw: bytes, memory: AddressSpace) -> None:
    """Check that the indirect buffer of a PM4 packet holds only commands without an effect here."""
    low, high, size = struct.unpack_from("<3I", raw, 8)
    address, at = low & ~3 | (high & 0xFFFF) << 32, 0
    words = struct.unpack(f"<{size & 0xFFFFF}I", memory.read(address, 4 * (size & 0xFFFFF)))
    while at < len(words):
        header = words[at]
        if header >> 30 == 2:  # one-word filler packet
            at += 1
            continue
        command = header >> 8 & 0xFF
        if header >> 30 != 3 or command not in _PM4_CACHES:
            raise EmulationError(f"unsupported PM4 command {command:#x} in a vendor packet")
        at += (header >> 16 & 0x3FFF) + 2
