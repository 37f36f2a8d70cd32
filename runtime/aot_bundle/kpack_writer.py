"""Write the code objects of a bundle to a kpack archive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.reading import read_blob, read_index
from aot_runtime.bundle.zstd import compress
from aot_runtime.contract.arch import HIP
from aot_runtime.contract.variant_names import variant_names
from aot_runtime.errors import BundleError

from .kpack import ALIGNMENT, HEADER, MAGIC, MAX_OBJECTS, MAX_TOC_BYTES, PLAIN, UINT32, VERSION, ZSTD
from .packing import write_aside
from .verification import verify_bundle


def write_kpack(bundle: Path, output: Path, is_compressed: bool) -> int:
    """Write the code objects of a bundle to a kpack archive, replacing an older one. Returns its size.

    Each code object is listed under the names of its variants in the C interface, with launch parameters as metadata.

    Raises:
        BundleError: the bundle has faults, it is not for an AMD GPU, or a library is missing.
        OSError: the archive cannot be written.
    """
    source = source_of(bundle)
    index = read_index(source)
    if index.target.backend != HIP.name:
        raise BundleError(f"{bundle} is for {index.target.arch}; a kpack archive is for AMD GPUs")
    if faults := verify_bundle(source):
        raise BundleError(f"cannot write {bundle} as kpack: {'; '.join(faults)}")
    code = {key: read_blob(source, blob, index.target.arch) for key, blob in index.blobs.items()}
    kernels = []
    for name, variant in zip(variant_names(index), index.variants, strict=True):
        metadata = {
            "symbol": variant.symbol, "sha256": index.blobs[variant.code].sha256, "op": variant.op,
            "threads": variant.num_warps * variant.warp_size, "lds_bytes": variant.lds_bytes,
            "kernarg_bytes": variant.kernarg_bytes,
        }  # fmt: skip
        kernels.append(Kernel(name, code[variant.code], metadata))
    return write_aside(output, kpack_parts(index.name, index.target.arch, kernels, is_compressed))


@dataclass(frozen=True)
class Kernel:
    """A named kernel to write."""

    name: str
    code: bytes
    metadata: dict[str, Any]


def kpack_parts(group: str, arch: str, kernels: Iterable[Kernel], is_compressed: bool) -> list[bytes]:
    """Return the bytes of an archive for one architecture, in parts. Shared code objects are stored once.

    Args:
        group: AMD's group name, the software that the kernels belong to.
        is_compressed: True to store the code objects as zstd frames.

    Raises `BundleError` if a limit is exceeded or the library is missing.
    """
    ordinals: dict[bytes, int] = {}
    toc = {
        kernel.name: {
            arch: {
                "type": "hsaco",
                "ordinal": ordinals.setdefault(kernel.code, len(ordinals)),
                "original_size": len(kernel.code),
                "metadata": kernel.metadata,
            }
        }
        for kernel in kernels
    }
    before = HEADER.size + -HEADER.size % ALIGNMENT
    stored, places = _stored(list(ordinals), before, is_compressed)
    end = before + sum(map(len, stored))
    contents = msgspec.msgpack.encode({
        "format_version": VERSION, "group_name": group, "gfx_arch_family": arch, "gfx_arches": [arch],
        "compression_scheme": ZSTD if is_compressed else PLAIN, **places, "toc": toc,
    })  # fmt: skip
    if len(contents) > MAX_TOC_BYTES or max(len(ordinals), len(toc)) > MAX_OBJECTS:
        raise BundleError(f"a kpack archive has at most {MAX_OBJECTS} kernels here, and {MAX_TOC_BYTES} bytes of table")
    return [HEADER.pack(MAGIC, VERSION, end).ljust(before, b"\0"), *stored, contents]


def _stored(objects: Sequence[bytes], start: int, is_compressed: bool) -> tuple[list[bytes], dict[str, Any]]:
    """Return (bytes between header and table of contents, fields of the table that locate them)."""
    if is_compressed:
        frames = [compress(code) for code in objects]
        run = [UINT32.pack(len(frames)), *(part for frame in frames for part in (UINT32.pack(len(frame)), frame))]
        return run, {"zstd_offset": start, "zstd_size": sum(map(len, run))}
    places = []
    for code in objects:
        places.append({"offset": start, "size": len(code)})
        start += len(code)
    return list(objects), {"blobs": places}
