"""List the source files of the packages in a checkout, without the copies that wheel builds leave in `build`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("aot", "aot_capture", "runtime/aot_runtime", "runtime/aot_bundle", "runtime/aot_emulator")


def sources(root: Path, folders: tuple[str, ...] = PACKAGES, suffix: str = ".py") -> Iterator[Path]:
    """Yield the files of folders, by default the Python files of the packages."""
    for folder in folders:
        yield from (root / folder).rglob(f"*{suffix}")
