"""How many elements a kernel wants of its parameters that are tuples, as far as its text tells."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TupleUse:
    """What a kernel does with a parameter that is a tuple.

    Attributes:
        least: elements that it must have.
        most: elements that it may have; None: any number.
        text: the line of the kernel that says so.
    """

    least: int
    most: int | None
    text: str


def tuple_uses(kernel: Any) -> Mapping[str, TupleUse]:
    """The use of each parameter of a kernel that is unpacked (`a, b = strides`), or indexed by numbers (`strides[1]`).

    A parameter that is assigned to somewhere may become anything, and is left out.
    """
    tree = kernel.parse()
    parameters = {parameter.name for parameter in kernel.params}
    parameters -= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found: dict[str, TupleUse] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Name(id=name)):
                starred = any(isinstance(part, ast.Starred) for part in parts)
                use = TupleUse(len(parts) - starred, None if starred else len(parts), ast.unparse(node))
            case ast.Subscript(value=ast.Name(id=name), slice=index) if (number := _number(index)) is not None:
                use = TupleUse(number + 1 if number >= 0 else -number, None, ast.unparse(node))
            case _:
                continue
        before = found.get(name)
        if name in parameters and (before is None or (before.most is None and use.least > before.least)):
            found[name] = use
    return found


def _number(index: ast.expr) -> int | None:
    match index:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    return None
