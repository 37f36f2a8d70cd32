"""Calls files: human-editable YAML that several processes may add to. Comments are preserved."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aot_runtime.errors import CallsFileError
from aot_runtime.folders import write_file
from aot_runtime.regular_files import read_regular
from aot_runtime.texts import shown

from .entries import Entry, entry_lines

MAX_BYTES = 1 << 20
"""Maximum size of a calls file, in bytes."""
MAX_VALUES = 1 << 18
"""Maximum number of values in a calls file, with aliases expanded."""
MAX_DEPTH = 20
"""Maximum number of levels of nesting."""
LONGEST_NUMBER = 100
"""Maximum number of digits of a number."""
TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "merge"))
"""YAML tags that are allowed."""
LOCK_TIMEOUT_S = 60
"""Seconds to wait for another process that writes the file."""
HEAD = "# Calls that a program makes; `aotbuild --for` builds the variants that they get.\n"


def check(path: Path) -> None:
    """Raise `CallsFileError` if `merge` would fail."""
    _read(path)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CallsFileError(f"{path}: folder {path.parent} does not exist or is not writable")


def merge(path: Path, entries: Iterable[Entry]) -> None:
    """Add calls to a file. Known calls have their counts increased; new ones are appended. Raises `CallsFileError`.

    The file is replaced atomically: readers see the old or the new content.
    """
    yaml, target = _yaml(path), path.resolve()
    try:
        with _locked(target):
            data = _read(target)
            text = _merged(yaml, data, entries)
            write_file(target, [text.encode()])
    except OSError as error:
        raise CallsFileError(f"{path}: cannot be written: {error.strerror}") from None


def _merged(yaml: Any, data: Any, entries: Iterable[Entry]) -> str:
    known = {_key(entry): entry for entry in data["calls"]}
    if not known:
        data["calls"].fa.set_block_style()
    for entry in entries:
        there = known.get(_key(entry))
        if there is not None:
            there["count"] = there.get("count", 1) + entry["count"]
        else:
            data["calls"] += yaml.load("\n".join(entry_lines(_in_order(entry))))
    text = io.StringIO()
    yaml.dump(data, text)
    return text.getvalue()


def _in_order(entry: Entry) -> Entry:
    return {key: entry[key] for key in ("bundle", "op", "count")} | entry


def _key(entry: Entry) -> str:
    return json.dumps({key: value for key, value in entry.items() if key != "count"}, sort_keys=True, default=str)


def _read(path: Path) -> Any:
    from ruamel.yaml.error import MarkedYAMLError

    yaml = _yaml(path)
    try:
        data = yaml.load(_content(path))
    except CallsFileError:
        raise
    except FileNotFoundError:
        data = None
    except OSError as error:
        raise CallsFileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CallsFileError(f"{path}: cannot be read: it is not UTF-8 text") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise CallsFileError(f"{place}: not valid YAML: {error.problem}") from None
    except Exception as error:  # ruamel.yaml raises many types
        raise CallsFileError(f"{path}: not valid YAML: {error}") from None
    if data is None:
        return yaml.load(f"{HEAD}calls: []\n")
    _hold_to_form(path, data)
    return data


def _content(path: Path) -> str:
    content = read_regular(path, MAX_BYTES)
    if len(content) > MAX_BYTES:
        raise CallsFileError(f"{path}: it has more than {MAX_BYTES} bytes")
    return content.decode("utf-8-sig")


def _check_node(path: Path, root: Any, resolver: Any) -> None:
    """Raise `CallsFileError` for YAML features that calls do not need.

    These are keys that are not strings, tags, dates, recursive aliases, and aliases that blow up a small file.
    """
    from ruamel.yaml.nodes import MappingNode, ScalarNode

    sizes: dict[int, tuple[int, int] | None] = {}

    def size_of(node: Any) -> tuple[int, int]:
        """Return (values, levels) of a node. An alias comes after its anchor, so its size is known."""
        if id(node) in sizes:
            if (known := sizes[id(node)]) is None:
                raise fault(node, "it is a part of itself")
            return known
        sizes[id(node)] = None
        if text := scalar_fault(node) if isinstance(node, ScalarNode) else collection_fault(node):
            raise fault(node, text)
        pairs = node.value if isinstance(node, MappingNode) else ()
        parts = [part for pair in pairs for part in pair]
        if not isinstance(node, ScalarNode | MappingNode):
            parts = node.value
        below = [size_of(part) for part in parts]
        count, levels = 1 + sum(size for size, _ in below), 1 + max((level for _, level in below), default=0)
        if count > MAX_VALUES or levels > MAX_DEPTH:
            raise fault(node, f"more than {MAX_VALUES} values, or {MAX_DEPTH} levels, with aliases expanded")
        sizes[id(node)] = count, levels
        return count, levels

    def scalar_fault(node: Any) -> str:
        plain, tag = node.style is None, str(node.tag)
        if tag != str(resolver.resolve(ScalarNode, node.value, (plain, not plain))) or tag not in TAGS:
            return f"{shown(node.value)} is not a string, number, true, false or null"
        too_long = tag.endswith(":int") and len(node.value) > LONGEST_NUMBER
        return f"a number of more than {LONGEST_NUMBER} digits" if too_long else ""

    def collection_fault(node: Any) -> str:
        if str(node.tag) != str(resolver.resolve(type(node), None, True)):
            return f"the tag {shown(str(node.tag))} is not supported"
        keys = [key for key, _ in node.value] if isinstance(node, MappingNode) else []
        is_text = all(isinstance(key, ScalarNode) and str(key.tag).endswith((":str", ":merge")) for key in keys)
        return "" if is_text else "a key is not a string"

    def fault(node: Any, text: str) -> CallsFileError:
        return CallsFileError(f"{path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}: {text}")

    size_of(root)


def _hold_to_form(path: Path, data: Any) -> None:
    """Raise `CallsFileError` for a file that is not a calls file, to avoid overwriting it."""
    if not isinstance(data, dict) or [*data] != ["calls"] or not isinstance(data["calls"], list):
        raise CallsFileError(f"{path}: not a calls file, which has a single key, `calls`, with a list")
    calls: Any = data["calls"]
    for position, entry in enumerate(calls):
        place = f"{path}:{calls.lc.item(position)[0] + 1}"
        if not isinstance(entry, dict):
            raise CallsFileError(f"{place}: a call is a mapping (given: {shown(entry)})")
        count = entry.get("count", 1)
        if type(count) is not int or count < 1:
            raise CallsFileError(f"{place}: `count` is a number from 1 on (given: {shown(count)})")


def _yaml(path: Path) -> Any:
    try:
        import filelock  # noqa: F401
        from ruamel.yaml import YAML
        from ruamel.yaml.constructor import RoundTripConstructor
    except ImportError as error:
        raise CallsFileError(
            f"{error}; a calls file needs the extra `record`: pip install 'aot-runtime[record]'"
        ) from None

    class Checked(RoundTripConstructor):
        def construct_document(self, node: Any) -> Any:
            _check_node(path, node, self.resolver)
            return super().construct_document(node)

    yaml = YAML()
    yaml.Constructor = Checked
    yaml.preserve_quotes = True
    yaml.width = 1 << 16
    yaml.max_depth = MAX_DEPTH
    return yaml


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise CallsFileError(f"{path}: another process has held its lock for {LOCK_TIMEOUT_S} s") from None
