"""List bundles and their contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aot_bundle.text_table import table_lines
from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.search import bundles_at
from aot_runtime.contract.records import Index, Variant
from aot_runtime.errors import BundleError
from aot_runtime.formats import size_text
from aot_runtime.texts import ID_LENGTH


@dataclass(frozen=True)
class OpSize:
    """Counts of an op's variants and code objects, with the size of the code objects in bytes."""

    op: str
    variants: int
    code_objects: int
    bytes: int


@dataclass(frozen=True)
class Listed:
    """A listed bundle, or the fault if it cannot be read."""

    path: str
    name: str = ""
    version: str = ""
    arch: str = ""
    id: str = ""
    variants: int = 0
    code_objects: int = 0
    bytes: int = 0
    ops: tuple[OpSize, ...] = ()
    fault: str = ""


def find_bundles(paths: Iterable[Path]) -> list[Path]:
    """Find the bundles at paths, each a bundle or a folder or file of bundles. Raises `BundleError`."""
    found: list[Path] = []
    for path in paths:
        inside = bundles_at(path)
        if not inside:
            raise BundleError(
                f"{path} is not a bundle and contains none" if path.exists() else f"{path} does not exist"
            )
        found += inside
    return list(dict.fromkeys(found))


def list_bundle(folder: Path) -> Listed:
    """List a bundle's contents, or the fault if it cannot be read."""
    try:
        index = read_index(folder)
    except BundleError as error:
        return Listed(str(folder), fault=str(error))
    return list_index(folder, index)


def list_index(folder: Path, index: Index) -> Listed:
    """List the contents of a bundle by its index."""
    ops = tuple(_size(index, op.name, [v for v in index.variants if v.op == op.name]) for op in index.ops)
    whole = _size(index, "", index.variants)
    return Listed(
        str(folder), index.name, index.version, index.target.arch, index.id,
        whole.variants, whole.code_objects, whole.bytes, ops,
    )  # fmt: skip


def _size(index: Index, op: str, variants: Sequence[Variant]) -> OpSize:
    codes = {variant.code for variant in variants}
    return OpSize(op, len(variants), len(codes), sum(index.blobs[code].size for code in codes))


def listing_lines(bundles: Iterable[Listed], width: int) -> Iterator[str]:
    """Format a table of bundles and their ops."""
    rows: list[Sequence[str]] = [("BUNDLE", "VERSION", "ARCH", "VARIANTS", "OBJECTS", "SIZE", "ID")]
    for bundle in bundles:
        if bundle.fault:
            rows.append((bundle.path, "", "unreadable", "", "", "", ""))
            continue
        rows.append((bundle.path, bundle.version, bundle.arch, *_counts(bundle), bundle.id[:ID_LENGTH]))
        rows += [(f"  {op.op}", "", "", *_counts(op), "") for op in bundle.ops]
    return table_lines(rows, right=(3, 4, 5), width=width)


def _counts(item: Listed | OpSize) -> tuple[str, str, str]:
    return str(item.variants), str(item.code_objects), size_text(item.bytes)


def listing_data(bundles: Iterable[Listed]) -> list[dict[str, Any]]:
    """Return bundles as JSON-ready data."""
    return [asdict(bundle) for bundle in bundles]
