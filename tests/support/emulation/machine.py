"""Executes instructions given as assembly text, with LLVM's assembler for the encodings."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.decoding import decode
from aot_emulator.isa.operands import Registers
from aot_emulator.machine.program import Program
from aot_emulator.state.access import Access
from aot_emulator.state.device_memory import Memory
from aot_emulator.state.wavefronts import EXEC, Batch, Wavefronts

from aot_runtime.bundle.elf import Elf

ACCUMULATION = 64
"""Ordinary vector registers, and as many accumulation registers."""
DEFAULT_MODE = 0x3F0
"""Round to nearest, denormals kept, DX10_CLAMP and IEEE: what Triton's kernels start with."""


@cache
def assemble(text: str, arch: str = "gfx942") -> bytes:
    """Machine code of some lines."""
    compiler = pytest.importorskip("triton.backends.amd.compiler", reason="assembling needs the extra `build`")
    source = f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n.text\n{text}\n'
    elf = Elf(compiler.assemble_amdgcn(source, arch, ""))
    section = elf.section(".text")
    assert section is not None
    return elf.data(section)


class Machine:
    """Wavefronts with registers to set, and LDS, scratch and memory to reach; two wavefronts a workgroup."""

    def __init__(
        self,
        wavefronts: int = 4,
        lds_bytes: int = 4096,
        scratch_bytes: int = 64,
        mode: int = DEFAULT_MODE,
        arch: str = "gfx942",
    ):
        self.arch = ARCHS[arch]
        self.batch = Batch(2 * ACCUMULATION, wavefronts, self.arch.lanes)
        self.batch.workgroup[:] = np.arange(wavefronts) // 2
        self.batch.mode[:] = mode
        self.v, self.s = self.batch.vectors, self.batch.scalars
        self.s[EXEC : EXEC + 2] = 0xFFFFFFFF
        self.memory = Memory(1 << 20, 1 << 24)
        self.access = Access(self.memory, lds_bytes, -(-wavefronts // 2), scratch_bytes, (wavefronts, self.arch.lanes))
        self.waves = Wavefronts(self.batch, 0, wavefronts, 0, 0, self.access)

    @property
    def scc(self) -> np.ndarray:
        return self.batch.scc

    def pair(self, register: int) -> np.ndarray:
        return self.s[register].astype(np.uint64) | self.s[register + 1].astype(np.uint64) << np.uint64(32)

    def set_pair(self, register: int, value: Any) -> None:
        value = np.asarray(value, np.uint64)
        self.s[register], self.s[register + 1] = value & np.uint64(0xFFFFFFFF), value >> np.uint64(32)
        self._forget()

    def set_exec(self, mask: Any) -> None:
        self.set_pair(EXEC, mask)

    def lanes(self, register: int) -> np.ndarray:
        """The bits of a scalar register pair, bool [wavefronts, lanes]; of one, where it has 32."""
        return (self.pair(register)[:, None] >> np.arange(self.arch.lanes, dtype=np.uint64) & np.uint64(1)).astype(bool)

    def allocate(self, content: np.ndarray) -> int:
        address = self.memory.allocate(content.nbytes)
        self.memory.bytes_at(address, content.nbytes)[:] = np.ascontiguousarray(content).view(np.uint8).ravel()
        return address

    def read(self, address: int, like: np.ndarray) -> np.ndarray:
        return self.memory.bytes_at(address, like.nbytes).copy().view(like.dtype).reshape(like.shape)

    def execute(self, *lines: str) -> Machine:
        """Run straight-line code."""
        code = assemble("\n".join((*lines, "s_endpgm")), self.arch.name)
        instructions = decode(code, self.arch)
        program = Program("test", self.arch, 1 << 16, instructions, Registers(ACCUMULATION, 2 * ACCUMULATION))
        self._forget()
        with np.errstate(all="ignore"):
            for _, step in program.run_at(0).steps:
                step(self.waves)
        return self

    def _forget(self) -> None:
        self.waves = Wavefronts(self.batch, 0, len(self.batch.slot), 0, 0, self.access)


EDGES32 = np.array(
    [0, 1, 2, 3, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF, 0x800000, 0xFFFFFF,
     0x1000000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0xAAAAAAAA, 0x55555555, 0xFFFF0000],
    np.uint32,
)  # fmt: skip


def integers(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """uint32 of random bits, a third of them edge values."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1 << 32, shape, np.uint32) >> rng.integers(0, 32, shape, np.uint32)
    return np.where(rng.random(shape) < 0.35, rng.choice(EDGES32, shape), values)


def edge_floats(seed: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Floats of every magnitude, with NaN, infinities, zeros and denormals among them."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    info, bits = np.finfo(dtype), np.dtype(f"u{dtype.itemsize}")
    special = np.array(
        [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            1.5,
            2.5,
            -2.5,
            np.inf,
            -np.inf,
            np.nan,
            info.max,
            -info.max,
            info.tiny,
            info.smallest_subnormal,
            -info.smallest_subnormal,
            info.tiny / 2,
            3.0,
            1 / 3,
        ],
        dtype,
    )
    anything = rng.integers(0, np.iinfo(bits).max, shape, bits, endpoint=True).view(dtype)
    normal = rng.standard_normal(shape).astype(dtype)
    which = rng.random(shape)
    values = np.where(which < 0.3, rng.choice(special, shape), np.where(which < 0.55, anything, normal))
    return np.where(np.isnan(values), dtype.type(np.nan), values)  # one NaN: payloads are another matter
