"""Show untrusted values in messages, short and in one line."""

from __future__ import annotations

import reprlib
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


def escaped(text: str) -> str:
    """Escape text for one line of a terminal, as in a Python literal.

    Escapes everything that is not printable: control characters, line breaks, and marks of writing direction.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
