"""The support code of the generated C, and its reader."""

from __future__ import annotations

import hashlib
from pathlib import Path

from aot.c.dtypes import INCLUDES

_INCLUDE = '#include "'


def support_text(name: str) -> str:
    """Return a file of the support code with its includes expanded."""
    if name in INCLUDES:
        return INCLUDES[name]()
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return "\n".join(support_text(line.split('"')[1]) if line.startswith(_INCLUDE) else line for line in lines)


def types_text() -> str:
    """Return `types.h` with the hash of its text as the version, which is compared when a bundle is opened."""
    text = support_text("types.h")
    return text.replace("$VERSION", f"0x{hashlib.sha256(text.encode()).hexdigest()[:8]}")
