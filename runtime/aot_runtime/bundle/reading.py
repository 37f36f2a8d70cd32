"""Read bundles. The index is checked at once, each file when it is read."""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING

from aot_runtime.contract.arch import ARCHITECTURES, BACKENDS
from aot_runtime.contract.dtypes import SCALAR_TYPES
from aot_runtime.contract.index_file import decode_index
from aot_runtime.contract.names import IDENTIFIER, axis_names, is_version
from aot_runtime.contract.records import (
    GLOBAL_SCRATCH,
    INDEX,
    POINTER,
    PROFILE_SCRATCH,
    SELFTEST_FOLDER,
    TENSOR_MAP,
    TENSOR_MAP_BYTES,
    Blob,
    Case,
    Index,
    Kernarg,
    Op,
    Target,
    Variant,
)
from aot_runtime.contract.validate import structure_faults
from aot_runtime.errors import ArchMismatchError, BundleError
from aot_runtime.texts import shown

from .files import source_of, unreadable

if TYPE_CHECKING:
    from .source import Place, Source

_ID = re.compile(rb'"id"\s*:\s*"([0-9a-f]{64})"')
_VECTORS = re.compile(rf"{SELFTEST_FOLDER}/[0-9a-f]{{8,64}}\.npz\Z")
MAX_INDEX_BYTES = 16 << 20
MAX_CODE_BYTES = 256 << 20
"""Maximum size of a code object, in bytes."""
MAX_VECTOR_BYTES = 16 << 20
"""Maximum size of the vectors of one self-test case, in bytes."""
MAX_FILES_BYTES = 4 << 30
"""Maximum size of all code objects and self-test vectors together, in bytes, counted once per listing."""
MAX_SCRATCH_BYTES = 1 << 30
"""Maximum size of scratch memory of a kernel, in bytes, per workgroup."""


def bundle_id(index: bytes) -> str:
    """Return the id of an encoded index: the SHA-256 of its bytes, with the id itself (near the start) zeroed."""
    found = _ID.search(index, 0, 1024)
    start, end = found.span(1) if found else (0, 0)
    return hashlib.sha256(index[:start] + b"0" * (end - start) + index[end:]).hexdigest()


def read_index(place: Place) -> Index:
    """Read a bundle's index and check its format, its id, and every name, file and reference in it.

    Raises `BundleError`.
    """
    source = source_of(place)
    return decode_checked(read_index_bytes(source), source)


def read_index_bytes(place: Place) -> bytes:
    """Read the bytes of a bundle's index without checking them. Raises `BundleError`."""
    source = source_of(place)
    folder = source.path
    path = folder / INDEX
    try:
        data = source.read(INDEX, MAX_INDEX_BYTES)
    except FileNotFoundError:
        raise BundleError(f"{folder} is not a bundle: it has no {INDEX}") from None
    except NotADirectoryError:
        inside = f"; a bundle is opened by its folder, {folder.parent}" if folder.name == INDEX else ""
        raise BundleError(f"{folder} is a file, not a bundle{inside}") from None
    except OSError as error:
        raise unreadable("", path, error) from None
    if len(data) > MAX_INDEX_BYTES:
        raise BundleError(f"{path} is over {MAX_INDEX_BYTES} bytes: not a bundle index")
    return data


def decode_checked(data: bytes, source: Source) -> Index:
    """Decode the bytes of an index and check it as `read_index` does. Raises `BundleError`."""
    try:
        index = decode_index(data)
        if index.id != bundle_id(data):
            raise BundleError(f"the index says id {index.id[:12]}, but its content has {bundle_id(data)[:12]}: altered")
        _check_references(index)
        if source.arch not in (None, index.target.arch):
            raise BundleError(f"the index is for {index.target.arch}, but stored as one for {source.arch}")
    except BundleError as error:
        raise BundleError(f"{source.path / INDEX}: {error}") from None
    return index


