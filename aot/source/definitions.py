"""Definitions of functions: the function itself, then its decorators one by one, as far as they can be had."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aot.errors import described, is_interrupt

Evaluate = Callable[[ast.expr], Any]
Execute = Callable[[ast.stmt, bool], Any]
"""Runs a definition, and returns what it defines; whether its annotations stay text."""


@dataclass
class Definition:
    """What a `def` statement defines.

    Attributes:
        value: the function with the decorators up to the one that makes a jit function of it; with all where none does.
        outer: the decorators around that, from the innermost.
    """

    value: Any
    outer: tuple[ast.expr, ...] = ()


class Unavailable:
    """The default of a parameter that could not be evaluated."""

    def __init__(self, expression: ast.expr, error: BaseException):
        self._text, self._error = ast.unparse(expression), error

    def __repr__(self) -> str:
        return f"{self._text} ({described(self._error)})"


def define(node: ast.FunctionDef, evaluate: Evaluate, execute: Execute, namespace: dict[str, Any]) -> Definition:
    """Run a definition. Raises what its text raises, annotations and defaults aside.

    Args:
        namespace: of the module.
    """
    function = _function(node, evaluate, execute, namespace)
    decorators = list(reversed(node.decorator_list))
    while decorators and not is_jit(function):
        decorator = decorators.pop(0)
        try:
            function = evaluate(decorator)(function)
        except BaseException as error:
            if is_interrupt(error) or _called(decorator) != "jit":
                raise
            function = _jit(decorator, evaluate)(function)
    return Definition(function, tuple(decorators))


def is_jit(value: Any) -> bool:
    from triton.runtime.jit import JITCallable

    return isinstance(value, JITCallable)


def is_jit_text(node: ast.AST) -> bool:
    """Whether a definition says of itself that it is a jit function."""
    return isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(item) for item in node.decorator_list)


def is_tuner(decorator: ast.expr) -> bool:
    """Whether a decorator is, by its name, `triton.autotune`, `triton.heuristics`, or one that does as they do."""
    return "tune" in _called(decorator) or _called(decorator) == "heuristics"


def _function(node: ast.FunctionDef, evaluate: Evaluate, execute: Execute, namespace: dict[str, Any]) -> Any:
    """The function without its decorators, though it begins at their line: Triton hashes that. Where annotations or
    defaults cannot be evaluated, annotations stay text, and such a default says so if it is used."""
    bare = copy.copy(node)
    kept = ast.Name(_KEEP, ast.Load())
    bare.decorator_list = [ast.copy_location(kept, item) for item in node.decorator_list[:1]]
    namespace[_KEEP] = lambda function: function
    try:
        return execute(bare, False)
    except BaseException as error:
        if is_interrupt(error):
            raise
        bare.args = _with_defaults(node.args, evaluate, namespace)
        return execute(bare, True)
    finally:
        for name in [name for name in namespace if name.startswith(_KEEP)]:
            del namespace[name]


_KEEP = "<kept>"
"""The name of what a definition is run with; none that a file can write."""


def _with_defaults(arguments: ast.arguments, evaluate: Evaluate, namespace: dict[str, Any]) -> ast.arguments:
    """Arguments whose defaults are what could be evaluated, and words where it could not."""

    def default(expression: ast.expr | None) -> ast.expr | None:
        if expression is None:
            return None
        name = f"{_KEEP}{len(namespace)}"
        try:
            namespace[name] = evaluate(expression)
        except BaseException as error:
            if is_interrupt(error):
                raise
            namespace[name] = Unavailable(expression, error)
        return ast.copy_location(ast.Name(name, ast.Load()), expression)

    found = copy.copy(arguments)
    found.defaults = [item for item in map(default, arguments.defaults) if item]
    found.kw_defaults = [default(item) for item in arguments.kw_defaults]
    return found


def _called(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return str(getattr(called, "attr", getattr(called, "id", "")))


def _jit(decorator: ast.expr, evaluate: Evaluate) -> Callable[[Any], Any]:
    """Triton's own decorator for one that is called `jit` and cannot be had, with those of its options that can."""
    from triton.runtime.jit import jit

    options: dict[str, Any] = {}
    for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
        if keyword.arg in _JIT_OPTIONS:
            try:
                options[keyword.arg] = evaluate(keyword.value)
            except BaseException as error:
                if is_interrupt(error) or keyword.arg == "noinline":
                    raise
    if "gluon" not in ast.unparse(decorator):
        return jit(**options)
    from triton.experimental import gluon

    return gluon.jit(**options)


_JIT_OPTIONS = (
    *("version", "repr", "launch_metadata", "do_not_specialize"),
    *("do_not_specialize_on_alignment", "debug", "noinline"),
)
