"""Gluon layouts bound to constexpr parameters, spelled as in Python, with expressions for numbers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from aot.source.constants import LAYOUTS, Layout
from aot_runtime.contract.expressions import nearest, syntax_tree


def planned_layout(text: str, value_of: Callable[[str], Any], options: Mapping[str, Any]) -> Layout:
    """Return a layout with every expression replaced by its value.

    Args:
        text: such as `BlockedLayout([1, 4], [8, warp_size // 8], [num_warps, 1], [1, 0])`; a prefix `gl.` is ignored.
        value_of: returns the value of an expression.
        options: compiler options, which may be named in expressions.

    Raises:
        ValueError: the text is not a layout.
    """
    try:
        tree: ast.AST = syntax_tree(text)
    except SyntaxError:
        raise ValueError(
            f"'{text}' is not a layout: write one as in Python, BlockedLayout([1], [64], [4], [0])"
        ) from None
    tree = _Options(options).visit(tree)
    if not isinstance(tree, ast.Call):
        raise ValueError(f"'{text}' is not a layout; layouts are: {', '.join(LAYOUTS)}")
    return Layout(ast.unparse(_layout(tree, value_of)))


class _Options(ast.NodeTransformer):
    """Replaces names of compiler options by their values."""

    def __init__(self, options: Mapping[str, Any]):
        self._options = options

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._options[node.id]) if node.id in self._options else node


def _layout(call: ast.Call, value_of: Callable[[str], Any]) -> ast.expr:
    name = ast.unparse(call.func).rpartition(".")[2]
    if name not in LAYOUTS:
        raise ValueError(f"'{name}' is not a Gluon layout{nearest(name, LAYOUTS)}")
    if any(isinstance(argument, ast.Starred) for argument in call.args) or not all(key.arg for key in call.keywords):
        raise ValueError(f"the arguments of '{name}' must be written out, without *")
    return ast.Call(
        ast.Name(name),
        [_argument(argument, value_of) for argument in call.args],
        [ast.keyword(key.arg, _argument(key.value, value_of)) for key in call.keywords],
    )


def _argument(node: ast.expr, value_of: Callable[[str], Any]) -> ast.expr:
    match node:
        case ast.Call(func=func) if ast.unparse(func).rpartition(".")[2] in LAYOUTS:
            return _layout(node, value_of)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return ast.List([_argument(item, value_of) for item in items])
        case ast.Constant():
            return node
    return ast.Constant(value_of(ast.unparse(node)))
