"""Explain a failed compilation in a few lines, from Triton's exceptions and the output of its passes."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aot.errors import CompileError, described

from .diagnostics import MAX_TOLD, Diagnostic, foremost
from .foreign import ForeignCode


@dataclass(frozen=True)
class Evidence:
    """Evidence of a failed compilation.

    Attributes:
        kernel: the kernel that was compiled, in words.
        printed: output of the compiler.
        found: errors in the output and in the exception.
        foreign: the kernel's inline assembly and calls of other libraries.
    """

    kernel: str
    printed: str = ""
    found: Sequence[Diagnostic] = ()
    foreign: Sequence[ForeignCode] = ()


def compile_error(error: BaseException, evidence: Evidence, place: str) -> CompileError:
    """Make the error that explains why an exception ended a compilation.

    Args:
        place: the innermost line of the project that ran, in parentheses; used for exceptions that are not
            `Exception`s.
    """
    printed = f"\nCompiler output:\n{evidence.printed}" if evidence.printed else ""
    trace = "".join(traceback.format_exception(error)) + printed
    if not isinstance(error, Exception):
        return CompileError(f"{described(error)}{place}", trace)
    return CompileError(_front_end_reason(error, evidence) or _back_end_reason(error, evidence), trace)


def _front_end_reason(error: BaseException, evidence: Evidence) -> str | None:
    """Return the message of a Triton `CompilationError`, with the source line of the innermost function that is not in
    Triton's own library.
    """
    from triton.compiler.errors import CompilationError

    chain: list[Any] = []
    cause: BaseException | None = error
    while isinstance(cause, CompilationError):
        chain.append(cause)
        cause = cause.__cause__
    if not chain:
        return None
    place = next((found for found in reversed(chain) if not _is_library(found)), chain[-1])
    innermost = chain[-1]
    message = innermost.error_message or (str(innermost.__cause__) if innermost.__cause__ else "")
    printed = "\n    ".join(item.message for item in foremost(evidence.found))
    return _located(place, message or printed or type(innermost).__name__)


def _functions() -> Iterable[Any]:
    from triton.runtime.jit import _triton_jit_function_registry

    return [*_triton_jit_function_registry.values()]


def _owner(error: Any) -> Any:
    """Return the function that contains the line of an error, if any.

    For a call that is not allowed, Triton reports the position of the call with the text of the called function. The
    caller is the function whose text has the call at that position.
    """
    found = next((kernel for kernel in _functions() if kernel.src == error.src), None)
    if error.src is None or _has_node(error.src, error.node):
        return found
    return next((kernel for kernel in _functions() if _has_node(kernel.src, error.node)), found)


def _has_node(source: str, node: Any) -> bool:
    with suppress(SyntaxError):
        place, form = _position(node), ast.dump(node)
        return any(_position(one) == place and ast.dump(one) == form for one in ast.walk(ast.parse(source)))
    return False


def _position(node: Any) -> tuple[int | None, int | None]:
    return getattr(node, "lineno", None), getattr(node, "col_offset", None)


def _is_library(error: Any) -> bool:
    owner = _owner(error)
    return owner is not None and owner.__module__.startswith("triton.")


def _located(error: Any, message: str) -> str:
    number = getattr(error.node, "lineno", None)
    if error.src is None or number is None:
        return message
    owner = _owner(error)
    lines = (owner.src if owner else error.src).split("\n")
    where = f"{owner.file_name}:{owner.def_file_line_number + number - 1}" if owner else f"line {number}"
    text = lines[number - 1].strip() if number <= len(lines) else ""
    return "\n    ".join(filter(None, (f"{where}: {message}", text)))


def _back_end_reason(error: Exception, evidence: Evidence) -> str:
    summary = str(error).strip().partition("\n")[0] or type(error).__name__
    faults = [_at(code.fault, code) for code in evidence.foreign if code.fault]
    told = faults or [_told(item, evidence.foreign) for item in foremost(evidence.found) or [Diagnostic(summary)]]
    lines = list(dict.fromkeys(text for text, _ in told))
    if not any(placed for _, placed in told):
        lines = [f"{evidence.kernel}: {lines[0]}", *lines[1:], *map(str, evidence.foreign[:MAX_TOLD])]
    return "\n    ".join(lines)


def _told(item: Diagnostic, foreign: Sequence[ForeignCode]) -> tuple[str, bool]:
    """Return a diagnostic's text, and True if it names a place in the kernel. Compilers do not know the place of
    foreign code.
    """
    code = next((code for code in foreign if code.is_of(item.message)), None)
    return _at(item.message, code) if code and not item.place else (str(item), bool(item.place))


def _at(message: str, code: ForeignCode) -> tuple[str, bool]:
    return (f"{code.place}: {message}\n    {code.told}", True) if code.place else (f"{message}\n    {code}", False)
