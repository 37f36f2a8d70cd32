"""Makes expressions of sizes shorter: `rows * cols // cols` is `rows`, `cdiv(128, 64)` is 2."""

from __future__ import annotations

import ast


def simplified(text: str) -> str:
    """An expression that has the same value wherever nothing is divided by 0."""
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
    """What a product is without factors that it has; None where it does not have them all."""
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
