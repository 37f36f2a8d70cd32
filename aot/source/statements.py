"""Statements of a module with the names that they bind and read, and globals that a function reads."""

from __future__ import annotations

import ast
import copy
import dis
import functools
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType

Conditions = tuple[tuple[ast.If, bool], ...]


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement at module level, or in a branch of an `if` at module level.

    Attributes:
        index: its place among the module's statements.
        binds: names that it binds, deletes or changes in place (`a.append(b)`).
        patches: functions and classes of which it sets an attribute.
        conditions: each `if` that it is in, and the outcome for which it runs.
    """

    node: ast.stmt
    index: int
    binds: frozenset[str]
    patches: frozenset[str]
    conditions: Conditions

    @property
    def is_star(self) -> bool:
        return isinstance(self.node, ast.ImportFrom) and self.node.names[0].name == "*"

    @functools.cached_property
    def reads(self) -> set[str]:
        """Names of the module that it and its conditions read, functions that it defines included."""
        tests = (ast.copy_location(ast.Expr(test.test), test) for test, _ in self.conditions)
        return {name for node in (self.node, *tests) for name in read_names(node)}


def module_statements(tree: ast.Module) -> tuple[Statement, ...]:
    """Return the statements of a module in order, with imports name by name, without `if __name__ == "__main__"`."""
    leaves = [(node, conditions, bound_names(node)) for node, conditions in _leaves(tree.body, ())]
    defined = {node.name for node, *_ in leaves if isinstance(node, _DEFINITIONS)}
    variables = {
        name for node, _, binds in leaves if not isinstance(node, (*_DEFINITIONS, *_IMPORTS)) for name in binds
    }
    return tuple(
        Statement(
            node,
            index,
            frozenset(binds | (_changed(node) & variables)),
            frozenset(_changed(node, called=False) & defined - binds),
            conditions,
        )
        for index, (node, conditions, binds) in enumerate(leaves)
    )


def inner_statements(node: ast.stmt) -> Iterator[ast.stmt]:
    """Return the statements of the body of a `try` or `with`, with imports name by name; of other statements none."""
    if isinstance(node, ast.Try | ast.TryStar | ast.With):
        for inner, _ in _leaves(node.body, ()):
            yield inner
            yield from inner_statements(inner)


def bound_names(node: ast.stmt) -> set[str]:
    """Return the names of the module that a statement binds or deletes."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {alias.asname or alias.name.partition(".")[0] for alias in names} - {"*"}
    return _operands(_compiled(node), _BINDING)


def read_names(node: ast.stmt) -> set[str]:
    """Return the names of the module that a statement, or a function that it defines, reads."""
    if isinstance(node, ast.FunctionDef):
        node = copy.copy(node)
        node.decorator_list = used_decorators(node)
    return {name for code in _with_inner(_compiled(node)) for name in _operands(code, _READING)}


def jit_names(tree: ast.AST) -> list[str]:
    """Return the functions of a file that are marked as jit functions."""
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and is_jit_text(node)]


def is_jit_text(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(item) for item in node.decorator_list)


def used_decorators(function: ast.FunctionDef) -> list[ast.expr]:
    """Return the decorators of a function that are applied, from the innermost one.

    Outside of `triton.jit`, these are only decorators named `triton.autotune`, `triton.heuristics`, or like them.
    """
    found: list[ast.expr] = []
    within = True
    for decorator in reversed(function.decorator_list):
        name = called_name(decorator)
        if within or "tune" in name or name == "heuristics":
            found.append(decorator)
        within = within and "jit" not in ast.unparse(decorator)
    return found


