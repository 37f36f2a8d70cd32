"""Manifests that come with aotbuild. They are named without a path: `attention`.

They are below the same root as their kernels: the checkout, or `aot/shipped` of an installation. Paths from the root
are equal in both, so builds give the same bundles.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from aot.paths import is_file, is_folder
from aot_runtime.contract.expressions import nearest

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_root() -> Path:
    """Return the folder that contains `manifests` and `kernels`."""
    installed = _PACKAGE / "shipped"
    return installed if is_folder(installed) else _PACKAGE.parent


def shipped_manifests() -> dict[str, Path]:
    """Return name → path of the shipped manifests."""
    return {path.stem: path for path in sorted((shipped_root() / "manifests").glob("*.yaml"))}


def summary(path: Path) -> str:
    """Return a shipped manifest's summary, without reading its ops; empty if it has none."""
    from ruamel.yaml import YAML

    head = re.split(r"^(?:ops|include):", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[0]
    return str((YAML(typ="safe", pure=True).load(head) or {}).get("doc", ""))


def find_manifest(path: Path, folder: Path | None = None) -> Path:
    """Return the path of a manifest, given its path or name. An existing file precedes a shipped manifest.

    Args:
        folder: base of relative paths; defaults to the working folder.

    Raises:
        FileNotFoundError: there is no manifest of this name; the error suggests one. A path that is not a name is
            returned even if the file does not exist.
    """
    file = folder / path if folder else path
    if is_file(file):
        return file
    shipped = shipped_manifests()
    if _is_name(path):
        if path.name in shipped:
            return shipped[path.name]
        known = nearest(path.name, shipped)
        raise FileNotFoundError(f"neither a file {file} nor a shipped manifest '{path}' exists{known}")
    if path.stem in shipped and not os.path.lexists(file):
        raise FileNotFoundError(f"manifest {file} does not exist; the shipped manifest is named '{path.stem}'")
    return file


def _is_name(path: Path) -> bool:
    """Return True if this may be the name of a shipped manifest: it has no folder and no suffix."""
    return str(path) == path.name and not path.suffix
