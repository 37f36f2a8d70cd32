"""Edits of an input as plain data, so that failures can be stored, read, shrunk and repeated.

An edit of a tree is `[action, path, …]`: `set` a value, `drop` it, `rename` its key, `copy` another path's value there,
`repeat` an item a number of times. An edit of bytes is `[action, start, …]`: `put` bytes (in hex) over existing ones,
`insert` bytes, `cut` up to an end, `repeat` a range a number of times. Edits of removed parts are skipped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

Edit = Sequence[Any]
Tree = Any
Path = Sequence[str | int]
MAX_REPEATS = 5000


def edit_tree(tree: Tree, edit: Edit) -> None:
    """Change a tree of dicts and lists in place."""
    action, path, *values = edit
    try:
        inner = at(tree, path[:-1])
        key = path[-1]
        match action:
            case "set":
                _set(inner, key, copy.deepcopy(values[0]))
            case "drop":
                del inner[key]
            case "rename":
                inner[values[0]] = inner.pop(key)
            case "copy":
                _set(inner, key, copy.deepcopy(at(tree, values[0])))
            case "repeat":
                inner[key:key] = [inner[key]] * min(values[0], MAX_REPEATS)
    except (LookupError, TypeError, AttributeError):
        return


def _set(inner: Any, key: Any, value: Any) -> None:
    if isinstance(inner, list) and key == len(inner):
        inner.append(value)
    elif isinstance(inner, dict | list):
        inner[key] = value


def at(tree: Tree, path: Path) -> Any:
    """Return the value at a path. Raises LookupError or TypeError where there is none."""
    for step in path:
        tree = tree[step]
    return tree


def places(tree: Tree, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Return every value below a tree, with its path."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key), value
        yield from places(value, (*path, key))


def edit_bytes(content: bytes, edit: Edit) -> bytes:
    """Return the bytes after an edit."""
    action, start, value, *more = edit
    match action:
        case "put":
            new = bytes.fromhex(value)
            return content[:start] + new + content[start + len(new) :] if start <= len(content) else content
        case "insert":
            return content[:start] + bytes.fromhex(value) + content[start:]
        case "cut":
            return content[:start] + content[value:]
        case "repeat":
            return content[:value] + content[start:value] * min(more[0], MAX_REPEATS) + content[value:]
    raise ValueError(f"no such action: {action}")
