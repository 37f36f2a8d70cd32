"""How the file of a kernel launches it: what is passed for each parameter, with which options, on which grid.

Of a file with several launches of a kernel the first is taken. It is read, not run: a name stands for what was last
assigned to it before the launch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_STEPS = 8
"""Names that are followed from one assignment to the next."""
_ON_AMD = {"is_hip": True, "is_cuda": False, "is_xpu": False, "is_npu": False}
"""Questions about the machine, answered for AMD, whose limits are the narrower."""


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        arguments: parameter → what is passed for it.
        options: what is passed besides, for the compiler.
        grid: its extents, if they are a list.
        names: what each name of the function around it was last assigned.
        shapes: a name that was unpacked from a tensor's shape → (tensor, dim, dims).
    """

    arguments: Mapping[str, ast.expr] = field(default_factory=dict)
    options: Mapping[str, ast.expr] = field(default_factory=dict)
    grid: tuple[ast.expr, ...] = ()
    names: Mapping[str, ast.expr] = field(default_factory=dict)
    shapes: Mapping[str, tuple[str, int, int]] = field(default_factory=dict)

    def text(self, parameter: str) -> str:
        """What is passed for a parameter, as text."""
        return ast.unparse(self.arguments[parameter]) if parameter in self.arguments else ""

    def constant(self, node: ast.expr | None, steps: int = MAX_STEPS) -> Any:
        """The number, boolean or text that an expression is; None where it is none."""
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.constant(operand, steps)
                return -value if isinstance(value, int | float) else None
            case ast.Name(id=name) if name in self.names and steps:
                return self.constant(self.names[name], steps - 1)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                holds = _machine(test)
                if holds is not None:
                    return self.constant(body if holds else orelse, steps)
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                both = [self.constant(item, steps) for item in (left, right)]
                return both[0] * both[1] if all(type(item) is int for item in both) else None
        return None

    def stride(self, parameter: str) -> tuple[str, int] | None:
        """(tensor, dim) of the stride that is passed for a parameter."""
        node = self.followed(self.arguments.get(parameter))
        if isinstance(node, ast.IfExp):
            node = node.body
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="stride"), args=[dim]):
                position = self.constant(dim)
                return (ast.unparse(owner), position) if isinstance(position, int) else None
        return None

    def present(self, parameter: str) -> str:
        """The tensor of which a parameter says whether there is one; empty for anything else."""
        node = self.followed(self.arguments.get(parameter))
        test = node.test if isinstance(node, ast.IfExp) and self.constant(node.body) is True else node
        match test:
            case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
                return ast.unparse(left)
        return ""

    def size(self, node: ast.expr) -> tuple[str, int, int] | None:
        """(tensor, dim, dims of the tensor or 0) of what is the size of a tensor's dim."""
        match node:
            case ast.Name(id=name):
                return self.shapes.get(name)
            case ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=ast.Constant(value=int(dim))):
                return (ast.unparse(owner), dim, 0) if dim >= 0 else None
            case ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[ast.Constant(value=int(dim))]):
                return (ast.unparse(owner), dim, 0) if dim >= 0 else None
        return None

    def parameter_of(self, text: str, among: Collection[str]) -> str:
        """The parameter of some that an expression is passed for."""
        return next((name for name in among if name in self.arguments and self.text(name) == text), "")

    def expression(self, node: ast.expr, known: Callable[[ast.expr], str], steps: int = MAX_STEPS) -> str:
        """An expression in the language of manifests; empty where it is none.

        Args:
            known: what a name or a size of a tensor is there; empty for what is neither.
        """
        if found := known(node):
            return found
        match node:
            case ast.Constant(value=int() as value):
                return str(value)
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                return name
            case ast.Name(id=name) if name in self.names and steps:
                return self.expression(self.names[name], known, steps - 1)
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
                parts = [self.expression(item, known, steps) for item in (left, right)]
                return f"({parts[0]} {_OPERATORS[type(op)]} {parts[1]})" if all(parts) else ""
            case ast.Call(func=function, args=arguments, keywords=[]):
                name = _FUNCTIONS.get(ast.unparse(function).rpartition(".")[2], "")
                parts = [self.expression(item, known, steps) for item in arguments]
                if name == "int":
                    return parts[0]
                return f"{name}({', '.join(parts)})" if name and all(parts) else ""
        return ""

    def followed(self, node: ast.expr | None) -> ast.expr | None:
        """What a name was assigned; anything else as it is."""
        steps = MAX_STEPS
        while isinstance(node, ast.Name) and node.id in self.names and steps:
            node, steps = self.names[node.id], steps - 1
        return node


