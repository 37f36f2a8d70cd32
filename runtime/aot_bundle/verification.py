"""Verify a bundle: its index, its files, and the agreement of its code objects with the index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

from aot_runtime.bundle.codeobject import CodeObject, read_code_object
from aot_runtime.bundle.files import named, source_of, unreadable
from aot_runtime.bundle.multi_archive import MultiArchive, part_name
from aot_runtime.bundle.reading import read_blob, read_index
from aot_runtime.bundle.source import Place, Source
from aot_runtime.bundle.vector_files import read_vectors
from aot_runtime.contract.records import INDEX, SELFTEST_FOLDER, SIGNATURES, Index, Variant
from aot_runtime.contract.validate import expression_faults
from aot_runtime.errors import BundleError
from aot_runtime.formats import cut
from aot_runtime.texts import shown

from .coverage import MAX_DETACHED_BYTES, MAX_TEXT_BYTES, detached_files, generated_files, listed_files, stray_files
from .signature import signature_faults

MAX_FAULTS = 100
"""Most faults to report."""


def verify_bundle(place: Place) -> list[str]:
    """Return the faults of a bundle, one line each; empty if it is intact. Nothing is loaded on a device."""
    try:
        source = source_of(place)
        index = read_index(source)
    except BundleError as error:
        return [str(error)]
    faults = chain(
        _contracts(index), _code(source, index), _vectors(source, index), _strays(source, index),
        _texts(source, index), _detached(source), _permissions(source, index),
    )  # fmt: skip
    told = list(islice(faults, MAX_FAULTS))
    return [*told, *(["more faults are not listed"] if next(faults, None) else [])]


def verify_together(multi: MultiArchive) -> list[str]:
    """Return faults of a file for several architectures, beyond those of its bundles."""
    return list(chain(_checksums(multi), _of_one_bundle(multi)))


def _checksums(multi: MultiArchive) -> Iterator[str]:
    for name in (*map(part_name, multi.archs), *multi.shared()):
        try:
            for _ in multi.archive.content(name).chunks():
                pass
        except BundleError as error:
            yield str(error)


def _of_one_bundle(multi: MultiArchive) -> Iterator[str]:
    """Yield faults if parts are not of one bundle, or shared files are duplicated or not shared."""
    indexes: dict[str, Index] = {}
    for arch in multi.archs:
        try:
            part = multi.part(arch)
            indexes[arch] = read_index(part)
        except BundleError:
            return  # reported as the bundle's own fault
        yield from (
            f"{part.path}: {name} is there twice" for name in part.names(SELFTEST_FOLDER) if name in multi.shared()
        )
    if fault := mixture(indexes):
        yield f"{multi.path}: {fault}"
    for name in multi.shared():
        users = [arch for arch, index in indexes.items() if name in listed_files(index)]
        if len(users) < 2:
            yield f"{multi.path}: {name} is stored for several architectures, but used by {', '.join(users) or 'none'}"


def mixture(indexes: Mapping[str, Index]) -> str:
    """Return the reason why bundles, by architecture, cannot be merged; empty if they can."""
    titles = {arch: f"{index.name} {index.version}".rstrip() for arch, index in indexes.items()}
    if len(set(titles.values())) < 2:
        return ""
    there = ", ".join(f"{title} for {arch}" for arch, title in titles.items())
    return f"the bundles differ in name or version: {there}"


def _contracts(index: Index) -> Iterator[str]:
    variants = _grouped(index.variants, lambda variant: variant.op)
    for op in index.ops:
        if op.name not in variants:
            yield f"op '{op.name}' has no variants"
        yield from (f"op '{op.name}': {fault}" for fault in expression_faults(op, variants[op.name]))


def _code(source: Source, index: Index) -> Iterator[str]:
    """Check each code object, and each variant against its code object."""
    users_of = _grouped(index.variants, lambda variant: variant.code)
    for key, blob in index.blobs.items():
        users = users_of[key]
        if not users:
            yield f"{blob.file} is used by no variant"
        try:
            code = read_code_object(read_blob(source, blob, index.target.arch))
        except BundleError as error:
            yield str(error)
            continue
        if code.undefined:
            yield f"{blob.file} uses {shown(code.undefined[0])}, which nothing in it defines"
        for variant in users:
            yield from (f"{blob.file}: {label(variant)}: {fault}" for fault in variant_faults(variant, code))


def _grouped(variants: Iterable[Variant], key: Callable[[Variant], str]) -> dict[str, list[Variant]]:
    groups: dict[str, list[Variant]] = defaultdict(list)
    for variant in variants:
        groups[key(variant)].append(variant)
    return groups


def label(variant: Variant) -> str:
    """Return a variant's name for messages."""
    values = ", ".join(f"{name}={value}" for name, value in variant.axis_values.items())
    return cut(f"{variant.op}[{values}] {'aligned' if variant.aligned else 'general'} config {variant.config}")


