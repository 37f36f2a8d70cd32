"""HSACO loader: ELF image, kernel descriptor, kernarg segment, and initial register state.

The descriptor and the initial state follow LLVM's "User Guide for AMDGPU Backend" (code object version 5).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from aot_emulator.errors import EmulationError
from aot_emulator.isa.archs import Arch, Isa
from aot_emulator.isa.decoding import decode
from aot_emulator.isa.memory.buffer import scratch_resource
from aot_emulator.isa.operands import Registers
from aot_emulator.state.arrays import Array, words_of
from aot_emulator.state.device_memory import HOSTCALL_BUFFER, Memory
from aot_emulator.state.wavefronts import EXEC, TTMP0, Batch
from aot_runtime.bundle.codeobject import KernelMetadata, read_code_object, read_loaded_image
from aot_runtime.bundle.elf import Segment
from aot_runtime.bundle.line_table import LineTable, read_line_table
from aot_runtime.errors import BundleError

from .program import Program

if TYPE_CHECKING:
    from .launch_records import Launch

_PRELOAD_ENTRY = 256
"""Entry offset for hardware that preloads kernel arguments: it skips the instructions that load them."""
_NAME_LENGTH = 16
_WAVEFRONTS_OF_32 = 1 << 10
"""Bit of the kernel code properties that selects wave32."""
_CALLS = ("s_swappc_b64", "s_setpc_b64", "s_call_b64")
"""Instructions through which a kernel may call other functions of its code object."""


@dataclass(frozen=True)
class Descriptor:
    """The 64-byte kernel descriptor."""

    raw: bytes
    isa: Isa

    def _word(self, offset: int) -> int:
        return int(struct.unpack_from("<I", self.raw, offset)[0])

    @property
    def entry(self) -> int:
        """Bytes from the descriptor to the first instruction."""
        return int(struct.unpack_from("<q", self.raw, 16)[0])

    @property
    def lanes(self) -> Literal[32, 64]:
        """Lanes per wavefront; RDNA kernels choose 32 or 64."""
        return 32 if self.isa != "cdna" and self.properties & _WAVEFRONTS_OF_32 else 64

    @property
    def vector_registers(self) -> int:
        granule = 4 if self.isa != "cdna" and self.lanes == 64 else 8
        return ((self._word(48) & 0x3F) + 1) * granule

    @property
    def first_accumulation(self) -> int:
        """Number of architectural VGPRs; accumulation registers follow them."""
        return ((self._word(44) & 0x3F) + 1) * 4 if self.isa == "cdna" else self.vector_registers

    @property
    def mode(self) -> int:
        """Initial MODE register: rounding and denormals, DX10_CLAMP, IEEE, FP16_OVFL."""
        first = self._word(48)
        if self.isa == "rdna4":
            # gfx12 has neither bit: clamping turns NaN into 0, and no instruction depends on IEEE mode.
            first |= 1 << 21 | 1 << 23
        return first >> 12 & 0xFF | (first >> 21 & 1) << 8 | (first >> 23 & 1) << 9 | (first >> 26 & 1) << 23

    @property
    def workgroup_ids(self) -> tuple[bool, bool, bool]:
        """The workgroup ID components (x, y, z) that are passed in SGPRs."""
        second = self._word(52)
        return bool(second >> 7 & 1), bool(second >> 8 & 1), bool(second >> 9 & 1)

    @property
    def workgroup_info(self) -> bool:
        return bool(self._word(52) >> 10 & 1)

    @property
    def uses_scratch(self) -> bool:
        return bool(self._word(52) & 1)

    @property
    def user_sgprs(self) -> int:
        return self._word(52) >> 1 & 0x1F

    @property
    def properties(self) -> int:
        return int(struct.unpack_from("<H", self.raw, 56)[0])

    @property
    def preload(self) -> tuple[int, int]:
        """(first dword, count) of the kernarg segment to preload into SGPRs."""
        raw = int(struct.unpack_from("<H", self.raw, 58)[0])
        return raw >> 7, raw & 0x7F


# User SGPRs in order: (bit of the kernel code properties, number of SGPRs).
_USER_SGPRS = {
    "private segment buffer": (0, 4),
    "dispatch pointer": (1, 2),
    "queue pointer": (2, 2),
    "kernarg segment pointer": (3, 2),
    "dispatch id": (4, 2),
    "flat scratch": (5, 2),
    "private segment size": (6, 1),
}


class Code(Protocol):
    """Code in device memory that contains a kernel: a `Module`, or bare code without a code object."""

    arch: Arch
    name: str
    base: int

    @property
    def lines(self) -> LineTable: ...

    def address_of(self, symbol: str) -> int: ...

    def function(self, address: int) -> bytes: ...

    def functions(self) -> Iterator[tuple[int, bytes]]: ...

    def bytes_at(self, address: int, size: int) -> bytes: ...


class Module:
    """A code object in device memory.

    Args:
        base: address at which it is already loaded; None: allocate memory and load it.

    Raises:
        BundleError: the code object is invalid or for another architecture.

    Attributes:
        name: hash of the content, as bundles name code objects.
        base: load address.
    """

    def __init__(self, image: bytes, arch: Arch, memory: Memory, base: int | None = None):
        parsed = read_code_object(image)
        if parsed.arch != arch.name:
            raise BundleError(f"the code object is for {parsed.arch}, the device is {arch.name}")
        self.arch, self._parsed, self._image = arch, parsed, read_loaded_image(image)
        self.name = hashlib.sha256(image).hexdigest()[:_NAME_LENGTH]
        self._file = image
        self._memory = memory
        if base is not None:
            self.base = base
            return
        size = max(self._image.size, 1)
        self.base = memory.allocate(size)
        memory.write(self.base, size, 0)
        for segment in self._image.segments:
            content = np.frombuffer(segment.data, np.uint8)
            memory.write(self.base + segment.address, content.size, content)

    def unload(self) -> None:
        self._memory.free(self.base)

    def kernel(self, symbol: str) -> Kernel:
        """Return a kernel by name. Raises `BundleError`."""
        return Kernel(self._parsed.kernel(symbol), self)

    def kernel_at(self, descriptor: int) -> Kernel | None:
        """Return the kernel whose descriptor is at a device address, or None. Raises `BundleError`."""
        symbol = self._descriptors.get(descriptor - self.base)
        return None if symbol is None else self.kernel(symbol)

    @cached_property
    def _descriptors(self) -> dict[int, str]:
        """Kernel symbols by the offset of their descriptor in the module."""
        return {self.address_of(f"{kernel.symbol}.kd"): kernel.symbol for kernel in self._parsed.kernels}

    def address_of(self, symbol: str) -> int:
        """Return the offset of a symbol in the module."""
        return self._image.symbols[symbol][0]

    @cached_property
    def lines(self) -> LineTable:
        """Source locations by offset in the module."""
        return read_line_table(self._file)

    def function(self, address: int) -> bytes:
        """Return the machine code of the function at an offset in the module. Raises `BundleError`.

        If its symbol has no size, as in hand-written assembly, the code extends to the next kernel.
        """
        size = self._sizes.get(address)
        if size is None:
            part = next((s for s in self._executable if s.address <= address < s.address + s.size), None)
            if part is None:
                raise BundleError(f"the code object has no code at {address:#x}")
            end = part.address + part.size
            size = min((other for other in self._entries if address < other < end), default=end) - address
        return self.bytes_at(address, size)

    def functions(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset in the module, machine code) of each function whose symbol has a size."""
        for address, size in self._sizes.items():
            yield address, self.bytes_at(address, size)

    @property
    def _executable(self) -> list[Segment]:
        return [segment for segment in self._image.segments if segment.executable]

    @cached_property
    def _sizes(self) -> dict[int, int]:
        found: dict[int, int] = {}
        left = sum(segment.size for segment in self._executable)
        for address, size in set(self._image.symbols.values()):
            if size and any(s.address <= address < s.address + s.size for s in self._executable):
                left -= size
                if left < 0:
                    raise BundleError("functions of the code object overlap")
                found[address] = max(size, found.get(address, 0))
        return found

    @cached_property
    def _entries(self) -> list[int]:
        return [self.address_of(kernel.symbol) for kernel in self._parsed.kernels]

    def bytes_at(self, address: int, size: int) -> bytes:
        """Read bytes at an offset in the module. Raises `BundleError`."""
        if not 0 <= address <= self._image.size - size:
            raise BundleError(f"{size} bytes at {address:#x} are outside the code object")
        return self._memory.bytes_at(self.base + address, size).tobytes()


