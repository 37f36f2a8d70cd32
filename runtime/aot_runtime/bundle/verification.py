"""Whether a bundle is whole: its index, its files, and that its code objects are what the index says of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from aot_runtime.contract.records import CODE_FOLDER, POINTER, SELFTEST_FOLDER, Index, Variant
from aot_runtime.contract.validate import expression_faults
from aot_runtime.errors import BundleError

from .codeobject import CodeObject, KernelMetadata, read_code_object
from .reading import read_blob, read_index
from .vectors import read_vectors


def verify_bundle(folder: Path) -> list[str]:
    """Every fault of a bundle, a line each; empty if it is whole. Nothing is loaded onto a device or executed."""
    try:
        index = read_index(folder)
    except BundleError as error:
        return [str(error)]
    return [
        *_contracts(index), *_code(folder, index), *_vectors(folder, index), *_stray_files(folder, index),
        *_texts(folder, index),
    ]  # fmt: skip


def _contracts(index: Index) -> Iterator[str]:
    """What a reader leaves until an op is first called: its expressions."""
    for op in index.ops:
        variants = [variant for variant in index.variants if variant.op == op.name]
        if not variants:
            yield f"op '{op.name}' has no variants"
        yield from (f"op '{op.name}': {fault}" for fault in expression_faults(op, variants))


def _code(folder: Path, index: Index) -> Iterator[str]:
    """Each code object on its own, and each variant against the code object that it points at."""
    for key, blob in index.blobs.items():
        users = [variant for variant in index.variants if variant.code == key]
        if not users:
            yield f"{blob.file} is used by no variant"
        if not blob.sha256.startswith(Path(blob.file).stem):
            yield f"{blob.file} is not named by its sha256, {blob.sha256[:16]}…"
        try:
            code = read_code_object(read_blob(folder, blob, index.target.arch))
        except BundleError as error:
            yield str(error)
            continue
        for variant in users:
            yield from (f"{blob.file}: {label(variant)}: {fault}" for fault in _variant(variant, code))


def label(variant: Variant) -> str:
    """A variant's name in messages."""
    point = ", ".join(f"{name}={value}" for name, value in variant.point.items())
    return f"{variant.op}[{point}] {'aligned' if variant.aligned else 'general'} config {variant.config}"


def _variant(variant: Variant, code: CodeObject) -> Iterator[str]:
    try:
        kernel = code.kernel(variant.symbol)
    except BundleError as error:
        yield str(error)
        return
    yield from _kernargs(variant, kernel)
    used = variant.resources
    for what, said, found in (
        ("threads of a workgroup", variant.num_warps * variant.warp_size, kernel.max_workgroup_size),
        ("kernarg bytes", variant.kernarg_bytes, kernel.kernarg_bytes),
        ("lanes of a wave", variant.warp_size, kernel.warp_size),
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


def _kernargs(variant: Variant, kernel: KernelMetadata) -> Iterator[str]:
    """Hidden arguments, which the runtime does not pass, may not be there either."""
    found = {arg.offset: (arg.size, arg.kind) for arg in kernel.args}
    for arg in variant.kernargs:
        said = (arg.size, "pointer" if arg.type.startswith(POINTER) else "value")
        actual = found.pop(arg.offset, None)
        if actual is None:
            yield f"kernarg '{arg.name}' at offset {arg.offset} is not in the code object"
        elif actual != said:
            found_there = f"in the code object a {_kind(actual)}"
            yield f"kernarg '{arg.name}' at offset {arg.offset} is a {_kind(said)}, {found_there}"
    for offset, actual in sorted(found.items()):
        yield f"the code object has a {_kind(actual)} at offset {offset}, which the index does not pass"


def _kind(size_and_kind: tuple[int, str]) -> str:
    size, kind = size_and_kind
    return f"{kind} of {size} bytes"


def _vectors(folder: Path, index: Index) -> Iterator[str]:
    """The golden vectors of each case against the op's contract."""
    ops = {op.name: op for op in index.ops}
    for case in index.selftest:
        try:
            read_vectors(folder, ops[case.op], case)
        except BundleError as error:
            yield str(error)


def _stray_files(folder: Path, index: Index) -> Iterator[str]:
    known = {blob.file for blob in index.blobs.values()} | {case.vectors.file for case in index.selftest}
    for name in (CODE_FOLDER, SELFTEST_FOLDER):
        for path in sorted((folder / name).glob("*")):
            if f"{name}/{path.name}" not in known:
                yield f"{name}/{path.name} is not in the index"


def _texts(folder: Path, index: Index) -> Iterator[str]:
    """The C header and the stub, which repeat the id of the bundle that they were made with."""
    for file in (f"include/{index.name}.h", f"stubs/{index.name}.pyi"):
        try:
            text = (folder / file).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            yield f"{file} cannot be read: {error.strerror}"
            continue
        if index.id not in text:
            yield f"{file} belongs to another bundle: id {index.id[:12]} is not in it"
