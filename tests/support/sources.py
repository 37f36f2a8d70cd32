"""The source files of the packages in a checkout. Builds of wheels leave copies beside them, in `build`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("aot", "runtime/aot_runtime", "runtime/aot_bundle", "runtime/aot_emulator")


def sources(root: Path, packages: tuple[str, ...] = PACKAGES) -> Iterator[Path]:
    """Yield the Python files of packages."""
    for package in packages:
        yield from (root / package).rglob("*.py")
