"""Bundles changed as a forger would: with an index whose hashes and id fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aot_runtime.bundle.reading import bundle_id


def edit_index(folder: str | Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change a bundle's index and give it the id that it then has, in the header and the stub too."""
    path = Path(folder) / "bundle.json"
    index = json.loads(path.read_text())
    old = index["id"]
    edit(index)
    index["id"] = "0" * 64
    index["id"] = bundle_id(json.dumps(index).encode())
    path.write_text(json.dumps(index))
    for file in (*path.parent.glob("include/*.h"), *path.parent.glob("stubs/*.pyi")):
        file.write_text(file.read_text().replace(old, index["id"]))


def adopt_files(folder: str | Path) -> None:
    """Make the index describe each code object and vector file as it is now."""

    def edit(index: dict[str, Any]) -> None:
        for blob in (*index["blobs"].values(), *(case["vectors"] for case in index.get("selftest", ()))):
            content = (Path(folder) / blob["file"]).read_bytes()
            blob.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())

    edit_index(folder, edit)