def variant_faults(variant: Variant, code: CodeObject) -> Iterator[str]:
    """Yield the differences between a variant and its kernel in the code object."""
    try:
        kernel = code.kernel(variant.symbol)
    except BundleError as error:
        yield str(error)
        return
    yield from signature_faults(
        kernel,
        variant.kernargs,
        kernarg_bytes=variant.kernarg_bytes,
        num_warps=variant.num_warps,
        warp_size=variant.warp_size,
    )
    used = variant.resources
    for what, said, found in (
        ("VGPRs", used.vgprs, kernel.vgprs),
        ("AGPRs", used.agprs, kernel.agprs),
        ("SGPRs", used.sgprs, kernel.sgprs),
        ("spilled VGPRs", used.vgpr_spills, kernel.vgpr_spills),
        ("spilled SGPRs", used.sgpr_spills, kernel.sgpr_spills),
        ("bytes of scratch", used.scratch_bytes, kernel.scratch_bytes),
        ("bytes of code", used.code_bytes, kernel.code_bytes),
    ):
        if said != found:
            yield f"the index says {said} {what}, the code object {found}"


def _vectors(source: Source, index: Index) -> Iterator[str]:
    ops = {op.name: op for op in index.ops}
    for case in index.selftest:
        try:
            read_vectors(source, ops[case.op], case)
        except BundleError as error:
            yield str(error)


def _strays(source: Source, index: Index) -> Iterator[str]:
    return (
        f"{named(name)} is not in the index, nor made from it" for name in stray_files(source, index, everywhere=False)
    )


def _texts(source: Source, index: Index) -> Iterator[str]:
    """Check that generated files, such as the C interface and the stub, have the bundle's id."""
    for file in generated_files(index):
        try:
            text = source.read(file, MAX_TEXT_BYTES)
        except OSError as error:
            yield str(unreadable("", Path(file), error))
            continue
        except BundleError as error:
            yield str(error)
            continue
        if len(text) > MAX_TEXT_BYTES:
            yield f"{file} is over {MAX_TEXT_BYTES} bytes"
        elif index.id.encode() not in text:
            yield f"{file} belongs to another bundle: id {index.id[:12]} is not in it"


def _detached(source: Source) -> Iterator[str]:
    """Check the sizes of detached files. Signatures are checked elsewhere."""
    for name in detached_files(source):
        if name in SIGNATURES:
            continue
        try:
            is_long = len(source.read(name, MAX_DETACHED_BYTES)) > MAX_DETACHED_BYTES
        except (OSError, BundleError) as error:
            yield str(unreadable("", Path(named(name)), error) if isinstance(error, OSError) else error)
            continue
        if is_long:
            yield f"{named(name)} is over {MAX_DETACHED_BYTES} bytes"


def _permissions(source: Source, index: Index) -> Iterator[str]:
    """Yield files that any user may replace after the check."""
    for name in source.writable_by_all((INDEX, *SIGNATURES, *generated_files(index), *sorted(listed_files(index)))):
        yield f"{source.path if name == '.' else name} is writable by every user: chmod o-w"
