"""Format sizes, axis values and text for tables, terminals and source files."""

from __future__ import annotations

from collections.abc import Mapping

from .texts import escaped

UNITS: Mapping[str, int] = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
"""Bytes by unit, largest first."""


def size_text(nbytes: int) -> str:
    """Format a size in bytes, such as `1.4 MiB`."""
    for unit, scale in UNITS.items():
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def printable(text: str) -> str:
    """Replace characters that are not printable by spaces, except newlines, for a source file."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def cut(text: str, most: int = 160) -> str:
    """Escape text for one line and truncate it, as a long name may occur in many lines."""
    line = escaped(text[: most + 1])
    return line if len(line) <= most else f"{line[: most - 1]}…"


def axis_values_text(values: Mapping[str, object], none: str = "(no axes)") -> str:
    """Format axis values in short: dtypes by value, flags by name if set; `none` if nothing remains."""
    return " ".join(filter(None, (_coordinate(name, value) for name, value in values.items()))) or none


def _coordinate(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else ""
    return value if isinstance(value, str) else f"{name}={value}"
