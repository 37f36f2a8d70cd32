"""From an HSACO to kernels that can be launched: ELF, kernel descriptor, kernarg segment, initial registers.

The descriptor and the initial state are those of LLVM's "User Guide for AMDGPU Backend" (code object version 5).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

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
from aot_runtime.errors import BundleError, EmulationError

from .program import Program

if TYPE_CHECKING:
    from .launch_records import Launch

_PRELOAD_ENTRY = 256
"""Where hardware that preloads kernel arguments starts: it leaves out what loads them."""
_NAME_LENGTH = 16
_WAVEFRONTS_OF_32 = 1 << 10
"""Bit of a descriptor's properties."""
_CALLS = ("s_swappc_b64", "s_setpc_b64", "s_call_b64")
"""Instructions by which a kernel may reach other functions of its code object."""


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
        """Lanes of a wavefront: a choice of RDNA's kernels."""
        return 32 if self.isa != "cdna" and self.properties & _WAVEFRONTS_OF_32 else 64

    @property
    def vector_registers(self) -> int:
        granule = 4 if self.isa != "cdna" and self.lanes == 64 else 8
        return ((self._word(48) & 0x3F) + 1) * granule

    @property
    def first_accumulation(self) -> int:
        """How many of the vector registers are ordinary ones."""
        return ((self._word(44) & 0x3F) + 1) * 4 if self.isa == "cdna" else self.vector_registers

    @property
    def mode(self) -> int:
        """The MODE register at the start: rounding and denormals, DX10_CLAMP, IEEE, FP16_OVFL."""
        first = self._word(48)
        if self.isa == "rdna4":
            # It has neither bit: clamping gives 0 for NaN, and no instruction of it heeds IEEE.
            first |= 1 << 21 | 1 << 23
        return first >> 12 & 0xFF | (first >> 21 & 1) << 8 | (first >> 23 & 1) << 9 | (first >> 26 & 1) << 23

    @property
    def workgroup_ids(self) -> tuple[bool, bool, bool]:
        """Which of the workgroup's coordinates are put in SGPRs."""
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
        """(first, number) of the kernarg segment's dwords that are put in SGPRs."""
        raw = int(struct.unpack_from("<H", self.raw, 58)[0])
        return raw >> 7, raw & 0x7F


# (bit of the properties, SGPRs) of what user SGPRs may start with, in order.
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
    """Code in device memory that a kernel is part of: a `Module`, or what is known without a code object."""

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
    """A code object in device memory. Raises `BundleError` when it is not a sound one for `arch`.

    base: where a loader has put it already; None: it is put into memory.

    Attributes:
        name: as bundles name code objects, by their content.
        base: where it lies.
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
        """A kernel by name. Raises `BundleError`."""
        return Kernel(self._parsed.kernel(symbol), self)

    def kernel_at(self, descriptor: int) -> Kernel | None:
        """The kernel whose descriptor is at an address of device memory, or None. Raises `BundleError`."""
        symbol = self._descriptors.get(descriptor - self.base)
        return None if symbol is None else self.kernel(symbol)

    @cached_property
    def _descriptors(self) -> dict[int, str]:
        """Kernels by the addresses of their descriptors, from the start of the module."""
        return {self.address_of(f"{kernel.symbol}.kd"): kernel.symbol for kernel in self._parsed.kernels}

    def address_of(self, symbol: str) -> int:
        """Address of a symbol, from the start of the module."""
        return self._image.symbols[symbol][0]

    @cached_property
    def lines(self) -> LineTable:
        """Where in source files the code comes from, by address from the start of the module."""
        return read_line_table(self._file)

    def function(self, address: int) -> bytes:
        """The machine code of a kernel whose first instruction lies at an address from the start of the module.

        Where its symbol has no size, as those of assembly may not have one, it goes on to the next kernel's. Raises
        `BundleError`.
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
        """(address from the start of the module, machine code) of each function that has a size."""
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
        """Bytes from the start of the module. Raises `BundleError`."""
        if not 0 <= address <= self._image.size - size:
            raise BundleError(f"the code object has no {size} bytes at {address:#x}")
        return self._memory.bytes_at(self.base + address, size).tobytes()


