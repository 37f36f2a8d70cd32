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
    return CompileError(_front_end_reason(error) or _back_end_reason(error, log), trace)


def _front_end_reason(error: BaseException) -> str | None:
    """Message and source line of a Triton `CompilationError`, of the innermost function that it passed through."""
    from triton.compiler.errors import CompilationError

    if not isinstance(error, CompilationError):
        return None
    innermost: Any = error
    while isinstance(innermost.__cause__, CompilationError):
        innermost = innermost.__cause__
    return _located(innermost)


def _located(error: Any) -> str:
    from triton.runtime.jit import _triton_jit_function_registry

    message = error.error_message or (str(error.__cause__) if error.__cause__ else type(error).__name__)
    line = getattr(error.node, "lineno", None)
    if error.src is None or line is None:
        return message
    text = error.src.split("\n")[line - 1].strip()
    owner = next((kernel for kernel in _triton_jit_function_registry.values() if kernel.src == error.src), None)
    where = f"{owner.file_name}:{owner.def_file_line_number + line - 1}" if owner else f"line {line}"
    return f"{where}: {message}\n    {text}"


def _back_end_reason(error: Exception, log: str) -> str:
    """First line of an exception from a compiler pass, and the diagnostics that the pass printed."""
    text = f"{error}\n{log}"
    found = [line.strip() for line in text.splitlines() if re.search(r"\b(error|fatal)\b\s*:", line, re.IGNORECASE)]
    details = [line for line in dict.fromkeys(found) if "Failures have been detected" not in line]
    summary = str(error).strip().partition("\n")[0] or type(error).__name__
    return "\n    ".join([summary, *details[:4]])
