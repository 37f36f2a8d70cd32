"""Tables of text, by rich, which the commands need and the library does not."""

from __future__ import annotations

import io
import sys
from collections.abc import Collection, Iterable, Sequence

UNLIMITED = 100_000
"""Columns of what is no terminal: a line stays a line."""


def terminal_width() -> int:
    """Columns that a table may take: those of the terminal, or any number where the output is none."""
    from rich.console import Console

    return Console().width if sys.stdout.isatty() else UNLIMITED


def table_lines(
    rows: Sequence[Sequence[str]],
    right: Iterable[int] = (),
    width: int = UNLIMITED,
    gap: int = 2,
    wrapped: Collection[int] = (0,),
) -> list[str]:
    """Rows with their columns aligned, the first row being the headings.

    Args:
        right: columns that are aligned to the right.
        wrapped: columns that are wrapped where the table would be wider than `width`.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rights = set(right)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, gap, 0, 0))
    for at in range(len(rows[0])):
        table.add_column(justify="right" if at in rights else "left", no_wrap=at not in wrapped, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=width, no_color=True, force_terminal=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]
