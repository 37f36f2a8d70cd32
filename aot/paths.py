"""Test paths that manifests name. A path that is too long for the system does not exist, which is not an error."""

from __future__ import annotations

from pathlib import Path


def is_file(path: Path) -> bool:
    """Tell if a regular file exists."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Tell if a folder exists."""
    try:
        return path.is_dir()
    except OSError:
        return False
