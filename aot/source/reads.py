"""What a function reads of its module, by its text."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Read:
    """A global that a function reads.

    Attributes:
        path: the name, and the attributes that are taken of it one after the other.
        line: counted from the function's first.
        certain: whether every compilation of the function reads it: it is in no branch, no loop, no default and no
            annotation, and nothing before it returns.
        called: whether it is read to be called.
        signature: whether an annotation or a default of a parameter reads it.
    """

    path: tuple[str, ...]
    line: int
    certain: bool
    called: bool = False
    signature: bool = False


def function_reads(function: ast.FunctionDef) -> tuple[Read, ...]:
    """The globals that a function reads, in the order in which it does. A name that is bound before it is read is a
    local one, as it is to Triton."""
    found = _Reads(function.lineno)
    found.signature(function)
    found.body(function)
    return tuple(found.reads)


class _Reads(ast.NodeVisitor):
    def __init__(self, first_line: int) -> None:
        self.reads: list[Read] = []
        self._first_line = first_line
        self._local: set[str] = set()
        self._certain = self._signature = False
        self._called: ast.expr | None = None

    def signature(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = function.args
        self._signature = True
        for annotation in [*(item.annotation for item in _arguments(arguments)), function.returns]:
            match annotation:
                case ast.Constant(value=str(text)):
                    if text.isidentifier():
                        self._add((text,), annotation)
                case ast.expr():
                    self.visit(annotation)
        self._visit_all([*arguments.defaults, *filter(None, arguments.kw_defaults)])
        self._signature = False

    def body(self, function: ast.FunctionDef) -> None:
        self._local |= {item.arg for item in _arguments(function.args)}
        self._certain = True
        for statement in function.body:
            self.visit(statement)
            if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
                self._certain = False

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._local.add(node.id)
        elif node.id not in self._local:
            self._add((node.id,), node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path, owner = [node.attr], node.value
        while isinstance(owner, ast.Attribute):
            path.append(owner.attr)
            owner = owner.value
        if not isinstance(owner, ast.Name):
            self.visit(owner)
        elif owner.id not in self._local:
            self._add((owner.id, *reversed(path)), node)

    def visit_Call(self, node: ast.Call) -> None:
        self._called = node.func
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_all([node.value, *node.targets])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id not in self._local:
            self._add((node.target.id,), node.target)
        self._visit_all([node.value, node.target])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all([node.annotation, *filter(None, [node.value]), node.target])

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit_all([node.value, node.target])

    def visit_For(self, node: ast.For) -> None:
        self._visit_all([node.iter, node.target])
        self._perhaps([*node.body, *node.orelse])

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._perhaps([*node.body, *node.orelse])

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._perhaps([*node.body, *node.orelse])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._perhaps([node.body, node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._perhaps(node.values[1:])

    def visit_Try(self, node: ast.Try) -> None:
        self._perhaps(ast.iter_child_nodes(node))

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            self._add((name,), node)

    # What has a scope of its own

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.signature(node)
        self._local.add(node.name)
        self._scoped([item.arg for item in _arguments(node.args)], node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *filter(None, node.args.kw_defaults)])
        self._scoped([item.arg for item in _arguments(node.args)], [node.body])

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        parts: list[ast.AST] = []
        for clause in node.generators:
            parts += [clause.iter, clause.target, *clause.ifs]
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._scoped([], [*parts, *values])

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def _scoped(self, names: Iterable[str], nodes: Iterable[ast.AST]) -> None:
        local = self._local
        self._local = local | set(names)
        self._perhaps(nodes)
        self._local = local

    def _perhaps(self, nodes: Iterable[ast.AST]) -> None:
        certain, self._certain = self._certain, False
        self._visit_all(nodes)
        self._certain = certain

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _add(self, path: tuple[str, ...], node: ast.expr | ast.stmt) -> None:
        self.reads.append(
            Read(path, node.lineno - self._first_line + 1, self._certain, node is self._called, self._signature)
        )


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    yield from filter(None, [arguments.vararg, arguments.kwarg])
