"""Conditional values such as `bias if WITH_BIAS else null`. Each variant takes one branch.

Unlike an expression, a branch may be a tensor, a workspace or `null`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from aot_runtime.contract.expressions import Expression, parse
from aot_runtime.contract.partial_evaluation import UNKNOWN, partial_value

NULL = "null"
"""Spelling of None as a branch."""


def tests(value: Expression) -> Iterator[Expression]:
    """Return the conditions of a value and of its branches."""
    waiting = [value.tree]
    while waiting:
        tree = waiting.pop()
        if isinstance(tree, ast.IfExp):
            yield parse(ast.unparse(tree.test))
            waiting += [tree.orelse, tree.body]


def chosen(value: Expression, known: Mapping[str, Any]) -> Expression:
    """Return the branch that a variant takes, as far as the known values decide. Raises `ExpressionError`."""
    tree = value.tree
    while isinstance(tree, ast.IfExp):
        holds = partial_value(parse(ast.unparse(tree.test)), known)
        if holds is UNKNOWN:
            break
        tree = tree.body if holds else tree.orelse
    return value if tree is value.tree else parse(ast.unparse(tree))
