"""Check that the pages of a built site load nothing from other hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_ELSEWHERE = re.compile(r"^(?:https?:)?//")
_IN_STYLES = re.compile(r"(?:@import\s*|url\(\s*)[\"']?((?:https?:)?//[^\"')\s]+)")


class _Loads(HTMLParser):
    """Collects the addresses that a browser fetches by itself: all except links that a person follows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given.get("href") or "")
        elif tag != "a":
            self.found.append(given.get("src") or "")


def foreign_loads(site: Path) -> Iterator[str]:
    """A fault for each address of another host that a page, a style sheet or a picture of a site would load."""
    for path in sorted(site.rglob("*")):
        if path.suffix not in (".html", ".css", ".svg"):
            continue
        text = path.read_text(encoding="utf-8")
        found = _IN_STYLES.findall(text)
        if path.suffix == ".html":
            parser = _Loads()
            parser.feed(text)
            found += parser.found
        yield from (f"{path.relative_to(site)} would load {url}" for url in found if _ELSEWHERE.match(url))
