"""Execute instructions given as assembly text, encoded by LLVM's assembler.

A machine has 256 lanes whatever its arch: values of registers are given and read as arrays of 256, or [256, n].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aot_emulator.isa.archs import Arch
from aot_emulator.isa.decoding import Instruction, decode
from aot_emulator.isa.operands import Registers
from aot_emulator.machine.program import Program
from aot_emulator.state.access import Access
from aot_emulator.state.device_memory import Memory
from aot_emulator.state.wavefronts import EXEC, Batch, Wavefronts
from aot_runtime.bundle.elf import Elf
from tests.support.emulation.values import COUNT, RDNA, WAVE64, arch_of, assert_same, block, is_rdna

ACCUMULATION = 64
"""Ordinary vector registers, and on CDNA as many accumulation registers."""
DEFAULT_MODE = 0x3F0
"""Round to nearest, denormals kept, DX10_CLAMP and IEEE: what Triton's kernels start with."""
OLD = 0x5A5AA5A5
"""Initial contents of the vector registers."""
LANE = np.arange(COUNT)
ACTIVE = np.r_[np.ones(64, bool), LANE[:64] % 8 > 3, np.random.default_rng(5).random(64) < 0.5, np.zeros(64, bool)]
"""Lanes, of which some wavefronts have all, some or none."""
every_rdna = pytest.mark.parametrize("arch", RDNA)
every_isa = pytest.mark.parametrize("arch", ("gfx942", *RDNA, WAVE64))
"""An arch of each instruction set, RDNA's with wavefronts of both sizes."""
every_width = pytest.mark.parametrize("arch", (*RDNA, WAVE64))


def features(arch: Arch) -> str:
    """Return LLVM's target features besides the architecture."""
    return "+wavefrontsize64" if arch.wave64 else ""


@cache
def assemble(text: str, arch: str = "gfx942") -> bytes:
    """Return the machine code of some lines."""
    compiler = pytest.importorskip("triton.backends.amd.compiler", reason="assembling needs the extra `build`")
    found = arch_of(arch)
    source = f'.amdgcn_target "amdgcn-amd-amdhsa--{found.name}"\n.text\n{text}\n'
    elf = Elf(compiler.assemble_amdgcn(source, found.name, features(found)))
    section = elf.section(".text")
    assert section is not None
    return elf.data(section)


def decoded(text: str, arch: str = "gfx942") -> Instruction:
    """Return the one instruction that some text is; it takes all bytes."""
    code = assemble(text, arch)
    found = decode(code, arch_of(arch))
    assert list(found) == [0] and found[0].size == len(code), text
    return found[0]


_RDNA_NAMES = (
    (r"ds_(read|write)2st64", r"ds_\1_2addr_stride64"), (r"ds_(read|write)2_", r"ds_\1_2addr_"), ("ds_read", "ds_load"),
    ("ds_write", "ds_store"), (r"dwordx(\d+)", lambda found: f"b{32 * int(found[1])}"), ("dword", "b32"), ("ubyte", "u8"),
    (r"load_short_d16(_hi)?", r"load_d16\1_b16"), ("sbyte", "i8"), ("_byte", "_b8"), ("ushort", "u16"), ("_short", "_b16"), (r"(global|flat|buffer)_atomic_add\b", r"\1_atomic_add_u32"),
    (r"(s\[8:11\]), 0\b", r"\1, null"),
    (r"v_(add|sub)_u32", r"v_\1_nc_u32"), ("0x27000", "0x31027000"),
)  # fmt: skip
Place = int | tuple[int, int]
"""A register's number, or (number, which 16 bits)."""
RETURN = {"cdna": "sc0", "rdna3": "glc", "rdna4": "th:TH_ATOMIC_RETURN"}
"""Modifier with which an atomic on memory returns the old value."""


def translated(line: str, arch: str) -> str:
    """Return a memory instruction of gfx942 in an arch's words."""
    for old, new in _RDNA_NAMES if is_rdna(arch) else ():
        line = re.sub(old, new, line)
    return line.replace(" sc0", f" {RETURN[arch_of(arch).isa]}")


