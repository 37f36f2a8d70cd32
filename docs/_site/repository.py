"""Links between files of the repository, as links between pages of the site."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_CODE = re.compile(r"^```.*?^```$|`[^`]*`", re.MULTILINE | re.DOTALL)


def _links(markdown: str) -> Iterator[re.Match[str]]:
    """Relative links to files, none of those in code."""
    yield from _LINK.finditer(_CODE.sub(lambda match: "x" * len(match[0]), markdown))


def linked_files(root: Path, pages: Mapping[Path, str]) -> list[Path]:
    """Files outside docs/ that pages link to and that are no pages themselves, in order of their paths."""
    found = set()
    for source in pages:
        if source.exists():
            for match in _links(source.read_text(encoding="utf-8")):
                path = Path(os.path.normpath(source.parent / match[1]))
                if path not in pages and path.is_file() and not path.is_relative_to(root / "docs"):
                    found.add(path)
    return sorted(found)


def site_links(markdown: str, source: Path, page: str, root: Path, pages: Mapping[Path, str]) -> str:
    """Return the text of a page, with its links changed to addresses of the site.

    Args:
        source: the file that the text is from; its links start there.
        page: the page's path in the site.
        pages: file → its page's path in the site.
    """
    done, end = [], 0
    for match in _links(markdown):
        path = Path(os.path.normpath(source.parent / match[1]))
        if path in pages:
            target = pages[path]
        elif path.is_relative_to(root / "docs"):
            target = str(path.relative_to(root / "docs"))
        else:
            target = f"files/{path.relative_to(root)}"
        done += [markdown[end : match.start()], os.path.relpath(target, Path(page).parent), match[2] or ""]
        end = match.end()
    return "".join([*done, markdown[end:]])
