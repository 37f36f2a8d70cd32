"""Output of both commands: lines, JSON, errors, status, logs and warnings, all escaped by `aot_runtime.terminal`."""

from __future__ import annotations

import json
import logging
import math
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from aot_runtime.errors import AotError
from aot_runtime.terminal import write_lines, write_pieces, write_status
from aot_runtime.texts import escaped


@dataclass(frozen=True)
class Console:
    """Writer of progress lines, to standard output or standard error. A quiet one writes nothing."""

    err: bool = False
    quiet: bool = False

    @property
    def is_terminal(self) -> bool:
        return (sys.stderr if self.err else sys.stdout).isatty()

    def print(self, *lines: str) -> None:
        """Write lines, unless quiet."""
        if not self.quiet:
            write_lines(lines, self.err)

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show a status in the last line of the terminal during a context. Does nothing if not a terminal."""
        shown = self.is_terminal and not self.quiet
        if shown:
            write_status(text)
        try:
            yield
        finally:
            if shown:
                write_status("")


def write(*lines: str, err: bool = False) -> None:
    """Write lines to standard output, or to standard error."""
    write_lines(lines, err)


def write_json(data: Any) -> None:
    """Write data as JSON to standard output. Numbers that are not finite become null.

    Iterators, at the top or as values of a top-level mapping, are written as arrays, piece by piece. The output is
    ASCII, so text in it cannot control the terminal.
    """
    write_pieces(json_pieces(data), False)
    write_pieces("\n", False)


def write_error(program: str, *lines: str) -> None:
    """Write an error to standard error. Lines after the first are indented."""
    first, *more = lines or ("",)
    write(f"{program}: error: {first}", *(f"  {line}" for line in more), err=True)


def error_lines(error: BaseException) -> tuple[str, ...]:
    """Return the lines of an error and its notes."""
    lines = error.lines if isinstance(error, AotError) else (str(error),)
    return (*lines, *getattr(error, "__notes__", ()))


def text_block(text: str, margin: str = "") -> list[str]:
    """Split a multi-line text, such as a compiler's message, and prefix each line with a margin."""
    return [f"{margin}{line}" for line in text.rstrip(" \n").split("\n")]


def json_pieces(data: Any, margin: str = "\n") -> Iterator[str]:
    """Yield JSON in pieces, indented by one space per level. `margin` is a line break and the current indentation."""
    if isinstance(data, Iterator):
        yield from _enclosed("[]", (("", value) for value in data), margin)
    elif isinstance(data, Mapping) and any(isinstance(value, Iterator) for value in data.values()):
        yield from _enclosed("{}", ((f"{json.dumps(key)}: ", value) for key, value in data.items()), margin)
    else:
        yield _json(data).replace("\n", margin)


def _enclosed(brackets: str, items: Iterable[tuple[str, Any]], margin: str) -> Iterator[str]:
    opening = brackets[0]
    for name, value in items:
        yield f"{opening}{margin} {name}"
        yield from json_pieces(value, f"{margin} ")
        opening = ","
    yield brackets if opening != "," else f"{margin}{brackets[1]}"


def _json(data: Any) -> str:
    try:
        return json.dumps(data, indent=1, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(data), indent=1)


def _finite(data: Any) -> Any:
    """Replace numbers that JSON lacks by None."""
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [*map(_finite, data)]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def log_to_stderr(program: str, level: int) -> None:
    """Log messages of aotbuild and its runtime to standard error, prefixed with the command's name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_EscapedLines(program))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("aotbuild").setLevel(level)


class _EscapedLines(logging.Formatter):
    """Formats a record as one escaped line, followed by an indented traceback, if any."""

    def __init__(self, program: str):
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        lines = [f"{self._program}: {record.getMessage()}", *(text_block(trace, "  ") if trace else ())]
        return "\n".join(map(escaped, lines))


def guard(program: str) -> None:
    """Route Python's own output, warnings and final tracebacks, through this module."""

    def show_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        write(f"{program}: {filename}:{lineno}: {category.__name__}: {message}", err=True)

    warnings.showwarning = show_warning
    sys.excepthook = write_traceback


def write_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write a traceback to standard error."""
    for text in traceback.format_exception(kind, error, trace):
        write(*text_block(text), err=True)
