"""Calls files: YAML that a person reads and edits, and that several processes add to. Comments stay where they are."""

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
from aot_runtime.texts import shown

from .entries import Entry, entry_lines

MAX_BYTES = 1 << 20
"""Size of a calls file."""
LOCK_TIMEOUT_S = 60
"""Seconds to wait for another process that writes the file."""
HEAD = "# Calls that a program makes; `aotbuild --for` builds the variants that they get.\n"


def check(path: Path) -> None:
    """Raise `CallsFileError` where `merge` would now."""
    _yaml()
    _read(path)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CallsFileError(f"{path}: there is no folder {path.parent} that can be written to")


def merge(path: Path, entries: Iterable[Entry]) -> None:
    """Add calls to a file: of those that it has the counts, the others behind them. Raises `CallsFileError`.

    The file is replaced at once: whoever reads it meanwhile sees it as it was or as it will be.
    """
    yaml, target = _yaml(), path.resolve()
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
    """With the count behind what is called."""
    return {key: entry[key] for key in ("bundle", "op", "count")} | entry


def _key(entry: Entry) -> str:
    """The same text for what is the same call."""
    return json.dumps({key: value for key, value in entry.items() if key != "count"}, sort_keys=True, default=str)


def _read(path: Path) -> Any:
    """The content of a calls file; that of an empty one where there is none."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = _yaml()
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise CallsFileError(f"{path}: it has more than {MAX_BYTES} bytes")
        data = yaml.load(content.decode("utf-8-sig"))
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
    except (YAMLError, RecursionError) as error:
        raise CallsFileError(f"{path}: not valid YAML: {error}") from None
    if data is None:
        return yaml.load(f"{HEAD}calls: []\n")
    _hold_to_form(path, data)
    return data


def _hold_to_form(path: Path, data: Any) -> None:
    """Raise `CallsFileError` where something else than a calls file would be written over."""
    if not isinstance(data, dict) or [*data] != ["calls"] or not isinstance(data["calls"], list):
        raise CallsFileError(f"{path}: it is no calls file, which has one key, `calls`, with a list")
    calls: Any = data["calls"]
    for position, entry in enumerate(calls):
        place = f"{path}:{calls.lc.item(position)[0] + 1}"
        if not isinstance(entry, dict):
            raise CallsFileError(f"{place}: a call is a mapping (given: {shown(entry)})")
        count = entry.get("count", 1)
        if type(count) is not int or count < 1:
            raise CallsFileError(f"{place}: `count` is a number from 1 on (given: {shown(count)})")


def _yaml() -> Any:
    try:
        import filelock  # noqa: F401
        from ruamel.yaml import YAML
    except ImportError as error:
        raise CallsFileError(
            f"{error}; a calls file needs the extra `record`: pip install 'aotbuild[record]'"
        ) from None
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 16
    yaml.max_depth = 20
    return yaml


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise CallsFileError(f"{path}: another process has held its lock for {LOCK_TIMEOUT_S} s") from None
