"""Functions of launches, grids and heuristics, as expressions of the kernel's arguments.

A function is parsed, not run. It may read its dict of arguments, and numbers of the program that are arguments of the
kernel by name or, in all captured launches, by value.
"""

from __future__ import annotations

import ast
import copy
import io
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from aot.source.heuristic_source import UntranslatableError, translated
from aot_runtime.contract.expressions import parse
from aot_runtime.errors import ExpressionError

Json = Any


def function_expressions(
    functions: Sequence[Json], arguments: Sequence[Mapping[str, Json]], meanings: Mapping[str, str]
) -> list[str | None]:
    """Return the expressions that a function returns, one for each element of a tuple; None where that is not possible.

    Args:
        functions: the function as it was captured in each launch.
        arguments: the numbers among the kernel's arguments in each of these launches.
        meanings: argument of the kernel → its expression.
    """
    first = functions[0]
    if not all(isinstance(item, dict) and item["source"] == functions[0]["source"] for item in functions):
        return []  # extents, several functions, or one whose source was not kept
    node = _node(first)
    body = _returned(node) if node is not None else None
    if node is None or body is None or len(node.args.args) != 1:
        return []
    numbers = _Numbers([item["numbers"] for item in functions], arguments, node.args.args[0].arg)
    elements = body.elts if isinstance(body, ast.Tuple | ast.List) else [body]
    return [_expression(numbers.visit(item), node.args.args[0].arg, meanings) for item in elements]


def _expression(element: ast.expr, parameter: str, meanings: Mapping[str, str]) -> str | None:
    try:
        return _substituted(translated(element, parameter, lambda name: None), meanings)
    except (UntranslatableError, ExpressionError):
        return None


def _returned(node: ast.Lambda | ast.FunctionDef) -> ast.expr | None:
    """Return the expression that a function returns, if the statements before it only assign to names."""
    if isinstance(node, ast.Lambda):
        return node.body
    values: dict[str, ast.expr] = {}
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in values:
                values[name] = _Inlined(values).visit(value)
            case ast.Return(value=ast.expr() as value):
                return cast(ast.expr, _Inlined(values).visit(value))
            case _:
                return None
    return None


class _Inlined(ast.NodeTransformer):
    """Replaces names by the expressions that were assigned to them."""

    def __init__(self, values: Mapping[str, ast.expr]):
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self._values[node.id]) if node.id in self._values else node


class _Numbers(ast.NodeTransformer):
    """Replaces names of the program by the arguments of the kernel that have their values."""

    def __init__(self, numbers: Sequence[Mapping[str, Json]], arguments: Sequence[Mapping[str, Json]], parameter: str):
        self._numbers, self._arguments, self._parameter = numbers, arguments, parameter

    def visit_Name(self, node: ast.Name) -> ast.expr:
        argument = self._argument(node.id) if node.id in self._numbers[0] else ""
        return ast.Subscript(ast.Name(self._parameter), ast.Constant(argument)) if argument else node

    def _argument(self, name: str) -> str:
        values = [item.get(name) for item in self._numbers]
        alike = [
            argument
            for argument in self._arguments[0]
            if all(item.get(argument) == value for item, value in zip(self._arguments, values, strict=True))
        ]
        if name in alike:
            return name
        return alike[0] if len(alike) == 1 and len(set(values)) > 1 else ""


def _substituted(text: str, meanings: Mapping[str, str]) -> str:
    class Meaning(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            node.args = [self.visit(item) for item in node.args]
            return node

        def visit_Name(self, node: ast.Name) -> ast.expr:
            if node.id not in meanings:
                raise UntranslatableError(f"'{node.id}' is not an argument")
            return ast.parse(meanings[node.id], mode="eval").body

    return parse(ast.unparse(Meaning().visit(ast.parse(text, mode="eval").body))).text


def _node(function: Json) -> ast.Lambda | ast.FunctionDef | None:
    """Return the function's syntax tree; None if it is ambiguous, as its first line defines several functions."""
    is_lambda = function["name"] == "<lambda>"
    found: list[ast.Lambda | ast.FunctionDef] = [*(_lambdas if is_lambda else _definitions)(function["source"])]
    fitting = [item for item in found if [one.arg for one in item.args.args] == function["parameters"]]
    if len(fitting) > 1:
        fitting = [item for item in fitting if _texts(item) == set(function["texts"])]
    return fitting[0] if len(fitting) == 1 else None


def _texts(node: ast.AST) -> set[str]:
    constants = (item.value for item in ast.walk(node) if isinstance(item, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def _definitions(source: str) -> Iterator[ast.FunctionDef]:
    lines = source.splitlines(keepends=True)
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    for end in range(len(lines), 0, -1):
        text = "".join(line[indent:] if line.strip() else line for line in lines[:end])
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        yield from (item for item in tree.body[:1] if isinstance(item, ast.FunctionDef))
        return


def _lambdas(source: str) -> Iterator[ast.Lambda]:
    """Yield the lambdas that begin on the first line: the longest text from `lambda` on that is one."""
    first = source.partition("\n")[0]
    start = first.find("lambda")
    while start >= 0:
        text = source[start:]
        found = [tree for end in _ends(text) if (tree := _lambda(text[:end])) is not None]
        yield from found[-1:]
        start = first.find("lambda", start + 1)


def _lambda(text: str) -> ast.Lambda | None:
    try:
        tree = ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        return None
    return tree if isinstance(tree, ast.Lambda) else None


def _ends(text: str) -> Iterator[int]:
    """Yield the positions at which an expression may end: at a comma, at the end of a line, and at its bracket's."""
    offsets = [0]
    for line in text.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            position = offsets[token.start[0] - 1] + token.start[1]
            is_end = token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER)
            if depth == 0 and (is_end or token.string == ","):
                yield position
            elif token.type == tokenize.OP and token.string in "([{":
                depth += 1
            elif token.type == tokenize.OP and token.string in ")]}":
                depth -= 1
                if depth < 0:
                    yield position
                    return
    except (tokenize.TokenError, IndentationError):
        return