def _check_references(index: Index) -> None:
    target = index.target
    row = ARCHITECTURES.get(target.arch)
    if row is None or (row.backend, row.warp_size) != (target.backend, target.warp_size):
        raise BundleError(
            f"no architecture is {target.arch!r} with backend {target.backend!r} and {target.warp_size} lanes a wave; "
            f"known: {', '.join(ARCHITECTURES)}"
        )
    if not IDENTIFIER.match(index.name):
        raise BundleError(f"{index.name!r} is not a valid bundle name")
    if index.version and not is_version(index.version):
        raise BundleError(f"{shown(index.version)} is not a valid bundle version")
    for key, blob in index.blobs.items():
        if not 0 <= blob.size <= MAX_CODE_BYTES:
            raise BundleError(f"code object {key!r} has {blob.size} bytes; 0 to {MAX_CODE_BYTES} are allowed")
    total = sum(blob.size for blob in (*index.blobs.values(), *(case.vectors for case in index.selftest)))
    if total > MAX_FILES_BYTES:
        raise BundleError(f"its code objects and vectors have {total} bytes together; {MAX_FILES_BYTES} are allowed")
    ops: dict[str, Op] = {op.name: op for op in index.ops}
    if len(ops) != len(index.ops):
        raise BundleError("an op is listed twice")
    for contract in index.ops:
        for fault in structure_faults(contract):
            raise BundleError(f"op {contract.name!r}: {fault}")
    axes = {op.name: frozenset(axis_names(op)) for op in index.ops}
    pointees = {op.name: {t.name for t in op.tensors} | {space.name for space in op.workspace} for op in index.ops}
    sound: set[tuple[str, int, bool]] = set()
    for variant in index.variants:
        op = ops[variant.op]
        if not 0 <= variant.launch < len(op.launches):
            raise BundleError(f"a variant of op {variant.op!r} is of a launch that does not exist")
        configs = op.launches[variant.launch].configs
        if variant.axis_values.keys() != axes[op.name] or not 0 <= variant.config < len(configs):
            raise BundleError(f"a variant of op {variant.op!r} is not on the op's axes")
        layout = (op.name, id(variant.kernargs), variant.aligned)  # variants share kernargs
        if layout not in sound:
            _check_layout(variant, pointees[op.name])
            _check_maps(variant, op, target)
            sound.add(layout)
        _check_variant(variant)
    for case in index.selftest:
        _check_case(ops, case)
    if len({(case.op, case.name) for case in index.selftest}) != len(index.selftest):
        raise BundleError("a selftest case is listed twice")


def _check_layout(variant: Variant, pointees: set[str]) -> None:
    end = 0
    for arg in variant.kernargs:
        _check_kernarg(variant, arg, pointees)
        if arg.offset < end:
            raise BundleError(f"kernarg {arg.name!r} of {variant.symbol!r} overlaps another")
        end = arg.offset + arg.size


def _check_variant(variant: Variant) -> None:
    last = variant.kernargs[-1] if variant.kernargs else None
    end = last.offset + last.size if last else 0
    if end > variant.kernarg_bytes or variant.kernarg_bytes > 1 << 16:
        raise BundleError(f"kernargs of {variant.symbol!r} need {end} bytes, the segment has {variant.kernarg_bytes}")
    if not (0 < variant.num_warps <= 64 and variant.warp_size in (32, 64) and 0 <= variant.lds_bytes < 1 << 20):
        raise BundleError(f"launch parameters of {variant.symbol!r} are out of range")
    for scratch in (variant.global_scratch, variant.profile_scratch):
        if not 0 <= scratch.bytes <= MAX_SCRATCH_BYTES or not 0 < scratch.alignment <= MAX_SCRATCH_BYTES:
            raise BundleError(f"scratch memory of {variant.symbol!r} is out of range: {scratch}")
    if variant.cooperative:
        raise BundleError(f"{variant.symbol!r} needs a cooperative launch, which this reader does not do")


