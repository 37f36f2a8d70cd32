"""Statements of a module: the names that each binds, changes and reads, by its text."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement at module level, or in a branch of an `if` at module level.

    Attributes:
        index: its place among the module's statements.
        binds: names that it binds, deletes or changes in place (`a.append(b)`).
        patches: functions and classes of which it sets an attribute.
        reads: names of the module that it and its conditions read, functions that it defines included.
        conditions: each `if` that it is in, and the outcome for which it runs.
    """

    node: ast.stmt
    index: int
    binds: frozenset[str]
    patches: frozenset[str]
    reads: frozenset[str]
    conditions: tuple[tuple[ast.If, bool], ...]

    @property
    def is_star(self) -> bool:
        return isinstance(self.node, ast.ImportFrom) and self.node.names[0].name == "*"


@dataclass(frozen=True)
class Read:
    """A global that a function reads.

    Attributes:
        path: the name, and the attributes that are taken of it one after the other.
        line: counted from the function's first.
        certain: every compilation of the function reads it: it is in no branch, loop, default or annotation, and
            nothing before it returns.
        called: it is read to be called.
        signature: an annotation or a default of a parameter reads it.
    """

    path: tuple[str, ...]
    line: int
    certain: bool
    called: bool = False
    signature: bool = False


def module_statements(tree: ast.Module) -> tuple[Statement, ...]:
    """The statements of a module in order, imports name by name; `if __name__ == "__main__"` is left out."""
    leaves = list(_leaves(tree.body, ()))
    bound = [_Bound.of(node) for node, _ in leaves]
    assigned = set().union(*(names.assigned for names in bound))
    defined = set().union(*(names.defined for names in bound))
    found = []
    for index, ((node, conditions), names) in enumerate(zip(leaves, bound, strict=True)):
        binds = names.assigned | names.defined | names.imported | ((names.stored | names.called) & assigned)
        reads = _reads(node) | {name for test, _ in conditions for name in _reads(test.test)}
        patches = (names.stored & defined) - binds
        found.append(Statement(node, index, frozenset(binds), frozenset(patches), frozenset(reads), conditions))
    return tuple(found)


def inner_statements(node: ast.stmt) -> Iterator[ast.stmt]:
    """The statements of the body of a `try` or a `with`, imports name by name; of other statements none."""
    if isinstance(node, ast.Try | ast.TryStar | ast.With):
        for inner, _ in _leaves(node.body, ()):
            yield inner
            yield from inner_statements(inner)


def bound_names(node: ast.stmt) -> set[str]:
    """The names that a statement binds or deletes."""
    names = _Bound.of(node)
    return names.assigned | names.defined | names.imported


def function_reads(function: ast.FunctionDef) -> tuple[Read, ...]:
    """The globals that a function reads, in order. A name that is bound before it is read is a local one, as it is to
    Triton."""
    reader = _Reader(function.lineno)
    reader.signature(function)
    reader.certain = True
    reader.local |= _parameters(function.args)
    for statement in function.body:
        reader.visit(statement)
        reader.certain &= not any(isinstance(node, ast.Return) for node in ast.walk(statement))
    return tuple(reader.reads)


def is_jit_text(node: ast.AST) -> bool:
    """A definition says of itself that it is a jit function."""
    return isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(item) for item in node.decorator_list)


def jit_names(tree: ast.AST) -> list[str]:
    """The functions of a file that say that they are jit functions."""
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and is_jit_text(node)]


def _leaves(
    body: Iterable[ast.stmt], conditions: tuple[tuple[ast.If, bool], ...]
) -> Iterator[tuple[ast.stmt, tuple[tuple[ast.If, bool], ...]]]:
    for node in body:
        match node:
            case ast.If() if _is_main(node):
                pass
            case ast.If():
                yield from _leaves(node.body, (*conditions, (node, True)))
                yield from _leaves(node.orelse, (*conditions, (node, False)))
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:  # one may be there where another is not
                    fields = {**dict(ast.iter_fields(node)), "names": [alias]}
                    yield ast.copy_location(type(node)(**fields), node), conditions
            case _:
                yield node, conditions