_OPERATORS: Mapping[type, str] = {ast.Mult: "*", ast.Add: "+", ast.Sub: "-", ast.FloorDiv: "//", ast.Mod: "%"}
_FUNCTIONS = {
    "cdiv": "cdiv",
    "next_power_of_2": "next_pow2",
    "min": "min",
    "max": "max",
    "int": "int",
    "ceil_div": "cdiv",
}


def find_launch(module: str, kernel: str, parameters: Sequence[str]) -> Launch:
    """The first launch of a kernel in a file's text; an empty one where there is none."""
    try:
        tree = ast.parse(module)
    except SyntaxError:
        return Launch()
    outer = _assigned(tree.body, 1 << 30)
    scopes: list[ast.FunctionDef | ast.Module] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for scope in (*scopes, tree):
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and _is(node.func.value, kernel):
                return _launch(node, scope, outer, parameters)
    return Launch()


def _is(node: ast.expr, kernel: str) -> bool:
    return ast.unparse(node).rpartition(".")[2] == kernel


def _launch(
    call: ast.Call, scope: ast.FunctionDef | ast.Module, outer: Mapping[str, ast.expr], parameters: Sequence[str]
) -> Launch:
    assert isinstance(call.func, ast.Subscript)
    own = _assigned(scope.body, call.lineno)
    names = {**outer, **_parameters(scope), **own} if isinstance(scope, ast.FunctionDef) else dict(outer)
    positional = dict(zip(parameters, call.args, strict=False))
    named = {item.arg: item.value for item in call.keywords if item.arg}
    options = {name: value for name, value in named.items() if name not in parameters}
    arguments = {**positional, **{name: value for name, value in named.items() if name in parameters}}
    return Launch(arguments, options, _grid(call.func.slice, names), names, _shapes(scope.body, call.lineno))


def _grid(node: ast.expr, names: Mapping[str, ast.expr]) -> tuple[ast.expr, ...]:
    steps = MAX_STEPS
    while isinstance(node, ast.Name) and node.id in names and steps:
        node, steps = names[node.id], steps - 1
    if isinstance(node, ast.Lambda):
        node = node.body
    return tuple(node.elts) if isinstance(node, ast.Tuple | ast.List) else ()


def _assigned(body: Sequence[ast.stmt], before: int) -> dict[str, ast.expr]:
    """What each name was last assigned before a line; of a `def` inside that it returns."""
    found: dict[str, ast.expr] = {}
    for node in _statements(body, before):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                found[name] = value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=parts)) if len(names) == len(parts):
                found |= {item.id: part for item, part in zip(names, parts, strict=True) if isinstance(item, ast.Name)}
            case ast.Assign(targets=[ast.Tuple(elts=names)]):
                found |= {item.id: ast.Constant(None) for item in names if isinstance(item, ast.Name)}
            case ast.FunctionDef(name=name, body=inner) if isinstance(inner[-1], ast.Return) and inner[-1].value:
                found[name] = ast.Lambda(node.args, inner[-1].value)
    # `M = M or 1` and the like would never end.
    return {name: value for name, value in found.items() if not _mentions(value, name)}


def _mentions(node: ast.expr, name: str) -> bool:
    return any(isinstance(item, ast.Name) and item.id == name for item in ast.walk(node))


def _shapes(body: Sequence[ast.stmt], before: int) -> dict[str, tuple[str, int, int]]:
    """Names that were unpacked from a shape: `M, K = a.shape`, `B, H = q.shape[:2]`."""
    found = {}
    for node in _statements(body, before):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Attribute(value=owner, attr="shape")):
                count = len(names)
            case ast.Assign(
                targets=[ast.Tuple(elts=names)],
                value=ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=ast.Slice(lower=None)),
            ):
                count = 0
            case _:
                continue
        for i, item in enumerate(names):
            if isinstance(item, ast.Name) and item.id != "_":
                found[item.id] = (ast.unparse(owner), i, count)
    return found


def _statements(body: Sequence[ast.stmt], before: int) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for node in body:
        if node.lineno >= before:
            break
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                found += _statements(getattr(node, name, []), before)
    return found


def _parameters(scope: ast.FunctionDef) -> dict[str, ast.expr]:
    """The defaults of a function's parameters; of those without one nothing is known, whatever else has their names."""
    names = [item.arg for item in (*scope.args.posonlyargs, *scope.args.args)]
    given = scope.args.defaults
    found: dict[str, ast.expr] = {name: ast.Constant(None) for name in names}
    found |= dict(zip(names[len(names) - len(given) :], given, strict=True))
    keywords = zip(scope.args.kwonlyargs, scope.args.kw_defaults, strict=True)
    return found | {item.arg: value or ast.Constant(None) for item, value in keywords}


def _machine(test: ast.expr) -> bool | None:
    """Whether a question about the machine is answered with yes."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _machine(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.Call):
        return _ON_AMD.get(ast.unparse(test.func).rpartition(".")[2])
    return None
