"""Formatting of text for messages."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

ID_LENGTH = 12
"""Hex digits of a bundle's id to show."""


LONG_INTEGER = 128
"""Maximum number of bits of an integer to show in digits."""


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = 8
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= LONG_INTEGER else f"<an integer of {x.bit_length()} bits>"


_SHOWN = _Shown()


def shown(value: Any) -> str:
    """Return a value's repr for messages, shortened if it is long. Never raises."""
    return _SHOWN.repr(value)


UNITS: Mapping[str, int] = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
"""Bytes by unit, largest first."""


def size_text(nbytes: int) -> str:
    """Format a size in bytes, such as `1.4 MiB`."""
    for unit, scale in UNITS.items():
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def escaped(text: str) -> str:
    """Escape text for one line of a terminal, as in a Python literal.

    Escapes everything that is not printable: control characters, line breaks, and marks of writing direction.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


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
