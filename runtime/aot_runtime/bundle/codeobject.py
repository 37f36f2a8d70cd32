"""Read code objects: their architecture, and the arguments and resources of each kernel.

Two formats are supported, AMD's HSACO (`hsaco`) and NVIDIA's cubin (`cubin`), both 64-bit little-endian ELF. Images are
untrusted, so every fault raises `BundleError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Literal

from aot_runtime.errors import BundleError

from .elf_header import read_arch
from .kernel_metadata import KernelMetadata

if TYPE_CHECKING:
    from .elf import LoadedImage

_SHOWN = 10
"""Maximum number of kernels to list in a message."""


@dataclass(frozen=True)
class CodeObject:
    """A parsed image."""

    arch: str
    """Architecture without suffix, as for `--arch`; `sm_90` for an image for sm_90a."""
    format: Literal["hsaco", "cubin"]
    kernels: tuple[KernelMetadata, ...]
    undefined: tuple[str, ...] = ()
    """Undefined symbols of an HSACO, which is not linked any further. Always empty for a cubin."""

    def kernel(self, symbol: str) -> KernelMetadata:
        """Return the kernel of a symbol. Raises a `BundleError` that lists the kernels if it is missing."""
        if symbol in self._by_symbol:
            return self._by_symbol[symbol]
        present = [*islice(self._by_symbol, _SHOWN), *(["…"] if len(self._by_symbol) > _SHOWN else [])]
        raise BundleError(f"code object has no kernel {symbol!r}; it has: {', '.join(present) or 'none'}")

    @cached_property
    def _by_symbol(self) -> dict[str, KernelMetadata]:
        return {kernel.symbol: kernel for kernel in self.kernels}


def read_code_object(image: bytes) -> CodeObject:
    """Parse an HSACO or a cubin. Raises `BundleError` if it is malformed."""
    from .cubin import cubin_kernels  # not needed to read the header only
    from .elf import Elf
    from .hsaco import hsaco_kernels

    arch = read_arch(image)
    try:
        elf = Elf(image)
        if arch.startswith("gfx"):
            symbols = elf.symbols()
            kernels = _distinct(hsaco_kernels(elf, symbols, arch))
            return CodeObject(arch, "hsaco", kernels, tuple(item.name for item in symbols if item.is_undefined))
        return CodeObject(arch, "cubin", _distinct(cubin_kernels(elf)))
    except struct.error as error:
        raise BundleError(f"{arch} code object is truncated or malformed: {error}") from None


def _distinct(kernels: Iterable[KernelMetadata]) -> tuple[KernelMetadata, ...]:
    """Collect kernels, rejecting duplicate names early, since each would be parsed again."""
    found: dict[str, KernelMetadata] = {}
    for kernel in kernels:
        if kernel.symbol in found:
            raise BundleError(f"code object has kernel {kernel.symbol!r} twice")
        found[kernel.symbol] = kernel
    return tuple(found.values())


def read_loaded_image(image: bytes) -> LoadedImage:
    """Read the segments and symbols of an HSACO. Raises `BundleError` if it is malformed."""
    from .elf import Elf, LoadedImage

    read_arch(image)
    try:
        elf = Elf(image)
        return LoadedImage(
            elf.segments(), {symbol.name: (symbol.value, symbol.size) for symbol in elf.symbols() if symbol.name}
        )
    except struct.error as error:
        raise BundleError(f"code object is truncated or malformed: {error}") from None