def _check_kernarg(variant: Variant, arg: Kernarg, pointees: set[str]) -> None:
    """Check a kernarg's type and size, and that a pointer's value is a name.

    Scalars are expressions, which are checked with the op's. Tensor maps are checked by `_check_maps`.
    """
    if (arg.type, arg.size) == (TENSOR_MAP, TENSOR_MAP_BYTES) and arg.map is not None:
        return
    is_pointer = arg.type.startswith(POINTER)
    kind = SCALAR_TYPES.get(arg.type)
    if arg.size != (8 if is_pointer else kind.size if kind else None) or arg.map is not None:
        raise BundleError(f"kernarg {arg.name!r} of {variant.symbol!r} is {arg.type!r} of {arg.size} bytes")
    if is_pointer and arg.value not in pointees and (arg.value or arg.name not in (GLOBAL_SCRATCH, PROFILE_SCRATCH)):
        raise BundleError(
            f"kernarg {arg.name!r} of {variant.symbol!r} points at {arg.value!r}: the op has no such tensor"
        )


def _check_maps(variant: Variant, op: Op, target: Target) -> None:
    """Check that each tensor map is of an existing tensor and supported by the target's hardware."""
    tensors = {tensor.name: tensor for tensor in op.tensors}
    for arg in variant.kernargs:
        if arg.map is None:
            continue
        if arg.value not in tensors or not BACKENDS[target.backend].has_tensor_maps or not variant.aligned:
            form = "aligned" if variant.aligned else "general"
            fault = f"it is of {arg.value!r}, in a variant for {target.arch} that is {form}"
        else:
            from aot_runtime.contract.tensor_maps import map_fault  # for kernels that take maps only

            fault = map_fault(arg.map, tensors[arg.value], op)
        if fault:
            raise BundleError(f"kernarg {arg.name!r} of {variant.symbol!r} is not a valid tensor map: {fault}")


def _check_case(ops: dict[str, Op], case: Case) -> None:
    what = f"selftest case {case.name!r} of op {case.op!r}"
    op = ops.get(case.op)
    if op is None or not IDENTIFIER.match(case.name):
        raise BundleError(f"{what}: the op does not exist, or the name is invalid")
    if not _VECTORS.match(case.vectors.file) or not 0 <= case.vectors.size <= MAX_VECTOR_BYTES:
        raise BundleError(
            f"{what} has file {case.vectors.file!r} of {case.vectors.size} bytes; {SELFTEST_FOLDER}/<hash>.npz of at "
            f"most {MAX_VECTOR_BYTES} is allowed"
        )
    written = {tensor.name for tensor in op.tensors if tensor.role != "input"}
    if not case.bounds or not case.bounds.keys() <= written:
        raise BundleError(f"{what} has bounds of {sorted(case.bounds)}; the op writes to {sorted(written)}")
    if not all(0 <= bound < math.inf for bound in case.bounds.values()):
        raise BundleError(f"{what} has bounds {case.bounds}; finite ones of 0 and more are allowed")
    if case.dtypes.keys() != op.dtypes.keys() or any(case.dtypes[name] not in op.dtypes[name] for name in op.dtypes):
        raise BundleError(f"{what} is of dtypes {case.dtypes}; the op has {op.dtypes}")
    if not case.scalars.keys() <= {scalar.name for scalar in op.scalars}:
        raise BundleError(f"{what} passes scalars {sorted(case.scalars)}, not all of which the op has")
    innermost = {tensor.name: tensor.innermost for tensor in op.tensors}
    if any(dim not in innermost.get(name, ()) for name, dim in case.innermost.items()):
        raise BundleError(f"{what} has innermost dims {case.innermost}, which the op does not allow")


def read_checked(place: Place, blob: Blob, what: str) -> bytes:
    """Read a file listed in the index. Raises `BundleError` if it is missing or altered."""
    source = source_of(place)
    path = source.path / blob.file
    try:
        content = source.read(blob.file, blob.size)
    except OSError as error:
        raise unreadable(what, path, error) from None
    if len(content) != blob.size or hashlib.sha256(content).hexdigest() != blob.sha256:
        raise BundleError(f"{what} {path} was altered: its size or sha256 is not what the index says")
    return content


def read_blob(place: Place, blob: Blob, arch: str) -> bytes:
    """Read a code object. Raises `BundleError` if missing or altered, `ArchMismatchError` for another architecture."""
    from .elf_header import read_arch

    source = source_of(place)
    image = read_checked(source, blob, "code object")
    actual = read_arch(image)
    if actual != arch:
        raise ArchMismatchError(f"code object {source.path / blob.file} is for {actual}, the bundle is for {arch}")
    return image
