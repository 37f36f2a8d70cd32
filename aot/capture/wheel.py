"""Wheels of shipped caches: data that `aotbuild install-cache NAME` finds where pip has installed it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from aot_bundle.packing import opened_aside
from aot_bundle.wheel import TAG, zip_wheel
from aot_capture.ingredients import MANIFEST
from aot_runtime.bundle.archive import parts

from .shipped_cache import ARCHIVE_SUFFIX, ShippedCacheError

GROUP = "aotbuild.caches"
"""Entry points of wheels: the name of a shipped cache, and the package that has its archive."""


def write_wheel(output: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """Write a wheel with the archive of a shipped cache; its version is that of its contents. Raises `OSError`."""
    package = re.sub(r"[^a-z0-9]+", "_", name.lower())
    version = f"1+{hashlib.sha256(files[MANIFEST]).hexdigest()[:12]}"
    info = f"{package}-{version}.dist-info"
    described = {
        "Metadata-Version": "2.1",
        "Name": package.replace("_", "-"),
        "Version": version,
        "Summary": "Compiled Triton kernels of a program, for aotbuild install-cache",
        "Requires-Dist": "aotbuild",
    }
    contents: dict[str, bytes] = {
        f"{package}/{name}{ARCHIVE_SUFFIX}": b"".join(parts(dict(files))),
        f"{info}/METADATA": "".join(f"{field}: {value}\n" for field, value in described.items()).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: aotbuild\nRoot-Is-Purelib: true\nTag: {TAG}\n".encode(),
        f"{info}/entry_points.txt": f"[{GROUP}]\n{name} = {package}\n".encode(),
    }
    path = output / f"{package}-{version}-{TAG}.whl"
    with opened_aside(path) as file:
        zip_wheel(file, contents, f"{info}/RECORD")
    return path


def installed_archive(name: str) -> Path:
    """Return the archive in an installed wheel, by the name of the shipped cache. Raises `ShippedCacheError`."""
    found = metadata.entry_points(group=GROUP)
    for point in found:
        if point.name == name and point.dist is not None and re.fullmatch(r"[a-z0-9_]+", point.value):
            return Path(str(point.dist.locate_file(f"{point.value}/{name}{ARCHIVE_SUFFIX}")))
    others = ", ".join(sorted(point.name for point in found))
    there = f"; installed wheels have {others}" if others else ", and no wheel with a shipped cache is installed"
    raise ShippedCacheError(f"{name}: there is no such folder or archive{there}")
