"""The expression language of manifests and bundles.

Python syntax for arithmetic (`+ - * / // % **`), comparison, `and or not`, `a if c else b`, numbers, strings
and names, with these functions:

    cdiv(a, b)        a / b rounded up                  min(a, …) max(a, …) abs(a)
    next_pow2(n)      the smallest power of two >= n    given(tensor)    True if an optional tensor was passed
    elsize(t)         bytes per element of a tensor, or of a dtype variable
    stride(t, dim)    the stride of a tensor's dim, in elements; dim by name or by position
    innermost(t, dim) True if the dim is the tensor's innermost one
    is_aligned(t)     True if the tensor's address is a multiple of 16
    fits_32_bits(t)   True if all its bytes lie less than 2**31 bytes behind its address

`and` and `or` give True or False.

Evaluation always ends and is safe. There are no attributes, subscripts, loops, or other calls and names. Strings can
only be compared, and an exponent is a small literal. Nesting is limited, and so is the size of every intermediate
integer, where names count as 64 bits. Text is checked when a manifest is built, and again when a bundle is loaded.
"""

from __future__ import annotations

import ast
import operator
import re
import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from types import CodeType
from typing import Any

import msgspec

from aot_runtime.errors import ExpressionError

Value = int | float | bool | str

MAX_LENGTH = 4000
MAX_EXPONENT = 16
MAX_DEPTH = 64
MAX_BITS = 1024
"""Maximum size of an expression's integers, intermediate ones included; each name counts as `NAME_BITS`."""
NAME_BITS = 64
_CANDIDATES, _LISTED, _LONGEST = 200, 20, 64
"""Limits of `nearest`: names to compare with, names to list, and the length of a name that is compared."""

BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
COMPARE: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


def cdiv(a: int, b: int) -> int:
    """Return a / b rounded up, for integers."""
    return -(-a // b)


def next_pow2(n: int) -> int:
    """Return the smallest power of two >= n (1 for n <= 1). Raises TypeError if `n` is not an integer."""
    return 1 << max(0, operator.index(n) - 1).bit_length()


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "cdiv": cdiv,
    "max": max,
    "min": min,
    "next_pow2": next_pow2,
}
_ARITY = {"abs": (1, 1), "cdiv": (2, 2), "max": (2, 8), "min": (2, 8), "next_pow2": (1, 1)}
DIM_QUERIES, POINTER_QUERIES = ("stride", "innermost"), ("is_aligned", "fits_32_bits")
"""Queries about the layout of a tensor: about a dim, their second argument; and about its memory."""
_QUERIES = {"given": 1, "elsize": 1, **dict.fromkeys(DIM_QUERIES, 2), **dict.fromkeys(POINTER_QUERIES, 1)}
_WARNED_OF = re.compile(r"\\|(?<![A-Za-z_\d])\d[\d_.]*[A-Za-z]")
"""An escape, or a letter right after a number: text that Python may warn of."""
_FILTERS = threading.Lock()


def query_name(function: str | int, *arguments: str | int) -> str:
    """Return the name under which the value of a query, such as `given(t)` or `stride(t, d)`, is looked up."""
    return "__".join([f"_{function}", *map(str, arguments)])


class Expression(msgspec.Struct, frozen=True, eq=False):
    """A checked expression.

    Attributes:
        text: the expression in canonical spelling.
        names: the names it reads, except as arguments of queries.
        queries: (function, argument, …) of each question about a tensor, such as `given` and `stride`.
        tree: its syntax tree; do not modify it.
    """

    text: str
    names: frozenset[str]
    queries: frozenset[tuple[str | int, ...]]
    tree: ast.expr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def reads(self) -> frozenset[str]:
        """The names that an evaluation needs values of: plain names and query names."""
        return self.names | {query_name(*map(str, query)) for query in self.queries}

    @property
    def laid_out(self) -> list[str]:
        """The tensors in layout queries, sorted."""
        return sorted({str(query[1]) for query in self.queries if query[0] in (*DIM_QUERIES, *POINTER_QUERIES)})

    def check_names(self, names: Mapping[str, type], tensors: Mapping[str, Any] | None = None) -> None:
        """Raise `ExpressionError` if a name is not in `names`, or a string is used other than in a comparison.

        Args:
            names: name → Python type of its value (`int`, `float`, `bool`, `str`).
            tensors: names that queries may ask about.
        """
        for name in sorted(self.names):
            if name not in names:
                raise ExpressionError(f"'{self.text}' uses undefined name '{name}'{nearest(name, names)}")
        for function, subject, *_ in sorted(self.queries, key=str):
            known = tensors or {}
            if subject not in known and not (function == "elsize" and names.get(str(subject)) is str):
                raise ExpressionError(
                    f"'{self.text}': {function}({subject}): unknown tensor '{subject}'{nearest(str(subject), known)}"
                )
        _check_strings(self.tree, names, self.text, allowed=True)


