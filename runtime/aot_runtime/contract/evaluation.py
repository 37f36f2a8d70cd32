"""Expressions compiled to Python functions, each when it is first evaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter
from types import CodeType
from typing import Any

from .expressions import FUNCTIONS, parse, query_of

Evaluator = Callable[[Mapping[str, Any]], Any]
"""A function from the values of an expression's names (queries under their `query_name`) to its value."""

_GLOBALS: dict[str, Any] = {"__builtins__": {}, **FUNCTIONS}


@lru_cache(maxsize=1 << 14)
def evaluator(text: str) -> Evaluator:
    """Return the function that evaluates an expression. Raises `ExpressionError` if `text` is not an expression.

    The function raises ArithmeticError or TypeError if the expression has no value.
    """
    tree = parse(text).tree
    query = query_of(tree)
    if query is not None:
        return itemgetter(query)
    match tree:
        case ast.Name(id=name):
            return itemgetter(name)
        case ast.Constant(value=value):
            return lambda names: value
    return _Compiled(text)


class _Compiled:
    __slots__ = ("code", "text")

    def __init__(self, text: str):
        self.text = text
        self.code: CodeType | None = None

    def __call__(self, names: Mapping[str, Any]) -> Any:
        if self.code is None:
            self.code = compile(python_tree(self.text), f"<aot_runtime expression: {self.text}>", "eval")
        return eval(self.code, _GLOBALS, names)


def python_tree(text: str) -> ast.Expression:
    """Return the Python syntax tree of a checked expression, ready to be compiled."""
    return ast.fix_missing_locations(_ToPython().visit(ast.parse(parse(text).text, mode="eval")))


class _ToPython(ast.NodeTransformer):
    """Translate the differences from Python: queries become names, `and` and `or` give True or False."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if all(isinstance(value, ast.Compare) or _is_not(value) for value in node.values):
            return node
        return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = query_of(node)
        return self.generic_visit(node) if name is None else ast.Name(name, ast.Load())


def _is_not(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
