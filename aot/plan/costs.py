"""The cost of a config: its launch's formula, with the config's constants and constexprs in place of their names."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from aot.manifest.schema import ConfigSpec, LaunchSpec, Value
from aot_runtime.contract.expressions import nearest, parse, syntax_tree


def config_cost(launch: LaunchSpec, config: ConfigSpec) -> str:
    """Return the expression of a config's cost; empty if the config has no constants.

    Raises:
        ExpressionError: the formula is not an expression.
        ValueError: the launch has no formula, or it does not read a constant.
    """
    if not config.fitted:
        return ""
    if launch.cost == "":
        raise ValueError(f"config '{config.name}' has `fitted` constants, but its launch has no `cost`")
    read = parse(str(launch.cost)).names
    for name in config.fitted:
        if name not in read:
            raise ValueError(
                f"config '{config.name}' has the constant '{name}', which the launch's `cost` does not read"
                f"{nearest(name, read)}"
            )
    return with_values(str(launch.cost), {**config.blocks, **config.fitted})


def with_values(text: str, values: Mapping[str, Value]) -> str:
    """Return an expression with values in place of names."""
    return ast.unparse(_Values(values).visit(syntax_tree(text)))


class _Values(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, Value]):
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(self.values[node.id]) if node.id in self.values else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(argument) for argument in node.args]  # and not the function's name
        return node
