"""Conditional values such as `bias if WITH_BIAS else null`, of which each variant takes one branch.

A branch may be a tensor, a workspace or `null`, which expressions cannot compute with.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from aot_runtime.contract.expressions import Expression, parse
from aot_runtime.contract.partial_evaluation import UNKNOWN, partial_value

NULL = "null"
"""The spelling of None as a branch."""


def tests(value: Expression) -> Iterator[Expression]:
    """The conditions of a value and of its branches."""
    waiting = [value.tree]
    while waiting:
        tree = waiting.pop()
        if isinstance(tree, ast.IfExp):
            yield parse(ast.unparse(tree.test))
            waiting += [tree.orelse, tree.body]


def chosen(value: Expression, known: Mapping[str, Any]) -> Expression:
    """The branch that a variant takes, as far as its known values decide. Raises `ExpressionError`."""
    tree = value.tree
    while isinstance(tree, ast.IfExp):
        holds = partial_value(parse(ast.unparse(tree.test)), known)
        if holds is UNKNOWN:
            break
        tree = tree.body if holds else tree.orelse
    return value if tree is value.tree else parse(ast.unparse(tree))
