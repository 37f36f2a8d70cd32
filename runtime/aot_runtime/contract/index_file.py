"""`bundle.json`, the index in normalised form, and how to decode it. `index_encoding` encodes it.

Variants differ in a few values. What they share is in tables, to which they refer by position: kernargs, layouts of
kernarg segments (lists of kernargs), kernels and code objects. Frequent records are encoded as lists of their fields;
later versions of the format append fields at the end. Decoded variants share the objects of the tables.

A reader accepts an index if its `oldest_reader` is at most `FORMAT_VERSION`, and ignores unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, TypeVar

import msgspec

from aot_runtime.errors import BundleError

from .arch import BACKENDS
from .names import axis_names
from .records import (
    CODE_FOLDER,
    HASH_LENGTH,
    INDEX,
    NO_PROVENANCE,
    Blob,
    Case,
    Index,
    Int,
    Kernarg,
    Op,
    Record,
    Resources,
    Scratch,
    StoredValue,
    Target,
    Value,
    Variant,
)

FORMAT_VERSION = 2
OLDEST_FORMAT = 2
"""The oldest version that this reader reads, and the `oldest_reader` of the files that are written."""
FIRST_READERS = {2: "0.1.0"}
"""Version of the format → the first version of aotbuild that reads it. Wheels of bundles require this version."""

# With tables, a short file can describe a large index. These bounds keep the work in proportion to the file's length.
MAX_VARIANTS, MAX_KERNELS, MAX_KERNARGS = 1 << 16, 1 << 12, 1 << 10
"""Maximum number of variants and kernels of a bundle, and of kernargs of a layout."""

Position = Annotated[int, msgspec.Meta(ge=0)]
"""A position in a table."""
_T = TypeVar("_T")


class CodeObject(Record, frozen=True, array_like=True):
    """A code object. Its key, which is also the name of its file, is the first `HASH_LENGTH` digits of its SHA-256."""

    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    size: Int


class Kernel(Record, frozen=True, array_like=True):
    """The fields of `Variant` that the variants of a kernel share; `kernargs` is the position of a layout."""

    op: str
    launch: Int
    symbol: str
    kernargs: Position
    kernarg_bytes: Int
    num_warps: Int
    warp_size: Int
    options: dict[str, Value]
    compiler: str
    global_scratch: Scratch = Scratch()
    profile_scratch: Scratch = Scratch()
    cooperative: bool = False
    early: bool = False


class VariantRow(Record, frozen=True, array_like=True):
    """A variant: the positions of its kernel and code object, and its own fields.

    `axis_values` are ordered by the names of the op's dtype variables and axes.
    """

    kernel: Position
    axis_values: tuple[StoredValue, ...]
    aligned: bool
    config: Int
    code: Position
    lds_bytes: Int
    resources: Resources


class IndexFile(Record, frozen=True):
    """The contents of `bundle.json`: an `Index` with tables."""

    format: Int
    oldest_reader: Int
    id: str
    name: str
    target: Target
    toolchain: dict[str, str]
    ops: tuple[Op, ...]
    kernargs: tuple[Kernarg, ...]
    layouts: tuple[Annotated[tuple[Position, ...], msgspec.Meta(max_length=MAX_KERNARGS)], ...]
    kernels: Annotated[tuple[Kernel, ...], msgspec.Meta(max_length=MAX_KERNELS)]
    code: tuple[CodeObject, ...]
    variants: Annotated[tuple[VariantRow, ...], msgspec.Meta(max_length=MAX_VARIANTS)]
    selftest: tuple[Case, ...] = ()
    version: str = ""
    provenance: msgspec.Raw = NO_PROVENANCE


class _Version(msgspec.Struct, frozen=True):
    oldest_reader: Int
    format: Int = 0


IN_TABLES = ("variants", "blobs")
"""Fields of `Index` that are tables in the file."""


def decode_index(data: bytes) -> Index:
    """Decode `bundle.json`. Raises `BundleError` if it is not an index, or is of an unsupported format."""
    try:
        version = msgspec.json.decode(data, type=_Version)
        if version.oldest_reader > FORMAT_VERSION:
            raise BundleError(
                f"the bundle needs a reader of format {version.oldest_reader}; this one reads up to {FORMAT_VERSION}: "
                "install a newer aotbuild"
            )
        if version.format < OLDEST_FORMAT:
            raise BundleError(
                f"the bundle is of format {version.format}, and this reader reads {OLDEST_FORMAT} and later: "
                "build the bundle again"
            )
        file = msgspec.json.decode(data, type=IndexFile)
        if b'"float"' in data:
            from .index_encoding import numbers

            file = numbers(file)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BundleError(f"{INDEX} is not a bundle index: {error}") from None
    return _resolved(file)


def _resolved(file: IndexFile) -> Index:
    """Resolve the positions in tables. Raises `BundleError` for a position out of range."""
    backend = BACKENDS.get(file.target.backend)
    suffix = backend.code_suffix if backend else file.target.backend  # an unknown backend is rejected later
    keys = [code.sha256[:HASH_LENGTH] for code in file.code]
    blobs = {
        key: Blob(f"{CODE_FOLDER}/{key}.{suffix}", code.size, code.sha256)
        for key, code in zip(keys, file.code, strict=True)
    }
    if len(blobs) != len(keys):
        raise BundleError("two code objects have one name")
    layouts = [tuple(_at(file.kernargs, position, "kernarg") for position in layout) for layout in file.layouts]
    said = {name: getattr(file, name) for name in Index.__struct_fields__ if name not in IN_TABLES}
    return Index(variants=tuple(_variants(file, layouts, keys)), blobs=blobs, **said)


def _variants(file: IndexFile, layouts: list[tuple[Kernarg, ...]], keys: list[str]) -> Iterator[Variant]:
    names = {op.name: sorted(axis_names(op)) for op in file.ops}
    kernels = [(kernel, _at(layouts, kernel.kernargs, "layout"), _names_of(names, kernel)) for kernel in file.kernels]
    for row in file.variants:
        try:
            (kernel, kernargs, axes), code = kernels[row.kernel], keys[row.code]
        except IndexError:
            raise BundleError(
                f"a variant is of kernel {row.kernel} and code object {row.code}: "
                f"there are {len(kernels)} and {len(keys)}"
            ) from None
        if len(axes) != len(row.axis_values):
            raise BundleError(f"a variant of op {kernel.op!r} is not on the op's axes")
        yield Variant(
            kernel.op, kernel.launch, dict(zip(axes, row.axis_values, strict=True)), row.aligned, row.config,
            code, kernel.symbol, kernargs, kernel.kernarg_bytes, row.lds_bytes, kernel.num_warps, kernel.warp_size,
            row.resources, kernel.options, kernel.compiler, kernel.global_scratch, kernel.profile_scratch,
            kernel.cooperative, kernel.early,
        )  # fmt: skip


def _names_of(names: Mapping[str, list[str]], kernel: Kernel) -> list[str]:
    if kernel.op not in names:
        raise BundleError(f"kernel {kernel.symbol!r} is of op {kernel.op!r}, which the index does not have")
    return names[kernel.op]


def _at(table: list[_T] | tuple[_T, ...], position: int, what: str) -> _T:
    try:
        return table[position]
    except IndexError:
        raise BundleError(f"the index has no {what} {position}: it has {len(table)}") from None