def nearest(name: str, known: Collection[str]) -> str:
    """Return the end of an error message: `; did you mean 'x'?` or `; known: …`. Looks at a limited number of names."""
    import difflib  # needed for errors only
    from heapq import nsmallest

    likely = [item for item in islice(known, _CANDIDATES) if len(item) <= _LONGEST]
    close = difflib.get_close_matches(name, likely, n=1) if len(name) <= _LONGEST else ()
    if close:
        return f"; did you mean '{close[0]}'?"
    listed = [*nsmallest(_LISTED, known), *(["…"] if len(known) > _LISTED else [])]
    return f"; known: {', '.join(listed)}" if known else ""


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parse and check an expression. Raises `ExpressionError` if it is not in the language."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"expression of {len(text)} characters; at most {MAX_LENGTH} are allowed")
    try:
        tree = syntax_tree(text)
        _check(tree)
        if integer_bits(tree) > MAX_BITS:
            raise ExpressionError(f"it can come to an integer of more than {MAX_BITS} bits")
    except SyntaxError as error:
        raise ExpressionError(f"'{text}' is not an expression: {error.msg}") from None
    except (RecursionError, ValueError, MemoryError):
        raise ExpressionError(f"'{text[:40]}…' cannot be parsed: nested too deeply, or not text") from None
    except ExpressionError as error:
        raise ExpressionError(f"'{text}': {error}") from None
    canonical = ast.unparse(tree)
    if len(canonical) > MAX_LENGTH:
        raise ExpressionError(f"expression of {len(canonical)} characters; at most {MAX_LENGTH} are allowed")
    names: set[str] = set()
    queries: set[tuple[str | int, ...]] = set()
    _collect(tree, names, queries)
    return Expression(canonical, frozenset(names), frozenset(queries), tree)


def syntax_tree(text: str) -> ast.expr:
    """Parse a Python expression without warnings. Raises as `ast.parse` does.

    Python warns of invalid escapes and of words right after a number. Warning filters belong to the whole process, so
    they are changed only for text that may warn, under a lock.
    """
    if not _WARNED_OF.search(text):
        return ast.parse(text.strip(), mode="eval").body
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text.strip(), mode="eval").body


