"""Blocks that must hold a whole row: their sizes, and the limits on rows that follow."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from . import values
from .findings import Bound
from .sizes import renamed
from .tensors import text_of
from .workbench import Workbench

BLOCKS = [256, 1024, 4096, 16384]
"""Sizes of blocks that hold a row."""
HEADS = [32, 64, 128]
"""Sizes of blocks that hold a row of a matrix product."""
AddAxis = Callable[[str, list[int], str], None]


class Rows:
    """Finds the blocks that hold rows, and limits the rows' length in `require`."""

    def __init__(self, work: Workbench):
        self.work, self.op = work, work.op

    def limit(self, name: str) -> str:
        """Return the size that a block must hold as a whole, which bounds its range; empty if there is none."""
        return next(self._limits(name), "")

    def _limits(self, length: str) -> Iterator[str]:
        if length in self.work.found.loops:
            return
        for bound in self.work.found.bounds:
            if _is_range(bound, length) and (text := self._text(bound)):
                yield text

    def _text(self, bound: Bound) -> str:
        text = text_of(self.work.found, bound.limit)
        names = {name: f"({self.work.symbolic(name)})" for name in self.work.parameters if name.isidentifier()}
        return self.work.expression(self.work.launch.final(renamed(text, names))) if text else ""

    def add(self, name: str, limit: str, add_axis: AddAxis, most: int | None = None) -> None:
        """Add a block: the power of two that holds a row, up to the largest compiled one."""
        of_axis = next((axis for axis, dim in self.work.axis_dims.items() if dim == limit), "")
        sizes = self.op.constexprs.get(of_axis, {}).get("values")
        usual = HEADS if self.work.found.has_products else BLOCKS
        if most is not None:
            usual = [size for size in BLOCKS if size < most] + [most]
        blocks = sorted({1 << max(0, int(size) - 1).bit_length() for size in sizes}) if sizes else usual
        add_axis(name, blocks, f"smallest >= {limit}")
        if not sizes:
            self._require(limit, blocks[-1])

    def add_computed(self, name: str, text: str, add_axis: AddAxis) -> bool:
        """Add a block that the launch computes as a power of two. Returns False if its expression is not supported."""
        tree = ast.parse(text, mode="eval").body
        match _power(tree):
            case str(size), None:
                self.add(name, size, add_axis)
            case str(size), int(most) if self.limit(name):
                self.add(name, size, add_axis, most)
            case str(size), int(most):
                sizes = [block for block in BLOCKS if block < most] + [most]
                add_axis(name, sizes, f"smallest >= min({size}, {most})")
            case _:
                return False
        return True

    def require(self, name: str, value: str = "") -> None:
        """Limit the rows that a block of the configs must hold."""
        for limit in self._limits(name):
            self._require(limit, value or name)

    def require_literals(self) -> None:
        """Limit the rows that a range of constant length must hold."""
        lengths = {atom.key for bound in self.work.found.bounds for atom in bound.index.atoms if _is_literal(atom)}
        for length in sorted(lengths):
            for limit in self._limits(length):
                self._require(limit, int(length))

    def _require(self, limit: str, most: int | str) -> None:
        value = self.op.blocks.get(most, most) if isinstance(most, str) else most
        if (limit.isdigit() and isinstance(value, int)) or limit == str(most):
            return
        low = limit if re.fullmatch(r"[\w() ,*/+-]+", limit) else f"({limit})"
        condition = f"{low} <= {value}"
        if condition not in self.op.require:
            self.op.require.append(condition)


def _is_literal(atom: values.Atom) -> bool:
    return atom.kind == values.RANGE and atom.key.isdigit()


def _is_range(bound: Bound, length: str) -> bool:
    terms = list(bound.index.terms.items())
    return len(terms) == 1 and terms[0][1] == 1 and [(a.kind, a.key) for a in terms[0][0]] == [(values.RANGE, length)]


def _power(node: ast.expr) -> tuple[str, int | None] | None:
    """Return (size, its maximum) of `next_pow2(size)`, alone or in `min(4096, ...)` or `max(16, ...)`."""
    match node:
        case ast.Call(func=ast.Name(id="next_pow2"), args=[size]):
            return ast.unparse(size), None
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[one, two]):
            for number, other in ((one, two), (two, one)):
                inner = _power(other)
                if isinstance(number, ast.Constant) and isinstance(number.value, int) and inner and inner[1] is None:
                    return inner[0], number.value if name == "min" else None
    return None
