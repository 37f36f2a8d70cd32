"""Pieces of text that several parts of the runtime print."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

ID_LENGTH = 12
"""Hex digits of a bundle's id that are shown."""


LONG_INTEGER = 128
"""Bits of an integer whose digits are shown."""


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = 8
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= LONG_INTEGER else f"<an integer of {x.bit_length()} bits>"


_SHOWN = _Shown()


def shown(value: Any) -> str:
    """What a message shows of any value at all: its repr, shortened where it is long. Never raises."""
    return _SHOWN.repr(value)


UNITS: Mapping[str, int] = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
"""Units of sizes, the largest first, and their bytes."""


def size_text(nbytes: int) -> str:
    """`1.4 MiB`, say."""
    for unit, scale in UNITS.items():
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def escaped(text: str) -> str:
    """Text as one line that a terminal shows as it stands: control characters, ends of lines, marks that turn the
    direction of writing and all else that is not printable are escapes, as in a literal of Python."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def printable(text: str) -> str:
    """Text for a source file: what cannot be printed is a space, but for the ends of lines."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def cut(text: str, most: int = 160) -> str:
    """A text in one line, cut where it is long: of a name that many lines have, each would be as long."""
    line = escaped(text[: most + 1])
    return line if len(line) <= most else f"{line[: most - 1]}…"


def axis_values_text(values: Mapping[str, object], none: str = "(no axes)") -> str:
    """Axis values in short: dtypes by their value, flags by their name where set; `none` if that is nothing."""
    return " ".join(filter(None, (_coordinate(name, value) for name, value in values.items()))) or none


def _coordinate(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else ""
    return value if isinstance(value, str) else f"{name}={value}"
