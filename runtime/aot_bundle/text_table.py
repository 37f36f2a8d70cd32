"""Tables of text, whose columns are aligned. Texts of others are escaped, and cut where one would blow up every row."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence

from aot_runtime.texts import cut

UNLIMITED = 100_000
"""Columns of what is no terminal: a line stays a line."""
MAX_CELL = 160
"""Letters of a cell: each row is as wide as the widest, so that a longer one would be paid for in every row."""
_OTHERS = re.compile(r"[^\x00-\x7f…]")
"""Letters that may be shown in another number of columns than one."""
_NARROWEST = 12
"""Columns that are left to a cell that is wrapped."""


def terminal_width() -> int:
    """Columns that a table may take: those of the terminal, or any number where the output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def table_lines(
    rows: Sequence[Sequence[str]],
    right: Iterable[int] = (),
    width: int = UNLIMITED,
    gap: int = 2,
    wrapped: Collection[int] = (0,),
) -> Iterator[str]:
    """Rows with their columns aligned, the first row being the headings. A cell of more than 160 letters is cut.

    Args:
        right: columns that are aligned to the right.
        wrapped: columns that are wrapped where the table would be wider than `width`.
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
    """Take from the widest of the columns that are wrapped, as long as all are too wide together."""
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
