"""Launches kernels given as assembly text, through the scheduler, without a code object around them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from machine import DEFAULT_MODE, assemble

from aot_runtime.drivers.emulator import Options, Statistics
from aot_runtime.drivers.emulator.archs import ARCHS
from aot_runtime.drivers.emulator.decode import decode
from aot_runtime.drivers.emulator.memory import Memory
from aot_runtime.drivers.emulator.operands import Registers
from aot_runtime.drivers.emulator.program import Program
from aot_runtime.drivers.emulator.scheduler import Launch, execute
from aot_runtime.drivers.emulator.wavefronts import EXEC, Batch

REGISTERS = 32


@dataclass
class Assembled:
    """What a launch needs to know of a kernel. v0 is the lane's number in its workgroup, s[0:1] the address of a
    buffer, s2 the workgroup."""

    program: Program
    buffer: int
    scratch_bytes: int

    symbol = "assembled"

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(scratch_bytes=self.scratch_bytes)

    def entry(self, preload: bool) -> int:
        return 0

    def kernarg_segment(self, *_: Any) -> bytes:
        return b"\0"

    def start(self, batch: Batch, workgroups: np.ndarray, block: int, *_: Any) -> None:
        batch.mode[:] = DEFAULT_MODE
        wave = batch.slot % -(-block // batch.lanes)
        batch.vectors[0] = wave[:, None] * batch.lanes + np.arange(batch.lanes)
        batch.scalars[EXEC : EXEC + 2] = 0xFFFFFFFF
        batch.scalars[0], batch.scalars[1] = self.buffer & 0xFFFFFFFF, self.buffer >> 32
        batch.scalars[2] = workgroups[:, 0]


def run(
    *lines: str,
    workgroups: int = 1,
    wavefronts: int = 1,
    lds_bytes: int = 0,
    scratch_bytes: int = 0,
    buffer_bytes: int = 1 << 16,
    profile: bool = True,
    arch: str = "gfx942",
    options: Options | None = None,
) -> Statistics:
    """What a launch of some lines did; `s_endpgm` is added."""
    memory = Memory(1 << 20, 1 << 26)
    buffer = memory.allocate(buffer_bytes)
    memory.bytes_at(buffer, buffer_bytes)[:] = 0
    code = decode(assemble("\n".join((*lines, "s_endpgm")), arch), ARCHS[arch])
    program = Program("assembled", ARCHS[arch], 1 << 16, code, Registers(REGISTERS, 2 * REGISTERS))
    kernel: Any = Assembled(program, buffer, scratch_bytes)
    launch = Launch(kernel, (workgroups, 1, 1), wavefronts * ARCHS[arch].lanes, lds_bytes, b"")
    return execute(launch, memory, options or Options(profile=profile))