def called_name(decorator: ast.expr) -> str:
    """Return the last part of a decorator's name."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return str(getattr(called, "attr", getattr(called, "id", "")))


def _leaves(body: Iterable[ast.stmt], conditions: Conditions) -> Iterator[tuple[ast.stmt, Conditions]]:
    for node in body:
        match node:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]), orelse=[]):
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


def _compiled(node: ast.stmt) -> CodeType:
    try:
        return compile(ast.Module([node], []), "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # it will not run
        return compile("", "", "exec")


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _operands(code: CodeType, operations: Container[int]) -> set[str]:
    """Return the names that are operands of these operations in code."""
    found, extension = set(), 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument |= extension
        extension = argument << 8 if operation == dis.EXTENDED_ARG else 0
        if operation in operations:
            found.add(code.co_names[argument >> 1 if operation == _LOAD_GLOBAL else argument])
    return found


def _changed(statement: ast.stmt, called: bool = True) -> set[str]:
    """Names of which a statement sets an attribute or an item, or calls a method for its effect."""
    found: set[str] = set()
    for node in ast.walk(statement) if not isinstance(statement, _DEFINITIONS) else ():
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                found.add(_root(node))
            case ast.Expr(value=ast.Call(func=ast.Attribute() as method)) if called:
                found.add(_root(method))
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_BINDING = [dis.opmap[name] for name in ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL")]
_READING = [_LOAD_GLOBAL, *(dis.opmap.get(name, -1) for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))]


@dataclass(frozen=True)
class Read:
    """A global that a function reads.

    Attributes:
        path: the name, and the attributes that are taken of it one after the other.
        line: counted from the function's first.
        certain: every compilation of the function reads it: it is in no branch, loop or signature, and nothing before
            it returns.
        called: the value is called.
    """

    path: tuple[str, ...]
    line: int
    certain: bool
    called: bool


@functools.lru_cache(maxsize=1024)
def function_tree(source: str) -> ast.FunctionDef:
    """Return the syntax tree of a function, which is cached: do not change it."""
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    return node


def body_reads(function: ast.FunctionDef) -> tuple[Read, ...]:
    """Return the globals that a function's body reads, in order. A name that is bound before it is read is local, as in
    Triton.
    """
    body: list[Read] = []
    arguments = [node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)]
    local, certain = set(arguments), True
    called: set[int] = set()
    for statement in function.body:
        sure = {id(node) for node in _always(statement)} if certain else set()
        for node in _in_order(statement):
            if isinstance(node, ast.Call):
                called.add(id(node.func))
            certain = certain and not isinstance(node, ast.Return)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                local.add(node.id)
            elif (path := dotted(node)) and path[0] not in local:
                line = getattr(node, "lineno", 1) - function.lineno + 1
                body.append(Read(path, line, id(node) in sure, id(node) in called))
    return tuple(body)


def global_paths(function: ast.FunctionDef) -> set[tuple[str, ...]]:
    """Return the dotted names of globals that a function's body or signature reads, with their prefixes: `a`, `a.b`.

    Local variables are left out, even if the module has a global of the same name. The globals that a module has
    depend on the functions that were loaded before.
    """
    signature = [dotted(node) for part in (function.args, function.returns) if part for node in ast.walk(part)]
    paths = [*(read.path for read in body_reads(function)), *signature]
    return {path[:length] for path in paths for length in range(1, len(path) + 1)}


def signature_reads(function: ast.FunctionDef) -> dict[str, frozenset[str]]:
    """Return the names in annotations and defaults of a function's parameters → attributes read of them there."""
    parts = [function.args, *filter(None, [function.returns])]
    nodes = [node for part in parts for node in ast.walk(part)]
    text = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)} | {name for name in text if name.isidentifier()}
    return dict.fromkeys(names, frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute)))


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and its descendants, values before assignment targets. A dotted name is a single node."""
    yield node
    if not dotted(node):
        for _, value in sorted(ast.iter_fields(node), key=lambda item: item[0] in ("target", "targets", "body")):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _in_order(child)


def _always(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node of a function, and the descendants that are evaluated whenever it is."""
    yield node
    match node:
        case ast.For(iter=first) | ast.While(test=first) | ast.If(test=first) | ast.IfExp(test=first):
            children: Iterable[ast.AST] = [first]
        case ast.BoolOp(values=[first, *_]):
            children = [first]
        case ast.Try() | ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            children = []
        case _:
            children = () if isinstance(node, _DEFINITIONS) else ast.iter_child_nodes(node)
    for child in children:
        yield from _always(child)


def dotted(node: ast.AST) -> tuple[str, ...]:
    """Return the parts of a dotted name; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=owner, attr=attribute):
            above = dotted(owner)
            return (*above, attribute) if above else ()
    return ()
