"""Sources of a capture file that has hashes in their place (`aotbuild capture --no-source`)."""

from __future__ import annotations

import hashlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from aot_capture.records import Capture, Function
from aot_runtime.regular_files import read_regular

MAX_SOURCE_BYTES = 16 << 20
_DEFINITION = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)


def with_sources(capture: Capture, folder: Path | None) -> Capture:
    """Return the capture with the sources that this machine has, each of the captured hash.

    Args:
        folder: where the program's files lie. Defaults to where they were captured.
    """
    found = {name: _with_source(function, folder) for name, function in capture.functions.items()}
    return replace(capture, functions=found)


def _with_source(function: Function, folder: Path | None) -> Function:
    if function.source is not None:
        return function
    for path in _places(function.file, folder):
        try:
            lines = read_regular(path, MAX_SOURCE_BYTES).decode().splitlines(keepends=True)
            raw = "".join(inspect.getblock(lines[function.line - 1 :]))
        except (OSError, ValueError, SyntaxError, IndexError):
            continue
        text = textwrap.dedent(raw)
        definition = _DEFINITION.search(text)
        source = text[definition.start() :] if definition else ""
        if hashlib.sha256(source.encode()).hexdigest() == function.source_sha256:
            return replace(function, source=source, raw_source=raw)
    return function


def _places(file: str, folder: Path | None) -> Iterator[Path]:
    """Yield the paths where a file may be, longest suffix of its captured path first."""
    if folder is None:
        yield Path(file)
        return
    parts = [part for part in PurePosixPath(file).parts if part not in ("/", "..")]
    for start in range(len(parts)):
        yield folder.joinpath(*parts[start:])
