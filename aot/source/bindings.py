"""Which statements of a module bind which of its names, by its text."""

from __future__ import annotations
import __future__

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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
class _Names:
    """What statements do to names.

    Attributes:
        bound: the names that they bind or delete; `assigned`, `defined`: by assignments, or as functions and classes.
        stored, called: those whose values they change in place (`a[0] = b`, `a.b = c`), or may (`a.append(b)`).
    """

    bound: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)

    def add(self, other: _Names) -> None:
        for mine, others in zip(vars(self).values(), vars(other).values(), strict=True):
            mine |= others

    def read(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.bound.add(node.name)
                self.defined.add(node.name)
                return
            case ast.Import():
                self.bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
                return
            case ast.ImportFrom():
                self.bound |= {alias.asname or alias.name for alias in node.names if alias.name != "*"}
                return
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp() | ast.Constant():
                return
            case ast.Name():
                if not isinstance(node.ctx, ast.Load):
                    self.bound.add(node.id)
                return
            case ast.Subscript() | ast.Attribute():
                if not isinstance(node.ctx, ast.Load):
                    self.stored |= _root(node.value)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                self.bound.add(name)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner))):
                self.called |= _root(owner)
        before = set(self.bound) if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for child in ast.iter_child_nodes(node):
            if not _is_main(child):
                self.read(child)
        if before is not None:
            self.assigned |= self.bound - before


@dataclass
class _Builder:
    """Reads the statements of one module, and what each of them does."""

    names: dict[int, _Names] = field(default_factory=dict)

    def block(self, nodes: Iterable[ast.stmt]) -> list[_Node]:
        return [self._read(part) for node in nodes if not _is_main(node) for part in _parts(node)]

    def _read(self, node: ast.stmt) -> _Node:
        index, names = len(self.names), _Names()
        self.names[index] = names
        blocks = [self.block(inner) for inner in _blocks(node)]
        if blocks:
            for name, value in ast.iter_fields(node):
                if name not in ("body", "orelse", "finalbody", "handlers"):
                    for part in value if isinstance(value, list) else filter(None, [value]):
                        names.read(part)
            for handler in getattr(node, "handlers", ()):
                names.bound |= {handler.name} - {None}
            for inner in blocks:
                for item in inner:
                    names.add(self.names[item.index])
        else:
            names.read(node)
        return _Node(node, index, blocks)


@dataclass
class _Node:
    """A statement whose names are yet to be decided: that takes all of the module's."""

    node: ast.stmt
    index: int
    blocks: list[list[_Node]]

    def statement(self, names: dict[int, _Names], variables: set[str], definitions: set[str]) -> Statement:
        found = names[self.index]
        own = found.bound | ((found.stored | found.called) & variables)
        changes = (found.stored & definitions) - own
        blocks = tuple(tuple(item.statement(names, variables, definitions) for item in block) for block in self.blocks)
        return Statement(self.node, self.index, frozenset(own | changes), blocks, frozenset(changes))


def read_bindings(tree: ast.Module) -> Bindings:
    """The symbol table of a module's text."""
    builder, total = _Builder(), _Names()
    nodes = builder.block(tree.body)
    for node in nodes:
        total.add(builder.names[node.index])
    statements = tuple(node.statement(builder.names, total.assigned, total.defined) for node in nodes)
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


def _blocks(node: ast.stmt) -> tuple[list[ast.stmt], ...]:
    match node:
        case ast.If():
            return node.body, node.orelse
        case ast.Try() | ast.TryStar():
            return node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody
        case ast.With():
            return (node.body,)
    return ()


def _root(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _is_star(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def _is_main(node: ast.AST) -> bool:
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