class Kernel:
    """A kernel of a module: what a launch needs to know, and its program."""

    def __init__(self, metadata: KernelMetadata, module: Code):
        self.metadata, self.module = metadata, module
        self.symbol = metadata.symbol
        self._descriptor_address = module.address_of(f"{self.symbol}.kd")
        self.descriptor = Descriptor(module.bytes_at(self._descriptor_address, 64), module.arch.isa)
        if metadata.warp_size != self.descriptor.lanes:
            raise BundleError(
                f"kernel {self.symbol} has wavefronts of {metadata.warp_size} by its metadata, of "
                f"{self.descriptor.lanes} by its descriptor"
            )
        self.arch = module.arch.with_lanes(self.descriptor.lanes)
        known = sum(words for bit, words in _USER_SGPRS.values() if self.descriptor.properties >> bit & 1)
        if known + self.descriptor.preload[1] > self.descriptor.user_sgprs:
            raise BundleError(f"kernel {self.symbol} has {self.descriptor.user_sgprs} user SGPRs for more values")

    @property
    def _code_address(self) -> int:
        return self._descriptor_address + self.descriptor.entry

    def source(self, pc: int) -> str:
        """`file:line` that the instruction at a pc was made of; empty where the code object does not say."""
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
        """The pc that a wavefront starts at."""
        return _PRELOAD_ENTRY if preload and self.descriptor.preload[1] else 0

    def kernarg_segment(self, given: bytes, grid: tuple[int, int, int], block: int, lds_bytes: int) -> bytes:
        """The kernarg segment: the explicit arguments as given, the hidden ones from the launch.

        Raises `EmulationError` when the size is not the kernel's.
        """
        explicit = [arg for arg in self.metadata.args if not arg.kind.startswith("hidden_")]
        needed = max((arg.offset + arg.size for arg in explicit), default=0)
        if not needed <= len(given) <= max(needed, self.metadata.kernarg_bytes):
            raise EmulationError(
                f"kernel {self.symbol} has {needed} to {self.metadata.kernarg_bytes} bytes of arguments, "
                f"{len(given)} were given"
            )
        segment = bytearray(max(needed, self.metadata.kernarg_bytes, 1))
        segment[: len(given)] = given
        hidden = _hidden_arguments(grid, block, lds_bytes)
        for arg in self.metadata.args:
            if arg.kind.startswith("hidden_"):
                # What there is no runtime for (the heap, queues) is null.
                value = hidden.get(arg.kind, 0) % (1 << 8 * arg.size)
                segment[arg.offset : arg.offset + arg.size] = value.to_bytes(arg.size, "little")
        return bytes(segment)

    def start(
        self, batch: Batch, workgroups: Array, launch: Launch, kernarg: int, segment: bytes, preload: bool
    ) -> None:
        """Set the registers that a launch sets.

        Args:
            batch: what to set them in.
            workgroups: int64 [wavefronts, 3], coordinates of each wavefront's workgroup.
            launch: the launch; all its workgroups are of one size.
            kernarg, segment: address and content of the kernarg segment.
            preload: put kernel arguments in SGPRs, if the kernel asks for it.
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
            # Without a packet, what the others point to does not exist. Triton has kernels with asynchronous copies
            # ask for them, and does not use them; as the registers are, they point to no allocation.
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
            # Where the wavefront's scratch is in that of all: the resource is each one's own.
            batch.scalars[descriptor.user_sgprs + sum(descriptor.workgroup_ids) + descriptor.workgroup_info] = 0
        _start_lanes(batch, launch)


def _start_trap_registers(batch: Batch, workgroups: Array, wavefronts: int) -> None:
    """gfx12: the workgroup's x in TTMP9, y and z in TTMP7's halves; the wavefront's number in TTMP8, bits 29:25."""
    batch.scalars[TTMP0 + 9] = workgroups[:, 0]
    batch.scalars[TTMP0 + 7] = workgroups[:, 1] | workgroups[:, 2] << 16
    batch.scalars[TTMP0 + 8] = batch.slot % wavefronts << 25


def _start_lanes(batch: Batch, launch: Launch) -> None:
    """Numbers of work-items in v0, x in bits 9:0, y and z in the ten bits above each; EXEC has those that exist."""
    item = (batch.slot % launch.wavefronts)[:, None] * batch.lanes + np.arange(batch.lanes)
    x, y, _ = launch.shape
    batch.vectors[0] = item % x | item // x % y << 10 | item // (x * y) << 20
    batch.scalars[EXEC], batch.scalars[EXEC + 1] = words_of(item < launch.block)


def _hidden_arguments(grid: tuple[int, int, int], block: int, lds_bytes: int) -> dict[str, int]:
    sizes = (block, 1, 1)
    found = {
        "hidden_grid_dims": 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1,
        "hidden_dynamic_lds_size": lds_bytes,
        "hidden_hostcall_buffer": HOSTCALL_BUFFER,  # many kernels take it; those that print or assert reach for it
    }
    for axis, name in enumerate("xyz"):
        found[f"hidden_block_count_{name}"] = grid[axis]
        found[f"hidden_group_size_{name}"] = sizes[axis]
    return found


__all__ = ["Code", "Descriptor", "Kernel", "Module"]