class Machine:
    """A machine of 256 threads with registers to set, and LDS, scratch and memory to reach, in two workgroups; or fewer
    or more wavefronts."""

    def __init__(
        self, arch: str = "gfx942", wavefronts: int = 0, lds_bytes: int = 4096, scratch_bytes: int = 64,
        mode: int = DEFAULT_MODE,
    ):  # fmt: skip
        self.name, self.arch = arch, arch_of(arch)
        lanes = self.arch.lanes
        wavefronts = wavefronts or COUNT // lanes
        self.layout = Registers(ACCUMULATION, ACCUMULATION if is_rdna(arch) else 2 * ACCUMULATION)
        self.batch = Batch(self.layout.total, wavefronts, lanes)
        self.batch.workgroup[:] = np.arange(wavefronts) * lanes // 128
        self.batch.mode[:] = mode
        self.v, self.s = self.batch.vectors, self.batch.scalars
        self.v[:] = OLD
        self.s[EXEC : EXEC + 2] = 0xFFFFFFFF
        self.shape = wavefronts, lanes
        self.memory = Memory(1 << 20, 1 << 24)
        workgroups = int(self.batch.workgroup[-1]) + 1
        self.access = Access(self.memory, lds_bytes, workgroups, scratch_bytes, self.shape)
        self._forget()

    # Vector registers

    def put(self, number: int, values: Any, half: int = 0) -> None:
        """Set registers: values of 16 bits go to one half, wider ones to as many as they need. int64 is taken for 32
        bits."""
        values = np.asarray(values)
        if values.dtype in (np.int64, bool):
            values = values.astype(np.uint32)
        if values.ndim == 0:
            values = np.full(self.v[0].size, values)
        if values.dtype.itemsize == 2 and values.ndim == 1:
            self.v[number].view(np.uint16)[:, half::2] = values.view(np.uint16).reshape(self.shape)
            return
        words = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1).view(np.uint32)
        for i, word in enumerate(words.T):
            self.v[number + i] = word.reshape(self.shape)

    def fill(self, registers: Mapping[Place, Any]) -> Machine:
        for place, values in registers.items():
            number, half = place if isinstance(place, tuple) else (place, 0)
            self.put(number, values, half)
        return self

    def get(self, number: int, dtype: npt.DTypeLike = np.uint32, half: int = 0, count: int = 1) -> np.ndarray:
        """Return `count` values of each lane, or one."""
        dtype = np.dtype(dtype)
        if count * dtype.itemsize == 2:
            return np.ascontiguousarray(self.v[number].view(np.uint16)[:, half::2]).view(dtype).ravel()
        words = self.v[number : number + -(-count * dtype.itemsize // 4)].reshape(-1, self.v[0].size)
        values = np.ascontiguousarray(words.T).view(dtype)
        return values[:, 0] if count == 1 else values[:, :count]

    def expect(self, wanted: Mapping[Place, Any], masks: Mapping[int, Any] | None = None) -> None:
        """Assert the values of registers (as 32 bits if their dtype is int64) and the lanes of masks."""
        for place, want in wanted.items():
            number, half = place if isinstance(place, tuple) else (place, 0)
            want = np.asarray(want)
            want = want.astype(np.uint32) if want.dtype in (np.int64, bool) else want
            got = self.get(number, want.dtype, half, want.shape[1] if want.ndim == 2 else 1)
            assert_same(got, np.broadcast_to(want, got.shape), f"v{number}")
        for register, lanes in (masks or {}).items():
            np.testing.assert_array_equal(self.lanes(register), lanes, f"s{register}")

    # Scalar registers

    @property
    def scc(self) -> np.ndarray:
        return self.batch.scc

    def pair(self, register: int) -> np.ndarray:
        return self.s[register].astype(np.uint64) | self.s[register + 1].astype(np.uint64) << np.uint64(32)

    def set_pair(self, register: int, value: Any) -> None:
        value = np.asarray(value, np.uint64)
        self.s[register], self.s[register + 1] = value & np.uint64(0xFFFFFFFF), value >> np.uint64(32)
        self._forget()

    def mask(self, register: int) -> str:
        """Return the assembly syntax of the register with a mask of lanes."""
        wide = self.arch.lanes == 64
        names = {106: ("vcc_lo", "vcc"), EXEC: ("exec_lo", "exec")}
        return names.get(register, (block(register, 1, "s"), block(register, 2, "s")))[wide]

    def lanes(self, register: int) -> np.ndarray:
        """Return the bits of a mask, one per lane."""
        bits = np.arange(self.arch.lanes, dtype=np.uint64)
        return (self.pair(register)[:, None] >> bits & np.uint64(1)).astype(bool).ravel()

    def set_lanes(self, register: int, lanes: Any) -> None:
        """Write a mask of lanes; of 32 lanes it is one register, and the next one stays."""
        words = np.packbits(np.reshape(lanes, self.shape), axis=1, bitorder="little").view(np.uint32)
        for i, word in enumerate(words.T):
            self.s[register + i] = word
        self._forget()

    def activate(self, lanes: Any) -> np.ndarray:
        self.set_lanes(EXEC, lanes)
        return np.asarray(lanes)

    # Memory

    def allocate(self, content: np.ndarray) -> int:
        address = self.memory.allocate(content.nbytes)
        self.memory.bytes_at(address, content.nbytes)[:] = np.ascontiguousarray(content).view(np.uint8).ravel()
        return address

    def read(self, address: int, like: np.ndarray) -> np.ndarray:
        return self.memory.bytes_at(address, like.nbytes).copy().view(like.dtype).reshape(like.shape)

    def hold(self, nbytes: int = 4096) -> tuple[np.ndarray, int]:
        """Put random bytes in memory, and their address in s[4:5]."""
        content = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
        address = self.allocate(content)
        self.set_pair(4, address)
        return content, address

    def describe(self, address: int, records: int, stride: int = 0) -> None:
        """Put a buffer's resource in s[8:11]; RDNA's bit 24 is reserved to 1, and its OOB_SELECT is raw."""
        self.s[8], self.s[9] = address & 0xFFFFFFFF, address >> 32 | stride << 16
        self.s[10], self.s[11] = records, 0x31027000 if is_rdna(self.arch.name) else 0x27000

    def lds(self, workgroup: int = 0) -> np.ndarray:
        return self.access.lds[workgroup * self.access.lds_stride :][: self.access.lds_stride]

    # Execution

    def execute(self, *lines: str) -> Machine:
        """Run straight-line code."""
        code = assemble("\n".join((*lines, "s_endpgm")), self.name)
        program = Program("test", self.arch, 1 << 16, decode(code, self.arch), self.layout)
        self._forget()
        with np.errstate(all="ignore"):
            for _, step in program.run_at(0).steps:
                step(self.waves)
        return self

    def portable(self, *lines: str) -> Machine:
        """Run memory instructions named as on gfx942, whatever the arch."""
        return self.execute(*(translated(line, self.name) for line in lines))

    def _forget(self) -> None:
        self.waves = Wavefronts(self.batch, 0, len(self.batch.slot), 0, 0, self.access)
