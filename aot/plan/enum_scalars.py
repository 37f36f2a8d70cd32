"""Numbers of choices: a manifest names them once, in `values`; its expressions ask with `number(scalar)`.

The contract's expressions know a choice by its text alone: what stands for its number is spelled out here.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from aot.manifest.schema import ScalarSpec
from aot_runtime.contract.expressions import nearest, syntax_tree
from aot_runtime.errors import ExpressionError

Numbers = Mapping[str, Mapping[str, int]]
"""Scalar → the number of each of its choices."""


def choice_numbers(scalars: Mapping[str, ScalarSpec]) -> Numbers:
    """The choices that have numbers."""
    return {name: scalar.values for name, scalar in scalars.items() if isinstance(scalar.values, dict)}


def with_numbers(text: str, numbers: Numbers) -> str:
    """An expression without `number(scalar)`. Raises `ExpressionError` where the scalar has no numbers."""
    if "number" not in text:
        return text
    try:
        tree = syntax_tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text  # whoever parses it says what is wrong
    return ast.unparse(_Numbers(numbers).visit(tree))


def number_of(scalar: str, numbers: Numbers) -> str:
    """The expression that gives a choice's number."""
    *others, (_, last) = numbers[scalar].items()
    return "".join(f"{number} if {scalar} == {name!r} else " for name, number in others) + str(last)


class _Numbers(ast.NodeTransformer):
    def __init__(self, numbers: Numbers):
        self.numbers = numbers

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not isinstance(node.func, ast.Name) or node.func.id != "number":
            return self.generic_visit(node)
        match node:
            case ast.Call(args=[ast.Name(id=scalar)], keywords=[]) if scalar in self.numbers:
                return ast.parse(number_of(scalar, self.numbers), mode="eval").body
        text = ast.unparse(node)
        raise ExpressionError(f"{text}: number() takes a choice that has numbers{nearest(text[7:-1], self.numbers)}")
