"""Which statements of a module bind which of its names, by its text."""

from __future__ import annotations
import __future__

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Block = tuple["Statement", ...]


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement at module level, be it within an `if`, `try` or `with`.

    Attributes:
        index: its place in source order.
        names: what it, or a statement in it, binds, deletes or changes in place.
        changes: those that it changes in place, though they are functions or classes.
        blocks: the statements in it: of an `if` the two branches, of a `try` or `with` each block; else none.
    """

    node: ast.stmt
    index: int
    names: frozenset[str]
    blocks: tuple[Block, ...] = ()
    changes: frozenset[str] = frozenset()

    @property
    def leaves(self) -> Iterator[Statement]:
        """The statements in it that have no others in them; itself where it has none."""
        if not self.blocks:
            yield self
        for block in self.blocks:
            for statement in block:
                yield from statement.leaves


@dataclass(frozen=True)
class Bindings:
    """The symbol table of a module.

    Attributes:
        statements: all but those of `if __name__ == "__main__"`.
        leaves: name → the statements that bind it, in source order.
        rebound: names that more than one statement binds: what they mean depends on the line.
        stars: statements `from … import *`.
        flags: what `from __future__` asks of the compiler.
    """

    statements: Block
    leaves: dict[str, list[Statement]]
    rebound: frozenset[str]
    stars: Block
    flags: int


@dataclass
class _Builder:
    """Reads the statements of one module.

    Attributes:
        variables: the names that some assignment binds.
        definitions: the functions and classes.
    """

    variables: frozenset[str]
    definitions: frozenset[str]
    numbers: Iterator[int] = field(default_factory=count)

    def block(self, nodes: Iterable[ast.stmt]) -> Block:
        return tuple(self._statement(part) for node in nodes if not _is_main(node) for part in _parts(node))

    def _statement(self, node: ast.stmt) -> Statement:
        index = next(self.numbers)
        inner: tuple[list[ast.stmt], ...] = ()
        match node:
            case ast.If():
                inner = (node.body, node.orelse)
            case ast.Try() | ast.TryStar():
                handled = [handler.body for handler in node.handlers]
                inner = (node.body, *handled, node.orelse, node.finalbody)
            case ast.With():
                inner = (node.body,)
        blocks = tuple(map(self.block, inner))
        changes = frozenset(_stored(node)) & self.definitions
        names = frozenset(_bound(node)) | ((frozenset(_stored(node)) | frozenset(_called(node))) & self.variables)
        return Statement(node, index, names | changes, blocks, changes - names)


def read_bindings(tree: ast.Module) -> Bindings:
    """The symbol table of a module's text."""
    variables = frozenset(name for node in tree.body for name in _assigned(node, ast.Assign | ast.AnnAssign))
    definitions = frozenset(name for node in tree.body for name in _assigned(node, ast.FunctionDef | ast.ClassDef))
    statements = _Builder(variables, definitions).block(tree.body)
    leaves: dict[str, list[Statement]] = defaultdict(list)
    every = [leaf for statement in statements for leaf in statement.leaves]
    for leaf in every:
        for name in leaf.names:
            leaves[name].append(leaf)
    # What an `if`, `try` or `with` binds beside its blocks (`except … as error`) comes from the whole of it.
    for statement in statements:
        for name in statement.names - leaves.keys():
            leaves[name].append(statement)
    return Bindings(
        statements,
        dict(leaves),
        frozenset(name for name, found in leaves.items() if len(found) > 1),
        tuple(leaf for leaf in every if _is_star(leaf.node)),
        _future_flags(tree),
    )


def is_own(node: ast.stmt, package: str) -> bool:
    """Whether a statement imports an installed package, or something of it."""
    match node:
        case ast.Import():
            return all(alias.name.partition(".")[0] == package for alias in node.names)
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] == package
    return False


def _parts(node: ast.stmt) -> Iterator[ast.stmt]:
    """An import of several names as several imports: one may be there where another is not."""
    match node:
        case ast.Import(names=names):
            yield from (ast.copy_location(ast.Import([alias]), node) for alias in names)
        case ast.ImportFrom(names=names):
            yield from (ast.copy_location(ast.ImportFrom(node.module, [alias], node.level), node) for alias in names)
        case _:
            yield node


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds or deletes in its own scope."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
            return
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return
        case ast.Import():
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        case ast.ImportFrom():
            yield from (alias.asname or alias.name for alias in node.names if alias.name != "*")
        case ast.Name(ctx=ast.Store() | ast.Del()):
            yield node.id
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
    for child in ast.iter_child_nodes(node):
        if not _is_main(child):
            yield from _bound(child)


def _assigned(node: ast.AST, kinds: Any) -> Iterator[str]:
    """The names that statements of these kinds bind, here or in what is in it."""
    if isinstance(node, kinds):
        yield from _bound(node)
    elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While | ast.ExceptHandler):
        for child in ast.iter_child_nodes(node):
            yield from _assigned(child, kinds)


def _stored(node: ast.AST) -> Iterator[str]:
    """The names whose values a statement changes in place: `a[0] = b`, `a.b = c`."""
    for item in _in_scope(node):
        if isinstance(item, ast.Subscript | ast.Attribute) and not isinstance(item.ctx, ast.Load):
            yield from _root(item.value)


def _called(node: ast.AST) -> Iterator[str]:
    """The names whose values a statement may change in place: `a.append(b)`."""
    for item in _in_scope(node):
        match item:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner))):
                yield from _root(owner)


def _in_scope(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and all that is in it, but for other scopes."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        if not _is_main(child):
            yield from _in_scope(child)


def _root(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _is_star(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def _is_main(node: ast.AST) -> bool:
    """Whether a statement is for a file that is run as a script."""
    match node:
        case ast.If(test=ast.Compare(left=left, comparators=[right]), orelse=[]):
            return {"__name__", "'__main__'"} == {ast.unparse(left), ast.unparse(right)}
    return False


def _future_flags(tree: ast.Module) -> int:
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                feature = getattr(__future__, alias.name, None)
                flags |= feature.compiler_flag if feature else 0
    return flags
