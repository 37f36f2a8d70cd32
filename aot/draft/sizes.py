"""Expressions of sizes as text: their names, renaming, and simplification."""

from __future__ import annotations

import ast
from collections.abc import Mapping


def names_of(text: str) -> set[str]:
    """Return the names in an expression, except those of functions."""
    if not text:
        return set()
    nodes = list(ast.walk(ast.parse(text, mode="eval")))
    functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions}


def functions_of(text: str) -> set[str]:
    """Return the functions that an expression calls."""
    nodes = ast.walk(ast.parse(text, mode="eval"))
    return {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Replace names in an expression by expressions."""
    tree = ast.parse(text, mode="eval")
    return ast.unparse(_Renaming(names).visit(tree))


def replaced(text: str, parts: Mapping[str, str]) -> str:
    """Replace parts of an expression by names."""
    if not text or not parts:
        return text
    return ast.unparse(_Replacing(parts).visit(ast.parse(text, mode="eval")))


class _Replacing(ast.NodeTransformer):
    def __init__(self, parts: Mapping[str, str]):
        self._parts = parts

    def visit(self, node: ast.AST) -> ast.AST:
        name = self._parts.get(ast.unparse(node)) if isinstance(node, ast.expr) else None
        return ast.Name(name) if name else self.generic_visit(node)


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]):
        self._names = names

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if ast.unparse(node.func) == "given":
            return node
        node.args = [self.visit(item) for item in node.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self._names[node.id], mode="eval").body if node.id in self._names else node


def simplified(text: str) -> str:
    """Simplify an expression: `rows * cols // cols` is `rows`."""
    return ast.unparse(_Simplifier().visit(ast.parse(text, mode="eval")))


class _Simplifier(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        node.left, node.right = self.visit(node.left), self.visit(node.right)
        match node.left, node.op, node.right:
            case ast.Constant(value=int(a)), ast.Mult(), ast.Constant(value=int(b)):
                return ast.Constant(a * b)
            case ast.Constant(value=int(a)), ast.FloorDiv(), ast.Constant(value=int(b)) if b:
                return ast.Constant(a // b)
            case (left, ast.Mult() | ast.FloorDiv(), ast.Constant(value=1)):
                return left
            case (ast.Constant(value=1), ast.Mult(), right):
                return right
            case left, ast.FloorDiv(), right:
                return _cancelled(left, right) or node
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [self.visit(item) for item in node.args]
        match ast.unparse(node.func), node.args:
            case "cdiv", [left, ast.Constant(value=1)]:
                return left
            case "cdiv", [left, right]:
                return _cancelled(left, right) or node
        return node


def _cancelled(left: ast.expr, right: ast.expr) -> ast.expr | None:
    """Divide a product by some of its factors; None if it lacks one of them."""
    factors = _factors(left)
    texts = [ast.unparse(item) for item in factors]
    for item in _factors(right):
        if ast.unparse(item) not in texts:
            return None
        at = texts.index(ast.unparse(item))
        del texts[at], factors[at]
    result = factors[0] if factors else ast.Constant(1)
    for item in factors[1:]:
        result = ast.BinOp(result, ast.Mult(), item)
    return result


def _factors(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [node]
