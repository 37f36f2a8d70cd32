"""Change bundles as a forger would: with matching hashes and id in the index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aot_runtime.bundle.reading import bundle_id, read_index
from aot_runtime.contract.records import HASH_LENGTH, TEXT_FILES
from tests.support.index_trees import folded, unfolded


def edit_index(folder: str | Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change a bundle's index, `unfolded`, and write its new id to it and to the files generated from it."""
    path = Path(folder) / "bundle.json"
    index = unfolded(json.loads(path.read_text()))
    old = index["id"]
    edit(index)
    index = folded(index)
    index["id"] = "0" * 64
    index["id"] = bundle_id(json.dumps(index).encode())
    path.write_text(json.dumps(index))
    for file in (found for name in TEXT_FILES for found in path.parent.glob(name.format(name="*"))):
        file.write_text(file.read_text().replace(old, index["id"]))


def adopt_files(folder: str | Path) -> None:
    """Make the index describe each code object and vector file as it is now; code objects are renamed to fit."""

    def edit(index: dict[str, Any]) -> None:
        for blob in (*index["blobs"].values(), *(case["vectors"] for case in index.get("selftest", ()))):
            content = (Path(folder) / blob["file"]).read_bytes()
            blob.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for blob in index["blobs"].values():
            path = Path(folder) / blob["file"]
            path.rename(path.with_stem(blob["sha256"][:HASH_LENGTH]))

    edit_index(folder, edit)


def vectors_of(folder: Path, case: str) -> Path:
    """Return the vector file of a selftest case."""
    return folder / next(item for item in read_index(folder).selftest if item.name == case).vectors.file


def rewrite_vectors(
    path: Path, edit: Callable[[dict[str, np.ndarray]], Any], save: Callable[..., None] = np.savez
) -> None:
    """Change the arrays of a vector file."""
    with np.load(path) as file:
        arrays = dict(file)
    edit(arrays)
    save(path, **arrays)
