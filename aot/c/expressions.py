"""Translate a contract's expressions to C functions over the values of `support/values.h`.

A function computes the same as the runtime's evaluator, in 64-bit integers. If an intermediate value needs more bits,
or Python would raise an exception, the evaluation records a fault instead of a value. Texts are only compared, so each
is represented by its position in a table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping

from aot_runtime.contract import records
from aot_runtime.contract.expressions import parse, query_of

from .dtypes import ABSENT, DTYPE_NUMBERS
from .spelling import integer, number, string, uncommented

_BINARY: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow",
}  # fmt: skip
_UNARY: Mapping[type[ast.AST], str] = {ast.USub: "neg", ast.UAdd: "pos"}
_COMPARE: Mapping[type[ast.AST], str] = {
    ast.Eq: "aot_eq(", ast.NotEq: "!aot_eq(", ast.Lt: "aot_lt(e, ", ast.LtE: "aot_le(e, ", ast.Gt: "aot_gt(e, ",
    ast.GtE: "aot_ge(e, ",
}  # fmt: skip

Codes = Mapping[str, str]
"""Name, or `query_name` of a query → C expression of its value."""


class Texts:
    """The table of all texts of values. Dtypes come first, each at its number in `aot_dtype`."""

    def __init__(self) -> None:
        self._positions = {name: i for i, name in enumerate((ABSENT, *DTYPE_NUMBERS))}

    def position(self, text: str) -> int:
        """Return the position of a text, adding it if it is new."""
        return self._positions.setdefault(text, len(self._positions))

    def text(self, position: int) -> str:
        """Return the text at a position."""
        return list(self._positions)[position]

    @property
    def lines(self) -> Iterable[str]:
        """Return the table as C source."""
        yield "static const char *const aot_texts[] = {"
        yield from (f"    {string(text)}," for text in self._positions)
        yield "};"


class Functions:
    """The functions of a bundle's expressions. Equal expressions share a function."""

    def __init__(self, texts: Texts):
        self.texts = texts
        self.chains = 0
        """Maximum number of temporary values in an expression."""
        self._names: dict[tuple[str, str], str] = {}

    def function(self, text: str, codes: Codes) -> str:
        """Return the name of the function that evaluates an expression, adding it if it is new."""
        tree = parse(text).tree
        writer = _Writer(self.texts, codes)
        key = (writer.value(tree), parse(text).text)
        self.chains = max(self.chains, writer.chains)
        return self._names.setdefault(key, f"aot_x{len(self._names)}")

    def optional(self, text: str, codes: Codes) -> str:
        """Like `function`, but NULL for an empty text."""
        return self.function(text, codes) if text else "NULL"

    def constant(self, value: records.Value) -> str:
        """Return the C initialiser of a value."""
        match value:
            case bool():
                return f"{{AOT_KIND_BOOL, {int(value)}, 0.0}}"
            case int():
                return f"{{AOT_KIND_INT, {integer(value)}, 0.0}}"
            case float():
                return f"{{AOT_KIND_FLOAT, 0, {number(value)}}}"
        return f"{{AOT_KIND_TEXT, {self.texts.position(value)}, 0.0}}"

    @property
    def lines(self) -> Iterable[str]:
        """Return the functions as C source, each with its expression in a comment."""
        for (body, text), name in self._names.items():
            unused = "" if re.search(r"\be\b", body) else "(void)e; "
            yield f"/* {uncommented(text)} */"
            yield f"static aot_value {name}(aot_eval *e) {{ {unused}return {body}; }}"


class _Writer:
    """Writes one expression in C."""

    def __init__(self, texts: Texts, codes: Codes):
        self.texts, self.codes, self.chains = texts, codes, 0

    def value(self, node: ast.expr) -> str:
        query = query_of(node)
        if query is not None:
            return self.codes[query]
        match node:
            case ast.Constant(value=bool(flag)):
                return f"aot_b({'true' if flag else 'false'})"
            case ast.Constant(value=int(literal)):
                return f"aot_i({integer(literal)})" if literal < 2**63 else "aot_faulty(e, aot_overflow)"
            case ast.Constant(value=float(literal)):
                return f"aot_f({number(literal)})"
            case ast.Constant(value=str(literal)):
                return f"aot_s({self.texts.position(literal)})"
            case ast.Name(id=name):
                return self.codes[name]
            case ast.BinOp(op=op, left=left, right=right):
                return f"aot_{_BINARY[type(op)]}(e, {self.value(left)}, {self.value(right)})"
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return f"aot_{_UNARY[type(op)]}(e, {self.value(operand)})"
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return f"({self.truth(test)} ? {self.value(body)} : {self.value(orelse)})"
            case ast.Call(func=ast.Name(id=name), args=[first, *others]):
                return self._call(name, first, others)
        return f"aot_b({self.truth(node)})"

    def truth(self, node: ast.expr) -> str:
        match node:
            case ast.BoolOp(op=op, values=values):
                sign = " || " if isinstance(op, ast.Or) else " && "
                return f"({sign.join(map(self.truth, values))})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"!{self.truth(operand)}"
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._compare(left, ops, comparators)
        return f"aot_true(e, {self.value(node)})"

    def _call(self, name: str, first: ast.expr, others: list[ast.expr]) -> str:
        code = self.value(first)
        if not others:
            return f"aot_{name}(e, {code})"
        for other in others:
            code = f"aot_{name}(e, {code}, {self.value(other)})"
        return code

    def _compare(self, left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr]) -> str:
        parts, before = [], self.value(left)
        for op, node in zip(ops, comparators, strict=True):
            code = self.value(node)
            if node is not comparators[-1]:
                kept = f"e->t[{self.chains}]"
                self.chains += 1
                parts.append(f"{_COMPARE[type(op)]}{before}, {kept} = {code})")
                before = kept
            else:
                parts.append(f"{_COMPARE[type(op)]}{before}, {code})")
        return parts[0] if len(parts) == 1 else f"({' && '.join(parts)})"
