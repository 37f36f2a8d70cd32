"""The tree of `bundle.json` in a form that is easy to edit: all fields of variants by name, and code objects by key.

Nothing is checked, so that forged values reach the reader.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aot_runtime.contract.arch import BACKENDS
from aot_runtime.contract.index_file import CodeObject, Kernel, VariantRow
from aot_runtime.contract.records import (
    CODE_FOLDER,
    HASH_LENGTH,
    Kernarg,
    Resources,
    Variant,
)

Tree = dict[str, Any]
_TABLES = ("kernargs", "layouts", "kernels", "code", "variants")
_DEFAULTS = {"global_scratch": {}, "profile_scratch": {}, "cooperative": False, "early": False}


def unfolded(tree: Tree) -> Tree:
    """Return the tree of a file with `variants` and `blobs` as in `Index`, and without tables."""
    suffix = BACKENDS[tree["target"]["backend"]].code_suffix
    code = [_named(CodeObject, row) for row in tree["code"]]
    keys = [row["sha256"][:HASH_LENGTH] for row in code]
    axes = {
        op["name"]: sorted((*op.get("dtypes", ()), *(axis["name"] for axis in op.get("axes", ()))))
        for op in tree["ops"]
    }
    variants = []
    for row in (_named(VariantRow, row) for row in tree["variants"]):
        kernel = _named(Kernel, tree["kernels"][row["kernel"]])
        layout = tree["layouts"][kernel["kernargs"]]
        own = {
            "axis_values": dict(zip(axes[kernel["op"]], row["axis_values"], strict=True)),
            "kernargs": [_named(Kernarg, tree["kernargs"][position]) for position in layout],
            "resources": _named(Resources, row["resources"]),
            "code": keys[row["code"]],
        }
        fields = {**row, **kernel, **own}
        variants.append({name: fields[name] for name in Variant.__struct_fields__})
    blobs = {key: {"file": f"{CODE_FOLDER}/{key}.{suffix}", **row} for key, row in zip(keys, code, strict=True)}
    rest = {name: value for name, value in tree.items() if name not in _TABLES}
    return {**rest, "variants": variants, "blobs": blobs}


def folded(tree: Tree) -> Tree:
    """Return the tree of a file that says what an unfolded one does. Fields that no record has come last in their
    list."""
    rest = {name: value for name, value in tree.items() if name not in ("variants", "blobs")}
    kernargs, layouts, kernels = _Table(), _Table(), _Table()
    keys = list(tree["blobs"])
    rows = []
    for variant in tree.get("variants", ()):
        fields = {**_DEFAULTS, **variant}
        layout = [kernargs.position(_listed(Kernarg, arg)) for arg in fields["kernargs"]]
        kernel = kernels.position(_listed(Kernel, {**_only(Kernel, fields), "kernargs": layouts.position(layout)}))
        values = [value for _, value in sorted(fields["axis_values"].items())]
        code = keys.index(fields["code"]) if fields["code"] in keys else len(keys)
        own = {"kernel": kernel, "axis_values": values, "code": code}
        own["resources"] = _listed(Resources, fields["resources"])
        rows.append(_listed(VariantRow, {**_only(VariantRow, fields), **own}))
    tables: Tree = {"kernargs": kernargs.rows, "layouts": layouts.rows, "kernels": kernels.rows}
    tables["code"] = [[blob["sha256"], blob["size"]] for blob in tree["blobs"].values()]
    return {**rest, **tables, **({"variants": rows} if "variants" in tree else {})}


class _Table:
    """A table of rows, each stored once."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._positions: dict[str, int] = {}

    def position(self, row: Any) -> int:
        text = json.dumps(row)
        if text not in self._positions:
            self._positions[text] = len(self.rows)
            self.rows.append(row)
        return self._positions[text]


def _named(record: Any, row: Sequence[Any]) -> Tree:
    return dict(zip(record.__struct_fields__, row, strict=False))


def _only(record: Any, fields: Tree) -> Tree:
    return {name: value for name, value in fields.items() if name in record.__struct_fields__}


def _listed(record: Any, fields: Any) -> Any:
    names = record.__struct_fields__
    return [*(fields.get(name) for name in names), *(value for name, value in fields.items() if name not in names)]