def _is_main(node: ast.If) -> bool:
    match node.test:
        case ast.Compare(left=left, comparators=[right]):
            return not node.orelse and {"__name__", "'__main__'"} == {ast.unparse(left), ast.unparse(right)}
    return False


@dataclass(frozen=True)
class _Bound:
    """Names by how a statement binds them.

    Attributes:
        stored, called: names of which it sets an attribute or an item, or calls a method for its effect.
    """

    assigned: set[str]
    defined: set[str]
    imported: set[str]
    stored: set[str]
    called: set[str]

    @classmethod
    def of(cls, statement: ast.stmt) -> _Bound:
        found = cls(set(), set(), set(), set(), set())
        for node in _outside_scopes(statement):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.defined.add(name)
                case ast.alias():
                    found.imported.update({node.asname or node.name.partition(".")[0]} - {"*"})
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                    found.assigned.add(name)
                case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                    found.assigned.add(name)
                case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                    found.stored.update(_root(node))
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner))):
                    found.called.update(_root(owner))
        return found


def _outside_scopes(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it, but for what has a scope of its own."""
    yield node
    if not isinstance(node, _SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _outside_scopes(child)


_SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


def _root(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _reads(node: ast.stmt | ast.expr) -> set[str]:
    reader = _Reader(0)
    reader.visit(node)
    return {read.path[0] for read in reader.reads}


class _Reader(ast.NodeVisitor):
    """Visits nodes in the order in which they are evaluated, and notes the names that are not local."""

    def __init__(self, first_line: int):
        self.reads: list[Read] = []
        self.local: set[str] = set()
        self.certain = False
        self._first_line = first_line
        self._signature = False
        self._called: ast.expr | None = None

    def signature(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._signature = True
        for node in (*(node.annotation for node in _arguments(function.args)), function.returns):
            match node:
                case ast.Constant(value=str(text)) if text.isidentifier():
                    self._add((text,), node)
                case ast.expr():
                    self.visit(node)
        for default in (*function.args.defaults, *filter(None, function.args.kw_defaults)):
            self.visit(default)
        self._signature = False

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in sorted(ast.iter_fields(node), key=lambda item: _ORDER.get(item[0], 0)):
            certain, self.certain = self.certain, self.certain and (name not in _PERHAPS or isinstance(node, ast.With))
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)
            self.certain = certain

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.local.add(node.id)
        elif node.id not in self.local:
            self._add((node.id,), node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path, owner = [node.attr], node.value
        while isinstance(owner, ast.Attribute):
            path.append(owner.attr)
            owner = owner.value
        if not isinstance(owner, ast.Name):
            self.visit(owner)
        elif owner.id not in self.local:
            self._add((owner.id, *reversed(path)), node)

    def visit_Call(self, node: ast.Call) -> None:
        self._called = node.func
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id not in self.local:
            self._add((node.target.id,), node.target)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        first, *others = node.values
        self.visit(first)
        self._scoped(set(), others)

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            self._add((name,), node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self.signature(node)
        self.local.add(node.name)
        self._scoped(_parameters(node.args), node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        self._scoped(set(), node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self._scoped(_parameters(node.args), [node.body])

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._scoped(set(), [*node.generators, *values])

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def _scoped(self, names: set[str], nodes: Iterable[ast.AST]) -> None:
        local, self.local = self.local, self.local | names
        certain, self.certain = self.certain, False
        for node in nodes:
            self.visit(node)
        self.local, self.certain = local, certain

    def _add(self, path: tuple[str, ...], node: ast.expr | ast.stmt) -> None:
        line = node.lineno - self._first_line + 1
        self.reads.append(Read(path, line, self.certain, node is self._called, self._signature))


_ORDER = {"target": 1, "targets": 1, "ifs": 2, "body": 2, "orelse": 2, "handlers": 2, "finalbody": 3}
"""Fields of nodes that are evaluated after the others."""

_PERHAPS = ("body", "orelse", "handlers", "finalbody", "ifs")
"""Fields of nodes that are evaluated at times."""


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    yield from filter(None, [arguments.vararg, arguments.kwarg])


def _parameters(arguments: ast.arguments) -> set[str]:
    return {argument.arg for argument in _arguments(arguments)}
