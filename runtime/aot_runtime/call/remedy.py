"""The command that builds what a bundle lacks, as it works in the working folder. Loaded for an error."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from aot_runtime.contract.records import INDEX

SHIPPED = "manifests"
"""The folder of the manifests that come with aotbuild, which are built by their names."""
OUTPUT, BESIDE = "dist", "for-calls"
"""Folders that aotbuild writes to: by default, and for a bundle that does not replace another."""

LEVELS = 4
"""Folders above a bundle that may be the root of its project."""


def build_command(bundle: str, manifest: str, place: Path | None, arch: str, calls: str) -> str:
    """The command that builds what some calls need, and keeps what there is.

    Args:
        bundle: its name.
        manifest: that of the bundle, from the root of its project; empty where the bundle does not say.
        place: where the bundle lies, if that is known.
        calls: the calls file.
    """
    output = _output(f"{bundle}-{arch}", place)
    return shlex.join(["aotbuild", "--arch", arch, "--for", calls, *output, _manifest(bundle, manifest, place)])


def _output(name: str, place: Path | None) -> Iterator[str]:
    """To the bundle itself where aotbuild would write it, else to a folder of its own."""
    if place is None or place.name != name or not (place / INDEX).is_file() or not os.access(place, os.W_OK):
        yield from ("-o", BESIDE)
        return
    yield "--add"
    folder = os.path.relpath(place.parent)
    if folder != OUTPUT:
        yield from ("-o", str(place.parent.absolute()) if folder.startswith("..") else folder)


def _manifest(bundle: str, manifest: str, place: Path | None) -> str:
    """The manifest's file where it is found, from the working folder or above the bundle, else the name of one that is
    shipped."""
    known = manifest or f"{bundle}.yaml"
    for folder in (Path(), *(place.absolute().parents[:LEVELS] if place else ())):
        if (folder / known).is_file():
            return os.path.relpath(folder / known)
    path = PurePosixPath(known)
    return path.stem if not manifest or str(path.parent) == SHIPPED else known
