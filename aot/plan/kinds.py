"""The Python type of an expression's value, from the types of the names in it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from aot_runtime.contract import records
from aot_runtime.contract.expressions import Expression, parse
from aot_runtime.contract.names import Names

_RANK = (bool, int, float, str)


def value_kind(value: Expression, names: Mapping[str, type]) -> type:
    """Return `bool`, `int`, `float` or `str`; if branches differ, the widest. Every name must be in `names`."""
    return _kind(value.tree, names)


def with_derived_kinds(names: Names, op: records.Op) -> Names:
    """Return `names`, and the type of each derived number."""
    kinds = dict(names)
    for item in op.derived:
        kinds[item.name] = value_kind(parse(item.value), kinds)
    return kinds


def _kind(node: ast.AST, names: Mapping[str, type]) -> type:
    match node:
        case ast.Constant(value=value):
            return type(value)
        case ast.Name(id=name):
            return names[name]
        case (
            ast.Compare()
            | ast.UnaryOp(op=ast.Not())
            | ast.Call(func=ast.Name(id="given" | "innermost" | "is_aligned" | "fits_32_bits"))
        ):
            return bool
        case ast.Call(func=ast.Name(id="cdiv" | "next_pow2" | "elsize" | "stride")):
            return int
        case ast.BoolOp(values=parts) | ast.Call(args=parts):
            return _widest(parts, names)
        case ast.IfExp(body=body, orelse=orelse):
            return _widest([body, orelse], names)
        case ast.BinOp(op=ast.Div()) | ast.BinOp(op=ast.Pow(), right=ast.UnaryOp(op=ast.USub())):
            return float
        case ast.BinOp(left=left, right=right):
            return _widest([left, right, ast.Constant(0)], names)
        case ast.UnaryOp(operand=operand):
            return _widest([operand, ast.Constant(0)], names)
    raise AssertionError(f"{type(node).__name__} is not part of the expression language")


def _widest(nodes: list[ast.expr], names: Mapping[str, type]) -> type:
    return max((_kind(node, names) for node in nodes), key=_RANK.index)
