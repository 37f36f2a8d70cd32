"""Evaluate expressions of which some names may have no value yet. Calls use compiled ones, `expressions.evaluator`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from aot_runtime.errors import ExpressionError

from .expressions import BINARY, COMPARE, FUNCTIONS, UNARY, Expression, describe, query_name, query_parts


class _Unknown:
    """The type of `UNKNOWN`, the value of names that have none yet; see `partial_value`."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


def evaluate(expression: Expression, env: Mapping[str, Any]) -> Any:
    """Return the value.

    Args:
        env: values of `Expression.reads`.

    Raises:
        ExpressionError: a value is missing, or the arithmetic fails.
    """
    value = partial_value(expression, env)
    if value is UNKNOWN:
        missing = ", ".join(sorted(name for name in expression.reads if name not in env))
        raise ExpressionError(f"'{expression.text}' needs {missing}, which has no value here")
    return value


def partial_value(expression: Expression, env: Mapping[str, Any]) -> Any:
    """Return the value if `env` determines it, else `UNKNOWN`. `False and x` is False without a value of x."""
    try:
        return _evaluate(expression.tree, env)
    except (ArithmeticError, TypeError) as error:
        raise ExpressionError(f"'{expression.text}' cannot be evaluated: {error}") from None


def _evaluate(node: ast.AST, env: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return env.get(name, UNKNOWN)
        case ast.BoolOp(op=op, values=values):
            return _bool_op(isinstance(op, ast.Or), values, env)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition = _evaluate(test, env)
            if condition is not UNKNOWN:
                return _evaluate(body if condition else orelse, env)
            return UNKNOWN
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compare(left, ops, comparators, env)
        case ast.BinOp(op=op, left=left, right=right):
            return _apply(BINARY[type(op)], [left, right], env)
        case ast.UnaryOp(op=op, operand=operand):
            return _apply(UNARY[type(op)], [operand], env)
        case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
            return _apply(FUNCTIONS[name], args, env)
        case ast.Call():
            return env.get(query_name(*query_parts(node)), UNKNOWN)
    raise ExpressionError(f"{describe(node)} is not part of the expression language")


def _apply(function: Callable[..., Any], nodes: list[ast.expr], env: Mapping[str, Any]) -> Any:
    values = [_evaluate(node, env) for node in nodes]
    return UNKNOWN if any(value is UNKNOWN for value in values) else function(*values)


def _bool_op(is_or: bool, nodes: list[ast.expr], env: Mapping[str, Any]) -> Any:
    unknown = False
    for node in nodes:
        value = _evaluate(node, env)
        if value is UNKNOWN:
            unknown = True
        elif bool(value) == is_or:
            return is_or
    return UNKNOWN if unknown else not is_or


def _compare(left: ast.expr, ops: list[ast.cmpop], rest: list[ast.expr], env: Mapping[str, Any]) -> Any:
    previous = _evaluate(left, env)
    unknown = False
    for op, node in zip(ops, rest, strict=True):
        value = _evaluate(node, env)
        if previous is UNKNOWN or value is UNKNOWN:
            unknown = True
        elif not COMPARE[type(op)](previous, value):
            return False
        previous = value
    return UNKNOWN if unknown else True
