"""The manifests that come with aotbuild, which are named without a path: `attention`.

They lie beside their kernels below one folder: the checkout, or `aot/shipped` where aotbuild is installed. Paths from
that folder are the same in both, and so is what is built.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from aot.paths import is_file, is_folder
from aot_runtime.contract.expressions import nearest

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_root() -> Path:
    """The folder that the folders `manifests` and `kernels` are in."""
    installed = _PACKAGE / "shipped"
    return installed if is_folder(installed) else _PACKAGE.parent


def shipped_manifests() -> dict[str, Path]:
    """Name → path of each manifest that is shipped."""
    return {path.stem: path for path in sorted((shipped_root() / "manifests").glob("*.yaml"))}


def summary(path: Path) -> str:
    """Return a shipped manifest's summary. The ops behind it are not read: there are many."""
    from ruamel.yaml import YAML

    head = re.split(r"^(?:ops|include):", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[0]
    return str(YAML(typ="safe", pure=True).load(head)["doc"])


def find_manifest(path: Path, folder: Path | None = None) -> Path:
    """The file that a manifest's path or name means. A file that is there comes before a shipped manifest.

    Args:
        folder: what a path starts from; by default the working folder.

    Raises:
        FileNotFoundError: there is neither, with what to write instead where that is likely; of other paths, the file
            is left to the reader.
    """
    file = folder / path if folder else path
    if is_file(file):
        return file
    shipped = shipped_manifests()
    if _is_name(path):
        if path.name in shipped:
            return shipped[path.name]
        known = nearest(path.name, shipped)
        raise FileNotFoundError(f"there is neither a file {file} nor a shipped manifest '{path}'{known}")
    if path.stem in shipped and not os.path.lexists(file):
        raise FileNotFoundError(f"there is no manifest {file}; the name of the one that is shipped is '{path.stem}'")
    return file


def _is_name(path: Path) -> bool:
    """Tell if this may be the name of a shipped manifest: it has no folder and no suffix."""
    return str(path) == path.name and not path.suffix
