"""Read a code object's architecture from its ELF header, which is all that loading needs."""

from __future__ import annotations

import struct

from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.errors import BundleError

_EM_CUDA = 190
_EM_AMDGPU = 224

_AMDGPU_MACH = {row.elf_machine: name for name, row in ARCHITECTURES.items() if row.elf_machine is not None}
"""Architecture by EF_AMDGPU_MACH, the low byte of e_flags."""


def read_arch(image: bytes) -> str:
    """Return the architecture in an image's ELF header, without parsing the rest. Raises `BundleError`."""
    if len(image) < 64 or image[:6] != b"\x7fELF\x02\x01":
        raise BundleError(f"not a 64-bit little-endian ELF code object ({len(image)} bytes)")
    machine, flags = struct.unpack_from("<H", image, 18)[0], struct.unpack_from("<I", image, 48)[0]
    if machine == _EM_AMDGPU:
        if (mach := flags & 0xFF) not in _AMDGPU_MACH:
            raise BundleError(f"AMD code object of an unknown architecture: EF_AMDGPU_MACH {mach:#x}")
        return _AMDGPU_MACH[mach]
    if machine == _EM_CUDA:
        # CUDA 13 raised the ABI version from 7 to 8 and moved the SM version up by a byte.
        return f"sm_{flags >> 8 & 0xFF if image[8] >= 8 else flags & 0xFF}"
    raise BundleError(f"not a GPU code object: ELF machine {machine} is neither AMDGPU nor CUDA")
