"""Scalars whose choices have numbers, given in `values`; in expressions, `number(scalar)` is the number.

Contracts have no `number`: it is replaced by a conditional over the texts of the choices.
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
    """Return the numbers of the scalars that have any."""
    return {name: scalar.values for name, scalar in scalars.items() if isinstance(scalar.values, dict)}


def with_numbers(text: str, numbers: Numbers) -> str:
    """Replace `number(scalar)` in an expression. Raises `ExpressionError` if the scalar has no numbers."""
    if "number" not in text:
        return text
    try:
        tree = syntax_tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text  # which the parser reports
    return ast.unparse(_Numbers(numbers).visit(tree))


def number_of(scalar: str, numbers: Numbers) -> str:
    """Return the expression for the number of a scalar's choice."""
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
        raise ExpressionError(
            f"{text}: number() needs a choice whose values are numbers{nearest(text[7:-1], self.numbers)}"
        )
