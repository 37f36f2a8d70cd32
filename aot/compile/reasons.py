"""Why a compilation failed, in a few lines: out of Triton's exceptions and what its passes print."""

from __future__ import annotations

import re
import traceback
from typing import Any

from .errors import CompileError, described


def compile_error(error: BaseException, log: str, place: str) -> CompileError:
    """Why an exception ended a compilation.

    Args:
        log: what the compiler printed.
        place: the innermost line of the project's own that ran, in parentheses; it is told of what is no `Exception`.
    """
    trace = "".join(traceback.format_exception(error)) + (f"\nCompiler output:\n{log}" if log else "")
    if not isinstance(error, Exception):
        return CompileError(f"{described(error)}{place}", trace)
    return CompileError(_front_end_reason(error, log) or _back_end_reason(error, log), trace)


def _front_end_reason(error: BaseException, log: str) -> str | None:
    """Message of a Triton `CompilationError`, and the source line of the innermost function that it passed through, if
    any is not of Triton's own library."""
    from triton.compiler.errors import CompilationError

    errors: list[Any] = []
    cause: BaseException | None = error
    while isinstance(cause, CompilationError):
        errors.append(cause)
        cause = cause.__cause__
    if not errors:
        return None
    place = next((found for found in reversed(errors) if not _is_library(found)), errors[-1])
    innermost = errors[-1]
    message = innermost.error_message or (str(innermost.__cause__) if innermost.__cause__ else "")
    return _located(place, message or "\n    ".join(_diagnostics(log)) or type(innermost).__name__)


def _owner(error: Any) -> Any:
    """The function whose text an error is in, if any."""
    from triton.runtime.jit import _triton_jit_function_registry

    return next((kernel for kernel in _triton_jit_function_registry.values() if kernel.src == error.src), None)


def _is_library(error: Any) -> bool:
    owner = _owner(error)
    return owner is not None and owner.__module__.startswith("triton.")


def _located(error: Any, message: str) -> str:
    line = getattr(error.node, "lineno", None)
    if error.src is None or line is None:
        return message
    text = error.src.split("\n")[line - 1].strip()
    owner = _owner(error)
    where = f"{owner.file_name}:{owner.def_file_line_number + line - 1}" if owner else f"line {line}"
    return f"{where}: {message}\n    {text}"


def _back_end_reason(error: Exception, log: str) -> str:
    """First line of an exception from a compiler pass, and the diagnostics that the pass printed; where these have
    places, they are what is said."""
    found = _diagnostics(f"{error}\n{log}")
    placed = list(dict.fromkeys(f"{line[1]}: {line[2]}" for line in map(_PLACED.match, found) if line))
    rest = [line for line in found if not _PLACED.match(line)]
    if placed:
        return "\n    ".join([*placed[:4], *(line for line in rest if line.startswith(_WHY))])
    summary = str(error).strip().partition("\n")[0] or type(error).__name__
    return "\n    ".join([summary, *rest[:4]])


_PLACED = re.compile(r"(\S+:\d+):\d+: error: (.*)")
_WHY = "Layout has "
"""How a diagnostic's second line begins that says what is wrong with a layout."""


def _diagnostics(text: str) -> list[str]:
    """The lines of a compiler's output that say what is wrong."""
    found = [
        line.strip()
        for line in text.splitlines()
        if re.search(r"\b(error|fatal)\b\s*:", line, re.IGNORECASE) or line.startswith(_WHY)
    ]
    kept = [line.removeprefix("<unknown>:0: error: ") for line in found if "Failures have been detected" not in line]
    return [_shortened(line) for line in dict.fromkeys(kept)]


def _shortened(line: str) -> str:
    """Compilers print whole types and modules."""
    return line if len(line) <= 300 else f"{line[:300]} …"
