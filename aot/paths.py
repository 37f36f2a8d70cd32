"""Whether there is what a path of a manifest names: what is too long for a name is not there, as nothing else is."""

from __future__ import annotations

from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether there is a regular file."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether there is a folder."""
    try:
        return path.is_dir()
    except OSError:
        return False
