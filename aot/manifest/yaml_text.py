"""Text of configs in YAML files; equal configs have equal text."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 120
_PLAIN = re.compile(r"[A-Za-z_][\w./=-]*( [A-Za-z_][\w./=-]*)*")
_RESERVED = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def flow(value: Any) -> str:
    """Write a value in flow style, on one line."""
    match value:
        case Mapping():
            return f"{{{', '.join(f'{flow(key)}: {flow(item)}' for key, item in value.items())}}}"
        case str():
            plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
            return value if plain else json.dumps(value, ensure_ascii=False)
        case Sequence():
            return f"[{', '.join(map(flow, value))}]"
        case float():
            return repr(value) if "." in repr(value) else repr(value).replace("e", ".0e")
        case _:
            return json.dumps(value)


def flow_mapping(value: Mapping[str, Any], column: int) -> str:
    """Write a mapping in flow style from a column on, with as many members on a line as fit."""
    pieces = [f"{flow(key)}: {flow(item)}" for key, item in value.items()]
    lines: list[str] = []
    room = WIDTH - column - 4  # for what may have to stand behind it
    for number, piece in enumerate(pieces):
        text = piece + ("," if number < len(pieces) - 1 else "")
        if lines and len(lines[-1]) + 1 + len(text) <= room:
            lines[-1] += f" {text}"
        else:
            # A line may end at any space: within quotes, and within text without them, it stands for one.
            lines += textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ")
    return "{" + f"\n{' ' * (column + 1)}".join(lines) + "}"


def given(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping without its empty values."""
    return {key: value for key, value in mapping.items() if value not in ("", None, {}, [])}
