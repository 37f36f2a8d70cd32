"""Names that a function's source reads, found by a scan of its text: `ast` takes ten times as long."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

_TEXT = re.compile(  # comments and strings
    r"""#[^\n]*|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''|\"\"\"[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*\"\"\""""
    r"""|'[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*\"""",
    re.DOTALL,
)
_STRING = "\0"  # takes the place of a string, in front of the expressions in it
_PATH = re.compile(rf"[\w.]+\b(?!{_STRING})")
_PATH_READ = re.compile(  # not keywords of arguments, nor variables that are set; but annotations of these
    rf"[\w.]*\.[\w.]*|\w+\b(?!{_STRING}|\s*=(?!=))|(?<=: )\w+"
)
_END_OF_HEADER = re.compile(r"\)\s*(?:->[^:]*)?:")
_EXPRESSION = re.compile(r"\{([^{}]*)")  # in an f-string


def names_read(source: str, parameters: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Return the names in the definition of a function, each with the attributes read from it.

    Local variables and keywords are among them, and a parameter if the header reads a variable of its name.
    """
    header, body = _header_and_body(source)
    in_header = Counter(_PATH.findall(header))
    found = _by_name([*in_header, *set(_PATH_READ.findall(body))])
    return {name: read for name, read in found.items() if name not in parameters or in_header[name] > 1}


def names_in_defaults(source: str, function: Any) -> dict[str, dict[str, Any]]:
    """Return the names that the header of a function with defaults reads, each with the attributes read from it."""
    if not function.__defaults__ and not function.__kwdefaults__:
        return {}
    return _by_name(_PATH.findall(_header_and_body(source)[0]))


def _header_and_body(source: str) -> tuple[str, str]:
    code = _TEXT.sub(_expressions, source)
    start, end = code.index("("), _END_OF_HEADER.search(code)
    body = end.end() if end else start
    return code[start:body], code[body:]


def _by_name(paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        if not path[0].isdigit() and path[0] != ".":
            attributes = found
            for name in filter(None, path.split(".")):
                attributes = attributes.setdefault(name, {})
    return found


def _expressions(text: re.Match[str]) -> str:
    """Return the replacement of a comment or string: the expressions of a formatted string, else nothing."""
    if text.group()[0] == "#":
        return ""
    prefix = text.string[max(0, text.start() - 2) : text.start()].lower()
    is_formatted = prefix[-1:] in ("f", "t") or prefix in ("fr", "tr")
    return " ".join([_STRING, *(_EXPRESSION.findall(text.group()) if is_formatted else ()), ""])