def _check(node: ast.AST, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return
        case ast.Name(id=name):
            if name.startswith("_"):
                raise ExpressionError(f"name '{name}' starts with an underscore")
            if name in FUNCTIONS:
                raise ExpressionError(f"'{name}' is a function; call it")
            return
        case ast.BinOp(op=op, left=left, right=right) if type(op) in BINARY:
            if isinstance(op, ast.Pow):
                _check_exponent(left, right)
            children = [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            children = [operand]
        case ast.BoolOp(values=values):
            children = list(values)
        case ast.Compare(left=left, ops=ops, comparators=comparators) if all(type(op) in COMPARE for op in ops):
            children = [left, *comparators]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            children = [test, body, orelse]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            low, high = _ARITY[name]
            if not low <= len(args) <= high or any(isinstance(arg, ast.Starred) for arg in args):
                raise ExpressionError(f"{name}() takes {low if low == high else f'{low} to {high}'} arguments")
            children = list(args)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _QUERIES:
            query_parts(node)
            return
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS or name in _QUERIES:
            raise ExpressionError(f"{name}() takes its arguments by position")
        case ast.Call(func=ast.Name(id=name)):
            raise ExpressionError(f"unknown function '{name}'{nearest(name, [*FUNCTIONS, *_QUERIES])}")
        case _:
            raise ExpressionError(f"{describe(node)} is not part of the expression language")
    for child in children:
        _check(child, depth + 1)


def _check_exponent(base: ast.expr, exponent: ast.expr) -> None:
    if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub):
        exponent = exponent.operand
    literal = isinstance(exponent, ast.Constant) and type(exponent.value) in (int, float)
    if not literal or abs(exponent.value) > MAX_EXPONENT:  # type: ignore[attr-defined]
        raise ExpressionError(f"an exponent is a literal number of at most {MAX_EXPONENT}")
    if any(isinstance(node, ast.Pow) for node in ast.walk(base)):
        raise ExpressionError("a power of a power is not allowed")


def query_parts(node: ast.AST) -> tuple[str | int, ...]:
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    function = node.func.id
    parts: list[str | int] = []
    for position, argument in enumerate(node.args):
        match argument:
            case ast.Name(id=name):
                parts.append(name)
            case ast.Constant(value=int(value)) if position == 1 and not isinstance(value, bool):
                parts.append(value)
            case _:
                raise ExpressionError(f"{function}() takes names, not '{ast.unparse(argument)}'")
    if len(parts) != _QUERIES[function]:
        raise ExpressionError(f"{function}() takes {_QUERIES[function]} argument(s)")
    return (function, *parts)


def query_of(node: ast.AST) -> str | None:
    """Return the `query_name` of a node of a checked expression; None if it is not a query."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _QUERIES:
        return query_name(*query_parts(node))
    return None


def integer_bits(node: ast.AST) -> int:
    """Return an upper bound on the bits of a checked expression's integers, intermediate ones included."""
    match node:
        case ast.Constant(value=int(value)):
            return value.bit_length()
        case ast.BinOp(op=op, left=left, right=right):
            bits = (integer_bits(left), integer_bits(right))
            if isinstance(op, ast.Pow):
                return bits[0] * max(1, int(abs(ast.literal_eval(right))))
            return sum(bits) if isinstance(op, ast.Mult) else max(bits) + 1
        case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
            return max(map(integer_bits, args)) + 1
        case ast.Name() | ast.Call():
            return NAME_BITS
    return max(map(integer_bits, ast.iter_child_nodes(node)), default=0)


def _collect(node: ast.AST, names: set[str], queries: set[tuple[str | int, ...]]) -> None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in _QUERIES:
            queries.add(query_parts(node))
            return
        for argument in node.args:
            _collect(argument, names, queries)
    elif isinstance(node, ast.Name):
        names.add(node.id)
    else:
        for child in ast.iter_child_nodes(node):
            _collect(child, names, queries)


def _check_strings(node: ast.AST, names: Mapping[str, type], text: str, allowed: bool) -> None:
    if (isinstance(node, ast.Constant) and isinstance(node.value, str)) or (
        isinstance(node, ast.Name) and names.get(node.id) is str
    ):
        if not allowed:
            raise ExpressionError(f"'{text}': text can only be compared with == and !=, not computed with")
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _QUERIES:
        return
    match node:
        case ast.Compare(ops=ops):
            inside = all(isinstance(op, ast.Eq | ast.NotEq) for op in ops)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            _check_strings(test, names, text, False)
            for branch in (body, orelse):
                _check_strings(branch, names, text, allowed)
            return
        case _:
            inside = False
    for child in ast.iter_child_nodes(node):
        if not isinstance(node, ast.Call) or child is not node.func:
            _check_strings(child, names, text, inside)


def describe(node: ast.AST) -> str:
    try:
        return f"'{ast.unparse(node)}'"
    except Exception:
        return type(node).__name__


# Evaluation: expressions compiled to Python functions, each when it is first evaluated.

Evaluator = Callable[[Mapping[str, Any]], Any]
"""A function from the values of an expression's names (queries under their `query_name`) to its value."""

_GLOBALS: dict[str, Any] = {"__builtins__": {}, **FUNCTIONS}


@lru_cache(maxsize=1 << 14)
def evaluator(text: str) -> Evaluator:
    """Return the function that evaluates an expression. Raises `ExpressionError` if `text` is not an expression.

    The function raises ArithmeticError or TypeError if the expression has no value.
    """
    tree = parse(text).tree
    query = query_of(tree)
    if query is not None:
        return itemgetter(query)
    match tree:
        case ast.Name(id=name):
            return itemgetter(name)
        case ast.Constant(value=value):
            return lambda names: value
    return _Compiled(text)


class _Compiled:
    __slots__ = ("code", "text")

    def __init__(self, text: str):
        self.text = text
        self.code: CodeType | None = None

    def __call__(self, names: Mapping[str, Any]) -> Any:
        if self.code is None:
            self.code = compile(python_tree(self.text), f"<aot_runtime expression: {self.text}>", "eval")
        return eval(self.code, _GLOBALS, names)


def python_tree(text: str) -> ast.Expression:
    """Return the Python syntax tree of a checked expression, ready to be compiled."""
    return ast.fix_missing_locations(_ToPython().visit(ast.parse(parse(text).text, mode="eval")))


class _ToPython(ast.NodeTransformer):
    """Translate the differences from Python: queries become names, `and` and `or` give True or False."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if all(isinstance(value, ast.Compare) or _is_not(value) for value in node.values):
            return node
        return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = query_of(node)
        return self.generic_visit(node) if name is None else ast.Name(name, ast.Load())


def _is_not(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
