"""Execute launches of the double of libamdhip64 on the emulator, with the same code object and kernargs.

The emulator sees the double's allocations at their own addresses, and nothing else of the process. AMD's library has an
emulated GPU, so over it launches are only recorded.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from aot_emulator import ARCHS, Options
from aot_emulator.machine.launch_records import Launch as Emulated
from aot_emulator.machine.loader import Module
from aot_emulator.state.device_memory import Memory
from aot_emulator.watched_launch import run_launch
from tests.support.hip_double.double import Double, Launch

_OWN_ADDRESSES = 1 << 60
"""Above every address of a process: where the emulator puts code and kernargs."""


class EmulatedLaunches:
    """Carries out every launch. `done`: what the launches were."""

    def __init__(self, options: Options | None = None):
        self.double, self.options = Double(), options or Options(strict=True)
        self.done: list[Launch] = []
        self.double.on_launch(self)

    def __call__(self, launch: Launch) -> None:
        if self.double.is_double:
            self._emulate(launch)
        self.done.append(launch)

    def _emulate(self, launch: Launch) -> None:
        memory = Memory(_OWN_ADDRESSES, 1 << 30)
        for address, nbytes in self.double.allocations(launch.device):
            memory.adopt(address, np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address)))
        kernel = Module(launch.image, ARCHS["gfx942"], memory).kernel(launch.kernel)
        assert launch.block[1:] == (1, 1)
        kernargs = as_hip_copies(launch.kernargs, kernel.metadata)
        emulated = Emulated(kernel, launch.grid, launch.block[0], launch.lds_bytes, kernargs)
        run_launch(emulated, memory, self.options)


def as_hip_copies(kernargs: bytes, metadata: Any) -> bytes:
    """Return the arguments as a kernel gets them: HIP copies them one by one, and what lies between them is garbage."""
    copied = bytearray(b"\x55" * len(kernargs))
    for arg in metadata.args:
        place = slice(arg.offset, min(arg.offset + arg.size, len(kernargs)))
        copied[place] = kernargs[place]
    return bytes(copied)
