"""A machine with memory, LDS and buffers to reach."""

from __future__ import annotations

import numpy as np
from aot_emulator.isa.archs import ARCHS

from tests.support.emulation.machine import Machine

SPARSE = np.array([0xFFFFFFFFFFFFFFFF, 0xF0F0F0F0F0F0F0F0, 1 << 40 | 1 << 13, 0], np.uint64)
"""An EXEC mask by wavefront."""
OLD = 0x5A5AA5A5
"""What registers hold that a load may leave."""


def is_rdna(arch: str) -> bool:
    return ARCHS[arch].isa != "cdna"


def with_memory(nbytes: int = 4096, sparse: bool = False, arch: str = "gfx942") -> tuple[Machine, np.ndarray, int]:
    """A machine, 4 KiB of random bytes, and their address, which is in s[4:5]; EXEC may be sparse."""
    machine = Machine(arch=arch)
    content = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    address = machine.allocate(content)
    machine.set_pair(4, address)
    if sparse:
        machine.set_exec(SPARSE)
    return machine, content, address


def lds_bytes(machine: Machine, workgroup: int) -> np.ndarray:
    return machine.access.lds[workgroup * 4096 : (workgroup + 1) * 4096]


def resource(machine: Machine, address: int, records: int, stride: int = 0) -> None:
    machine.s[8], machine.s[9] = address & 0xFFFFFFFF, address >> 32 | stride << 16
    # RDNA: bit 24 is reserved to 1, OOB_SELECT is raw.
    machine.s[10], machine.s[11] = records, 0x31027000 if is_rdna(machine.arch.name) else 0x27000
