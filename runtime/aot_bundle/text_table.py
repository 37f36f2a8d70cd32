"""Text tables with aligned columns. Cells are escaped and truncated."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence

from aot_runtime.formats import cut

UNLIMITED = 100_000
"""Width of output that is not a terminal, where lines are not wrapped."""
MAX_CELL = 160
"""Most characters in a cell, since the widest cell determines the width of every row."""
_OTHERS = re.compile(r"[^\x00-\x7f…]")
"""Characters that may not be one column wide."""
_NARROWEST = 12
"""Least width of a wrapped column."""


def terminal_width() -> int:
    """Return the width of the terminal, or `UNLIMITED` if output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def table_lines(
    rows: Sequence[Sequence[str]],
    right: Iterable[int] = (),
    width: int = UNLIMITED,
    gap: int = 2,
    wrapped: Collection[int] = (0,),
) -> Iterator[str]:
    """Format rows with aligned columns. The first row has the headings. Cells are truncated to 160 characters.

    Args:
        right: columns to align to the right.
        wrapped: columns to wrap if the table would be wider than `width`.
    """
    rights, space = set(right), " " * gap
    cells = [[cut(text, MAX_CELL) for text in row] for row in rows]
    widths = [max(map(_columns, column)) for column in zip(*cells, strict=True)]
    _narrow(widths, wrapped, width - gap * (len(widths) - 1))
    for row in cells:
        folded = [_folded(text, most) for text, most in zip(row, widths, strict=True)]
        for parts in _side_by_side(folded):
            yield space.join(_padded(part, widths[at], at in rights) for at, part in enumerate(parts)).rstrip()


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return len(text) + sum(
        -1 if unicodedata.combining(letter) else unicodedata.east_asian_width(letter) in "WF"
        for letter in _OTHERS.findall(text)
    )


def _narrow(widths: list[int], wrapped: Collection[int], room: int) -> None:
    """Narrow the widest wrapped column until the table fits or none can be narrowed further."""
    excess = sum(widths) - room
    while excess > 0 and wrapped:
        at = max(wrapped, key=widths.__getitem__)
        if widths[at] <= _NARROWEST:
            return
        widths[at] -= 1
        excess -= 1


def _folded(text: str, width: int) -> Sequence[str]:
    if _columns(text) <= width:
        return (text,)
    return textwrap.wrap(text, width, break_on_hyphens=False) or ("",)


def _side_by_side(cells: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    for line in range(max(map(len, cells))):
        yield [cell[line] if line < len(cell) else "" for cell in cells]


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - _columns(text))
    return space + text if right else text + space
