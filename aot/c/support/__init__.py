"""The support code of generated C, and how a file of it is read."""

from __future__ import annotations

from pathlib import Path

_INCLUDE = '#include "'


def support_text(name: str) -> str:
    """A file of the support code, with those that it includes in their place."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return "\n".join(support_text(line.split('"')[1]) if line.startswith(_INCLUDE) else line for line in lines)
