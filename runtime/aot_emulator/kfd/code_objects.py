"""Lookup of kernels by descriptor address, in code objects loaded by ROCr or as bare code.

ROCr keeps a list of loaded code objects for debuggers (`_amdgpu_r_debug`, with the layout of the C library's
`r_debug`). An entry has the load address and a URI of the image (LLVM's "User Guide for AMDGPU Backend", "Loaded Code
Object Path URI"). ROCr's few internal kernels are not part of a code object.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from aot_emulator.errors import EmulationError, MemoryAccessError
from aot_emulator.isa.archs import Arch
from aot_emulator.machine.loader import Descriptor, Kernel, Module
from aot_runtime.bundle.codeobject import read_loaded_image
from aot_runtime.bundle.elf_header import read_arch
from aot_runtime.bundle.kernel_metadata import KernelMetadata
from aot_runtime.bundle.line_table import LineTable
from aot_runtime.errors import BundleError

from .address_space import AddressSpace, Process

_DESCRIPTOR_BYTES = 64
_MOST_CODE = 1 << 16
"""Maximum number of bytes to read of code with unknown size."""
_SGPRS = 102
"""SGPRs assumed for bare code, which does not state its number: the maximum."""
_MEMORY_URI = re.compile(r"memory://\d+#offset=(0x[0-9a-f]+|\d+)&size=(0x[0-9a-f]+|\d+)")
_FILE_URI = re.compile(r"file://([^#?]+)(?:[#?]offset=(0x[0-9a-f]+|\d+)&size=(0x[0-9a-f]+|\d+))?")


class BareCode:
    """Code with a kernel descriptor but no known code object. It may extend to the end of its allocation."""

    name = ""

    def __init__(self, arch: Arch, memory: AddressSpace, descriptor: int):
        self.arch, self.base, self._memory = arch, descriptor, memory
        self.lines = LineTable((), ())

    def address_of(self, symbol: str) -> int:
        return 0  # the one kernel's descriptor

    def function(self, address: int) -> bytes:
        found = self._memory.find(self.base + address)
        return self.bytes_at(address, min(found.end - self.base - address, _MOST_CODE))

    def functions(self) -> Iterator[tuple[int, bytes]]:
        return iter(())  # no other functions are known

    def bytes_at(self, address: int, size: int) -> bytes:
        return self._memory.bytes_at(self.base + address, size).tobytes()


class CodeObjects:
    """Kernels of one program on one device.

    Attributes:
        list_address: address of ROCr's list of code objects; 0 before it exists.
    """

    def __init__(self, arch: Arch, memory: AddressSpace, process: Process):
        self._arch, self._memory, self._process = arch, memory, process
        self.list_address = 0
        self._kernels: dict[int, Kernel] = {}
        self._modules: dict[tuple[int, str], Module | None] = {}

    def forget(self, va: int, nbytes: int) -> None:
        """Drop cached kernels and code objects in an address range."""
        for address in [address for address in self._kernels if va <= address < va + nbytes]:
            del self._kernels[address]
        self._modules = {key: module for key, module in self._modules.items() if not va <= key[0] < va + nbytes}

    def kernel(self, descriptor: int) -> Kernel:
        """Return the kernel with the descriptor at an address. Raises `EmulationError`."""
        if descriptor not in self._kernels:
            try:
                self._kernels[descriptor] = self._listed(descriptor) or self._bare(descriptor)
            except BundleError as error:
                raise EmulationError(f"the kernel at {descriptor:#x}: {error}") from None
        return self._kernels[descriptor]

    def _listed(self, descriptor: int) -> Kernel | None:
        allocation = self._memory.find(descriptor, _DESCRIPTOR_BYTES)
        for base, uri in self._loaded():
            if allocation.base <= base <= descriptor:
                key = base, uri
                if key not in self._modules:
                    self._modules[key] = self._module(base, uri)
                module = self._modules[key]
                kernel = module and module.kernel_at(descriptor)
                if kernel:
                    return kernel
        return None

    def _loaded(self) -> Iterator[tuple[int, str]]:
        if not self.list_address:
            return
        entry = struct.unpack("<Q", self._process.read(self.list_address + 8, 8))[0]
        while entry:
            base, uri, _, entry = struct.unpack("<4Q", self._process.read(entry, 32))
            yield base, self._process.text(uri)

    def _module(self, base: int, uri: str) -> Module | None:
        """Return a loaded code object, or None if its image is unavailable or for another architecture."""
        try:
            image = self._image(uri)
            if image is None or read_arch(image) != self._arch.name:
                return None
            size = read_loaded_image(image).size
            self._memory.find(base, max(size, 1))
            return Module(image, self._arch, self._memory, base)
        except (OSError, BundleError, MemoryAccessError):
            return None

    def _image(self, uri: str) -> bytes | None:
        if found := _MEMORY_URI.fullmatch(uri):
            return self._process.read(int(found[1], 0), int(found[2], 0))
        if found := _FILE_URI.fullmatch(uri):
            content = Path(found[1]).read_bytes()
            return content[int(found[2], 0) :][: int(found[3], 0)] if found[2] else content
        return None

    def _bare(self, descriptor: int) -> Kernel:
        code = BareCode(self._arch, self._memory, descriptor)
        raw = code.bytes_at(0, _DESCRIPTOR_BYTES)
        found = Descriptor(raw, self._arch.isa)
        kernarg_bytes = struct.unpack_from("<I", raw, 8)[0]
        metadata = KernelMetadata(
            symbol=f"kernel_at_{descriptor:#x}", args=(), kernarg_bytes=kernarg_bytes, max_workgroup_size=1024,
            warp_size=found.lanes, vgprs=found.vector_registers, agprs=0, sgprs=_SGPRS,
            allocated_vgprs=found.vector_registers, vgpr_spills=None, sgpr_spills=None, scratch_bytes=0,
            static_lds_bytes=0, code_bytes=0,
        )  # fmt: skip
        return Kernel(metadata, code)
