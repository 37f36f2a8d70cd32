"""Translate the functions of `@triton.heuristics` into expressions of manifests.

A function is parsed, not run: a `lambda args: …`, or a `def` with a single `return`. `args["N"]` becomes `N`, and
`args["bias_ptr"] is not None` becomes `given(bias_ptr)`.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from aot_runtime.contract.expressions import parse
from aot_runtime.errors import ExpressionError

_FUNCTIONS: Mapping[str, str] = {
    "cdiv": "cdiv",
    "next_power_of_2": "next_pow2",
    "min": "min",
    "max": "max",
    "abs": "abs",
}
_PLAIN = tuple(kind.__name__ for kind in (int, bool, float))
"""Conversions that change no value that a heuristic has."""


class UntranslatableError(ValueError):
    """The function cannot be expressed in the language of manifests."""


@dataclass(frozen=True)
class SourceFunction:
    """A function as its file has it.

    Attributes:
        expression: the translated expression, of the arguments' names; empty if there is none.
        source: text of the function.
        line: its first line in `file`.
        reason: the reason why there is no expression.
    """

    expression: str
    source: str
    file: str
    line: int
    reason: str = ""


def read_function(function: Any) -> SourceFunction:
    """Translate a function of a dict of arguments. Does not raise; see `SourceFunction.reason`."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return SourceFunction("", repr(function), "", 0, "it is not a Python function")
    text = "".join(linecache.getlines(code.co_filename))
    node = _node(text, code)
    if node is None:
        return SourceFunction("", code.co_name, code.co_filename, code.co_firstlineno, "its source cannot be found")
    source = ast.get_source_segment(text, node) or ast.unparse(node)
    place = (source, code.co_filename, node.lineno)
    try:
        return SourceFunction(parse(_translated(node, _values(function))).text, *place)
    except (UntranslatableError, ExpressionError) as error:
        return SourceFunction("", *place, str(error))


def _node(text: str, code: CodeType) -> ast.Lambda | ast.FunctionDef | None:
    """Return the function with this code in its file's text: if a line has several, the one that compiles to it."""
    tree = _parsed(text)
    if tree is None:
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda | ast.FunctionDef)
        and code.co_firstlineno in (node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ())))
        and (getattr(node, "name", "<lambda>") == code.co_name)
    ]
    if len(found) > 1:
        found = [node for node in found if _within(node, code)]
    return found[0] if len(found) == 1 else None


@functools.lru_cache(maxsize=4)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def _within(node: ast.Lambda | ast.FunctionDef, code: CodeType) -> bool:
    body = node.body if isinstance(node, ast.Lambda) else node.body[0]
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    first, last = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    return bool(places) and all(first <= place <= last for place in places)


def _values(function: Any) -> Callable[[str], Any]:
    """Return a look-up of the outer names that a function reads; it gives None for unknown ones."""
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    inner = {name: cell.cell_contents for name, cell in closure}
    return {**function.__globals__, **inner}.get


def _translated(node: ast.Lambda | ast.FunctionDef, scope: Callable[[str], Any]) -> str:
    parameters = [item.arg for item in node.args.args]
    if len(parameters) != 1:
        raise UntranslatableError("it does not take the arguments of a call as a single dict")
    body = node.body
    if isinstance(node, ast.FunctionDef):
        statements = [item for item in node.body if not _is_text(item)]
        if len(statements) != 1 or not isinstance(statements[0], ast.Return) or statements[0].value is None:
            raise UntranslatableError("it is more than a single `return`")
        body = statements[0].value
    assert isinstance(body, ast.expr)
    return translated(body, parameters[0], scope)


def translated(body: ast.expr, arguments: str, scope: Callable[[str], Any]) -> str:
    """Translate a Python expression to the language of manifests. Raises `UntranslatableError`.

    Args:
        arguments: name of the dict of arguments.
        scope: look-up of other names; None for unknown ones.
    """
    return ast.unparse(_Translation(arguments, scope).of(body))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _Translation:
    def __init__(self, arguments: str, scope: Callable[[str], Any]):
        self._arguments, self._scope = arguments, scope

    def of(self, node: ast.expr) -> ast.expr:
        """Translate a Python expression. Raises `UntranslatableError`."""
        if name := self._argument(node):
            return ast.Name(name)
        match node:
            case ast.Constant(value=bool() | int() | float() | str()):
                return node
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
                given: ast.expr = ast.Call(ast.Name("given"), [self._named(left)], [])
                return given if isinstance(op, ast.IsNot) else ast.UnaryOp(ast.Not(), given)
            case ast.Compare(
                left=left, ops=[ast.In() | ast.NotIn() as op], comparators=[ast.Tuple() | ast.List() as of]
            ):
                found = ast.BoolOp(ast.Or(), [ast.Compare(self.of(left), [ast.Eq()], [self.of(x)]) for x in of.elts])
                return found if isinstance(op, ast.In) else ast.UnaryOp(ast.Not(), found)
            case ast.Compare():
                return ast.Compare(self.of(node.left), node.ops, [*map(self.of, node.comparators)])
            case ast.BinOp():
                return ast.BinOp(self.of(node.left), node.op, self.of(node.right))
            case ast.UnaryOp():
                return ast.UnaryOp(node.op, self.of(node.operand))
            case ast.BoolOp():
                return ast.BoolOp(node.op, [*map(self.of, node.values)])
            case ast.IfExp():
                return ast.IfExp(self.of(node.test), self.of(node.body), self.of(node.orelse))
            case ast.Call(func=ast.Attribute(value=owner, attr="stride"), args=[ast.Constant() as dim], keywords=[]):
                return ast.Call(ast.Name("stride"), [self._named(owner), dim], [])
            case ast.Call(func=ast.Attribute(value=owner, attr="element_size"), args=[], keywords=[]):
                return ast.Call(ast.Name("elsize"), [self._named(owner)], [])
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _PLAIN:
                return self.of(argument)
            case ast.Call(func=function, args=arguments, keywords=[]) if self._known(function):
                return ast.Call(ast.Name(self._known(function)), [*map(self.of, arguments)], [])
            case ast.Name() | ast.Attribute():
                return self._constant(node)
        raise UntranslatableError(f"`{ast.unparse(node)}` is not part of the expression language")

    def _argument(self, node: ast.expr) -> str:
        """The argument that `args["X"]` or `args.get("X")` is; empty for anything else."""
        match node:
            case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(name))):
                return name if owner == self._arguments else ""
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr="get"), args=[ast.Constant(value=str(name))]
            ):
                return name if owner == self._arguments else ""
        return ""

    def _named(self, node: ast.expr) -> ast.expr:
        if name := self._argument(node):
            return ast.Name(name)
        raise UntranslatableError(f"`{ast.unparse(node)}` is not an argument")

    def _known(self, function: ast.expr) -> str:
        """The name of a function (`triton.cdiv`, `min`) in the language; empty if it has none."""
        last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return _FUNCTIONS.get(last, "")

    def _constant(self, node: ast.expr) -> ast.expr:
        text = ast.unparse(node)
        name, *attributes = text.split(".")
        value = self._scope(name)
        if value is None:
            raise UntranslatableError(f"`{text}` has no value here")
        for attribute in [*attributes, "value"]:  # the last is of a `tl.constexpr`
            value = getattr(value, attribute, value if attribute == "value" else None)
        if not isinstance(value, bool | int | float | str):
            raise UntranslatableError(f"`{text}` is not part of the expression language")
        return ast.Constant(value)
