"""Parts of a Markdown page for tests: code blocks with their preceding comments, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLOCK = re.compile(r"(?:^<!-- ([^\n]*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the comment on the line before it."""

    language: str
    text: str
    comment: str


def blocks(page: str, language: str) -> list[Block]:
    """Return the fenced blocks of one language, in order."""
    found = (Block(match[2], match[3], match[1] or "") for match in _BLOCK.finditer(page))
    return [block for block in found if block.language == language]


def section(page: str, title: str) -> str:
    """Return the text under a heading, up to the next one."""
    headings = [*_HEADING.finditer(_BLOCK.sub(lambda match: " " * len(match[0]), page))]
    ends = [*(heading.start() for heading in headings[1:]), len(page)]
    (text,) = (page[h.end() : end] for h, end in zip(headings, ends, strict=True) if h[1] == title)
    return text


def table(text: str) -> Iterator[list[str]]:
    """Return the rows of the first table in a text, without its headings."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            return
        yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
