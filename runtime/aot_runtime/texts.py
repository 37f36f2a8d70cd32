"""Pieces of text that several parts of the runtime print."""

from __future__ import annotations

import reprlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def size_text(nbytes: int) -> str:
    """`1.4 MiB`, say."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def axis_values_text(values: Mapping[str, object], none: str = "(no axes)") -> str:
    """Axis values in short: dtypes by their value, flags by their name where set; `none` if that is nothing."""
    return " ".join(filter(None, (_coordinate(name, value) for name, value in values.items()))) or none


def _coordinate(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else ""
    return value if isinstance(value, str) else f"{name}={value}"


def aligned_rows(
    rows: Sequence[Sequence[str]], right: Iterable[int], gap: int = 2, width: int | None = None
) -> Iterator[str]:
    """Rows with their columns aligned, the first row being the headings. Where `width` is given, the first column is
    wrapped to fit it.
    """
    rights = set(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        widths[0] = min(widths[0], max(20, width - sum(widths[1:]) - gap * (len(widths) - 1)))
    for first, *rest in rows:
        head, *more = textwrap.wrap(first, widths[0], subsequent_indent="  ") if width else [first]
        cells = zip(range(len(widths)), (head, *rest), widths, strict=True)
        aligned = (text.rjust(size) if at in rights else text.ljust(size) for at, text, size in cells)
        yield (" " * gap).join(aligned).rstrip()
        yield from more
