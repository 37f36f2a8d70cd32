"""Values that differ by variant: `bias if WITH_BIAS else null`, of which each variant has one branch.

A branch may be what no expression computes with: a tensor, a workspace, or nothing at all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from aot_runtime.contract.expressions import UNKNOWN, Expression, parse

NULL = "null"
"""What stands for None, as a branch."""


def tests(value: Expression) -> Iterator[Expression]:
    """The conditions on the way to the branches of a value."""
    waiting = [value.tree]
    while waiting:
        tree = waiting.pop()
        if isinstance(tree, ast.IfExp):
            yield parse(ast.unparse(tree.test))
            waiting += [tree.orelse, tree.body]


def chosen(value: Expression, known: Mapping[str, Any]) -> Expression:
    """The branch that a variant has, as far as what is known of it decides. Raises `ExpressionError`."""
    tree = value.tree
    while isinstance(tree, ast.IfExp):
        holds = parse(ast.unparse(tree.test)).partial(known)
        if holds is UNKNOWN:
            break
        tree = tree.body if holds else tree.orelse
    return value if tree is value.tree else parse(ast.unparse(tree))