class Kernel:
    """A kernel of a module: its metadata, descriptor and program."""

    def __init__(self, metadata: KernelMetadata, module: Code):
        self.metadata, self.module = metadata, module
        self.symbol = metadata.symbol
        self._descriptor_address = module.address_of(f"{self.symbol}.kd")
        self.descriptor = Descriptor(module.bytes_at(self._descriptor_address, 64), module.arch.isa)
        if metadata.warp_size != self.descriptor.lanes:
            raise BundleError(
                f"kernel {self.symbol} has wavefronts of {metadata.warp_size} lanes in its metadata, but "
                f"{self.descriptor.lanes} in its descriptor"
            )
        self.arch = module.arch.with_lanes(self.descriptor.lanes)
        known = sum(words for bit, words in _USER_SGPRS.values() if self.descriptor.properties >> bit & 1)
        if known + self.descriptor.preload[1] > self.descriptor.user_sgprs:
            raise BundleError(f"kernel {self.symbol} needs more than its {self.descriptor.user_sgprs} user SGPRs")

    @property
    def _code_address(self) -> int:
        return self._descriptor_address + self.descriptor.entry

    def source(self, pc: int) -> str:
        """Return the source `file:line` of the instruction at a pc, or an empty string if it is unknown."""
        place = self.module.lines.place(self._code_address + pc)
        return f"{place[0]}:{place[1]}" if place else ""

    @cached_property
    def program(self) -> Program:
        code = self._code_address
        instructions = decode(self.module.function(code), self.arch)
        if any(instruction.mnemonic in _CALLS for instruction in instructions.values()):
            others = (decode(text, self.arch, address - code) for address, text in self.module.functions())
            for other in others:
                instructions |= other
        total = self.descriptor.vector_registers
        layout = Registers(min(self.descriptor.first_accumulation, total), total)
        return Program(self.symbol, self.arch, self.module.base + code, instructions, layout)

    def entry(self, preload: bool) -> int:
        """Return the pc at which wavefronts start."""
        return _PRELOAD_ENTRY if preload and self.descriptor.preload[1] else 0

    def kernarg_segment(self, given: bytes, grid: tuple[int, int, int], block: int, lds_bytes: int) -> bytes:
        """Build the kernarg segment from the given explicit arguments and the launch's hidden arguments.

        Raises `EmulationError` if the size of `given` does not match the kernel.
        """
        explicit = [arg for arg in self.metadata.args if not arg.kind.startswith("hidden_")]
        needed = max((arg.offset + arg.size for arg in explicit), default=0)
        if not needed <= len(given) <= max(needed, self.metadata.kernarg_bytes):
            raise EmulationError(
                f"kernel {self.symbol} takes {needed} to {self.metadata.kernarg_bytes} bytes of arguments, "
                f"got {len(given)}"
            )
        segment = bytearray(max(needed, self.metadata.kernarg_bytes, 1))
        segment[: len(given)] = given
        hidden = _hidden_arguments(grid, block, lds_bytes)
        for arg in self.metadata.args:
            if arg.kind.startswith("hidden_"):
                # Arguments that would need a runtime (heap, queues) are null.
                value = hidden.get(arg.kind, 0) % (1 << 8 * arg.size)
                segment[arg.offset : arg.offset + arg.size] = value.to_bytes(arg.size, "little")
        return bytes(segment)

    def start(
        self, batch: Batch, workgroups: Array, launch: Launch, kernarg: int, segment: bytes, preload: bool
    ) -> None:
        """Initialise the registers of a batch at the start of a launch.

        Args:
            batch: the batch to initialise.
            workgroups: int64 [wavefronts, 3], grid coordinates of each wavefront's workgroup.
            launch: the launch; all its workgroups have the same size.
            kernarg, segment: address and content of the kernarg segment.
            preload: preload kernel arguments into SGPRs if the kernel requests it.
        """
        descriptor, packet = self.descriptor, launch.packet
        pointers = {"kernarg segment pointer": kernarg}
        if packet is not None:
            pointers |= {"dispatch pointer": packet.address, "queue pointer": packet.queue, "dispatch id": packet.index}
        batch.mode[:] = descriptor.mode
        at = 0
        for name, (bit, words) in _USER_SGPRS.items():
            if not descriptor.properties >> bit & 1:
                continue
            if name in pointers:
                batch.scalars[at], batch.scalars[at + 1] = pointers[name] & 0xFFFFFFFF, pointers[name] >> 32
            elif name == "private segment size":
                batch.scalars[at] = launch.scratch_bytes
            elif name == "private segment buffer" and self.arch.scratch_resource:
                resource = scratch_resource(launch.scratch_bytes, batch.lanes)
                batch.scalars[at : at + 4] = np.array(resource, np.uint32)[:, None]
            # Without a packet, the other pointers have no target and stay invalid. Triton kernels with asynchronous
            # copies request them, but do not use them.
            at += words
        first, count = descriptor.preload
        if preload:
            dwords = np.frombuffer(segment.ljust(-(-len(segment) // 4) * 4, b"\0"), np.uint32)[first : first + count]
            batch.scalars[at : at + len(dwords)] = dwords[:, None]
        if descriptor.isa == "rdna4":
            _start_trap_registers(batch, workgroups, launch.wavefronts)
        else:
            for at, axis in enumerate(np.flatnonzero(descriptor.workgroup_ids), descriptor.user_sgprs):
                batch.scalars[at] = workgroups[:, axis]
        if self.arch.scratch_resource and descriptor.uses_scratch:
            # Offset of the wavefront's scratch: 0, as each wavefront has a resource of its own.
            batch.scalars[descriptor.user_sgprs + sum(descriptor.workgroup_ids) + descriptor.workgroup_info] = 0
        _start_lanes(batch, launch)


def _start_trap_registers(batch: Batch, workgroups: Array, wavefronts: int) -> None:
    """Pass workgroup IDs as gfx12 does: x in TTMP9, y and z in TTMP7; the wavefront number in TTMP8[29:25]."""
    batch.scalars[TTMP0 + 9] = workgroups[:, 0]
    batch.scalars[TTMP0 + 7] = workgroups[:, 1] | workgroups[:, 2] << 16
    batch.scalars[TTMP0 + 8] = batch.slot % wavefronts << 25


def _start_lanes(batch: Batch, launch: Launch) -> None:
    """Put work-item IDs in v0 (x in bits 9:0, y in 19:10, z in 29:20), and set EXEC to the existing work-items."""
    item = (batch.slot % launch.wavefronts)[:, None] * batch.lanes + np.arange(batch.lanes)
    x, y, _ = launch.shape
    batch.vectors[0] = item % x | item // x % y << 10 | item // (x * y) << 20
    batch.scalars[EXEC], batch.scalars[EXEC + 1] = words_of(item < launch.block)


def _hidden_arguments(grid: tuple[int, int, int], block: int, lds_bytes: int) -> dict[str, int]:
    sizes = (block, 1, 1)
    found = {
        "hidden_grid_dims": 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1,
        "hidden_dynamic_lds_size": lds_bytes,
        "hidden_hostcall_buffer": HOSTCALL_BUFFER,  # only kernels that print or assert access it
    }
    for axis, name in enumerate("xyz"):
        found[f"hidden_block_count_{name}"] = grid[axis]
        found[f"hidden_group_size_{name}"] = sizes[axis]
    return found


__all__ = ["Code", "Descriptor", "Kernel", "Module"]
