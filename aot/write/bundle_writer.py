"""Write a bundle: its index, code objects, C interface, stub and vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from aot.c.files import c_files
from aot.compile.jobs import CompiledKernel
from aot.compile.kernargs import KernargField, kernarg_bytes, kernarg_layout
from aot.plan.bound_parameter import kernarg_values, tensor_maps
from aot.plan.bundles import PlannedBundle, PlannedVariant
from aot_bundle.stub import stub_text
from aot_runtime.bundle.reading import bundle_id
from aot_runtime.contract import records
from aot_runtime.contract.arch import ARCHITECTURES, BACKENDS
from aot_runtime.contract.index_encoding import encode_index
from aot_runtime.contract.index_file import FORMAT_VERSION, OLDEST_FORMAT
from aot_runtime.contract.occupancy import occupancy
from aot_runtime.contract.provenance import encode_provenance

from .atomic_install import install_bundle
from .provenance import make_provenance
from .vectors import CaseVectors


def make_index(
    bundle: PlannedBundle, kernels: Mapping[str, CompiledKernel], vectors: Sequence[CaseVectors]
) -> tuple[records.Index, dict[str, bytes]]:
    """Return (index, file below the bundle's folder → code object or selftest vectors)."""
    suffix = BACKENDS[bundle.target.backend].code_suffix
    blobs: dict[str, records.Blob] = {}
    files: dict[str, bytes] = {}
    variants = []
    used = [kernels[planned.key] for planned in bundle.variants]
    shared = _shared_options([_plain(kernel.options) for kernel in used])
    for planned, kernel in zip(bundle.variants, used, strict=True):
        digest = hashlib.sha256(kernel.image).hexdigest()
        name = digest[: records.HASH_LENGTH]
        file = f"{records.CODE_FOLDER}/{name}.{suffix}"
        blobs[name] = records.Blob(file, len(kernel.image), digest)
        files[file] = kernel.image
        variants.append(make_variant(planned, kernel, bundle.target.arch, name, shared))
    target = records.Target(bundle.target.arch, bundle.target.backend, bundle.target.warp_size)
    compilers = sorted({kernel.compiler for kernel in used})
    toolchain = {
        "compiler": ", ".join(compilers),
        "options": json.dumps(shared),
    }
    index = records.Index(
        FORMAT_VERSION, OLDEST_FORMAT, "0" * 64, bundle.manifest.spec.bundle, target, toolchain, bundle.ops,
        tuple(variants), dict(sorted(blobs.items())), tuple(item.case for item in vectors),
        version=bundle.manifest.spec.version or "", provenance=encode_provenance(make_provenance(bundle, compilers)),
    )  # fmt: skip
    files |= {item.case.vectors.file: item.content for item in vectors}
    return msgspec.structs.replace(index, id=bundle_id(encode_index(index))), files


def make_variant(
    planned: PlannedVariant, kernel: CompiledKernel, arch: str, code: str, shared: Mapping[str, records.Value]
) -> records.Variant:
    """Return the record of a compiled variant. It lists the options that differ from the `shared` ones."""
    spec, meta = planned.spec, kernel.metadata
    fits = occupancy(
        arch,
        vgprs=meta.allocated_vgprs,
        sgprs=meta.sgprs,
        lds_bytes=kernel.lds_bytes + meta.static_lds_bytes,
        num_warps=kernel.num_warps,
    )
    return records.Variant(
        op=spec.op,
        launch=spec.launch,
        axis_values=dict(spec.point),
        aligned=spec.aligned,
        config=spec.config,
        code=code,
        symbol=kernel.symbol,
        kernargs=make_kernargs(planned),
        kernarg_bytes=kernarg_bytes(_layout(planned)),
        lds_bytes=kernel.lds_bytes,
        num_warps=kernel.num_warps,
        warp_size=kernel.warp_size,
        resources=records.Resources(
            meta.vgprs,
            meta.agprs,
            meta.sgprs,
            meta.vgpr_spills,
            meta.sgpr_spills,
            meta.scratch_bytes,
            fits.waves_per_simd,
            fits.limit,
            meta.code_bytes,
        ),
        options={name: value for name, value in _plain(kernel.options).items() if name not in shared},
        compiler=kernel.compiler,
        global_scratch=records.Scratch(kernel.global_scratch_bytes, kernel.global_scratch_align),
        profile_scratch=records.Scratch(kernel.profile_scratch_bytes, kernel.profile_scratch_align),
        cooperative=kernel.cooperative,
        early=kernel.early or kernel.options.get("launch_pdl") is True,
    )


def make_kernargs(planned: PlannedVariant) -> tuple[records.Kernarg, ...]:
    """Return the records of a variant's kernargs, which are known before it is compiled."""
    values = {name: (type_name, value) for name, type_name, value in kernarg_values(planned.bound)}
    values |= dict.fromkeys((records.GLOBAL_SCRATCH, records.PROFILE_SCRATCH), ("*int8", ""))
    maps = tensor_maps(planned.bound)
    return tuple(
        records.Kernarg(name, values[name][0], offset, size, values[name][1], maps.get(name))
        for name, _, offset, size in _layout(planned)
    )


def _layout(planned: PlannedVariant) -> tuple[KernargField, ...]:
    return kernarg_layout(planned.job.signature, ARCHITECTURES[planned.job.arch].kernarg_start)


def _plain(options: Mapping[str, Any]) -> dict[str, records.Value]:
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in sorted(options.items())
        if value is not None
    }


def _shared_options(options: Sequence[Mapping[str, records.Value]]) -> dict[str, records.Value]:
    first, *rest = options
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in rest)}


@dataclass(frozen=True)
class WrittenBundle:
    """A written bundle: its folder, and the number of its code objects and bytes."""

    folder: Path
    code_objects: int
    size: int


def write_bundle(
    bundle: PlannedBundle, kernels: Mapping[str, CompiledKernel], vectors: Sequence[CaseVectors], output: Path
) -> WrittenBundle:
    """Write a bundle below `output`. An older one stays in place until the new one is complete.

    Args:
        kernels: key of a variant → its compiled kernel.
        vectors: vectors of the bundle's cases.

    Raises:
        OSError: the folder cannot be written.
        BundleError: a reader would refuse the new bundle.
    """
    index, files = make_index(bundle, kernels, vectors)
    files |= {
        **c_files(index),
        f"stubs/{index.name}.pyi": stub_text(index).encode(),
        records.INDEX: encode_index(index),
    }
    folder = output / bundle.folder_name
    install_bundle(folder, files)
    return WrittenBundle(folder, len(index.blobs), sum(map(len, files.values())))
