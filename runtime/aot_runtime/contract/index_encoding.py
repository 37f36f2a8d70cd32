"""Encode `bundle.json`, and spell the infinite floats in it, for which JSON has no number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from .index_file import IN_TABLES, CodeObject, IndexFile, Kernel, VariantRow
from .records import Index, Infinity, Kernarg, Record

_OF_KERNELS = [name for name in Kernel.__struct_fields__ if name != "kernargs"]
_OF_ROWS = [name for name in VariantRow.__struct_fields__ if name in ("aligned", "config", "lds_bytes", "resources")]


def encode_index(index: Index) -> bytes:
    """Encode an index as canonical JSON: equal indexes give equal bytes."""
    code = {key: position for position, key in enumerate(index.blobs)}
    kernargs: dict[Kernarg, int] = {}
    layouts: dict[tuple[int, ...], int] = {}
    kernels: dict[bytes, int] = {}
    table: list[Kernel] = []
    rows = []
    for variant in index.variants:
        layout = tuple(kernargs.setdefault(arg, len(kernargs)) for arg in variant.kernargs)
        shared = {name: getattr(variant, name) for name in _OF_KERNELS}
        kernel = Kernel(kernargs=layouts.setdefault(layout, len(layouts)), **shared)
        position = kernels.setdefault(encode_json(kernel), len(kernels))
        if position == len(table):
            table.append(kernel)
        values = tuple(value for _, value in sorted(variant.axis_values.items()))
        own = {name: getattr(variant, name) for name in _OF_ROWS}
        rows.append(VariantRow(kernel=position, axis_values=values, code=code[variant.code], **own))
    said = {name: getattr(index, name) for name in Index.__struct_fields__ if name not in IN_TABLES}
    blobs = tuple(CodeObject(blob.sha256, blob.size) for blob in index.blobs.values())
    return encode_json(
        IndexFile(kernargs=tuple(kernargs), layouts=tuple(layouts), kernels=tuple(table), code=blobs,
                  variants=tuple(rows), **said)
    )  # fmt: skip


def encode_json(value: Any) -> bytes:
    """Encode records or plain data as canonical JSON, infinite floats as `Infinity`. Raises ValueError for NaN."""
    plain = msgspec.json.encode(value, order="deterministic")  # non-finite floats become null
    return msgspec.json.encode(spelled(value), order="deterministic") if b"null" in plain else plain


def spelled(value: Any) -> Any:
    """Replace each infinite float of records or plain data by an `Infinity`. Raises ValueError for NaN."""
    return _mapped(value, _spelled_float)


def _spelled_float(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        raise ValueError("NaN cannot be in an index")
    return Infinity("inf" if value > 0 else "-inf")


def numbers(value: Any) -> Any:
    """Replace each `Infinity` in records or plain data by its float."""
    return _mapped(value, _number)


def _number(value: Any) -> Any:
    return float(value.float) if isinstance(value, Infinity) else value


def _mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Apply `leaf` to all values that are not containers.

    Unchanged parts are returned as the same objects, since `omit_defaults` compares by identity.
    """
    match value:
        case dict():
            items = {key: _mapped(item, leaf) for key, item in value.items()}
            return items if any(items[key] is not value[key] for key in items) else value
        case list() | tuple():
            members = tuple(_mapped(item, leaf) for item in value)
            return members if any(new is not old for new, old in zip(members, value, strict=True)) else value
        case Record():
            fields = tuple(getattr(value, name) for name in value.__struct_fields__)
            changed = _mapped(fields, leaf)
            return value if changed is fields else type(value)(*changed)
    return leaf(value)
