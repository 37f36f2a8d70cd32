"""What the expressions of a kernel are: sums, masks, descriptors; and what they load, store and call."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import values
from .findings import READ, UPDATE, WRITE, Access, Bound, Described, Findings, Guard
from .texts import FunctionText, KernelText
from .values import Atom, Sum, other

MAX_CALLS = 12
"""Depth of functions within functions."""

_HINTS = ("multiple_of", "max_contiguous", "max_constancy")
_SHAPES = ("broadcast_to", "expand_dims", "view", "reshape", "ravel", "trans", "permute")
_THROUGH = frozenset({"to", "cast", "abs", "int", "float", "bitcast", *_HINTS, *_SHAPES})
"""Functions and methods whose value is, for what is looked for here, their first argument."""
_ATOMICS = frozenset(f"atomic_{name}" for name in ("add", "max", "min", "and", "or", "xor", "cas", "xchg"))
_BUFFERS = {
    "buffer_load": (READ, ("ptr", "offsets", "mask")),
    "buffer_store": (WRITE, ("stored_value", "ptr", "offsets", "mask")),
    "buffer_load_to_shared": (READ, ("dest", "ptr", "offsets", "mask")),
    "global_load_to_shared": (READ, ("dest", "ptr", "mask")),
    **{f"buffer_{name}": (UPDATE, ("ptr", "offsets", "value", "mask")) for name in _ATOMICS},
}
"""Accesses of Gluon that have offsets beside the pointer: what they do, and their first parameters."""
_FRACTIONS = frozenset(
    ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sigmoid", "softmax", "tanh", "erf", "dot", "sum", "sin", "cos")
)


@dataclass(frozen=True)
class _Handle:
    """A tensor descriptor: of a parameter, or made in the kernel."""

    described: Described | None
    parameter: str = ""


@dataclass(frozen=True)
class _Module:
    """A name that is nothing of the kernel's own."""

    name: str


@dataclass(frozen=True)
class Text:
    """A constant that is no whole number."""

    value: object


@dataclass(frozen=True)
class _Mask:
    """Conditions that hold where a mask is true."""

    bounds: tuple[Bound, ...]
    value: Sum


Value = Any  # Sum, tuple of values, _Handle, Text, _Mask


@dataclass
class Frame:
    """A function that is being gone through."""

    text: FunctionText
    names: dict[str, Value]
    result: Value = None


class Expressions:
    """Goes through expressions. What goes through statements is made of it."""

    def __init__(self, kernel: KernelText):
        self.kernel = kernel
        self.found = Findings()
        self._guards: list[Guard] = []
        self._silent = 0
        self._depth = 0
        self._counter = 0

    def function(self, frame: Frame) -> Value:
        """Go through a function; what it returns."""
        raise NotImplementedError

    def _condition(self, node: ast.expr, frame: Frame) -> tuple[list[Guard], list[Guard]]:
        """What is known of parameters where a condition holds, and where it does not."""
        raise NotImplementedError

    def _value(self, node: ast.expr, frame: Frame) -> Value:
        match node:
            case ast.Constant(value=bool() | str() | float() | None as value):
                return Text(value)
            case ast.Constant(value=int() as number):
                return Sum.number(number)
            case ast.Name() | ast.Attribute():
                return self._name(node, frame)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return tuple(self._value(part, frame) for part in parts)
            case ast.BinOp():
                return self._operation(node, frame)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Sum.number(0).plus(whole(self._value(operand, frame)), -1)
            case ast.UnaryOp(operand=operand) | ast.Starred(value=operand) | ast.Slice(lower=ast.expr() as operand):
                return self._value(operand, frame)
            case ast.Compare(left=left, ops=ops, comparators=rights):
                return self._compare([left, *rights], ops, frame)
            case ast.BoolOp(values=parts):
                return _joined([self._value(part, frame) for part in parts])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._either(test, body, orelse, frame)
            case ast.Subscript(value=owner, slice=index):
                return self._subscript(self._value(owner, frame), index)
            case ast.Call():
                return self._call(node, frame)
        return self._other([], ast.unparse(node))

    def _either(self, test: ast.expr, body: ast.expr, orelse: ast.expr, frame: Frame) -> Value:
        guards, opposite = self._condition(test, frame)
        self._guards += guards
        first = self._value(body, frame)
        del self._guards[len(self._guards) - len(guards) :]
        self._guards += opposite
        second = self._value(orelse, frame)
        del self._guards[len(self._guards) - len(opposite) :]
        return second if isinstance(first, Text) or (isinstance(first, Sum) and not first.atoms) else first

    def _name(self, node: ast.Name | ast.Attribute, frame: Frame) -> Value:
        text = ast.unparse(node)
        if text in frame.names:
            return frame.names[text]
        if text in frame.text.constants:
            value = frame.text.constants[text]
            return Sum.number(value) if type(value) is int else Text(value)
        if text.partition(".")[0] not in frame.names:
            return _Module(text)
        assert isinstance(node, ast.Attribute)
        inner = self._value(node.value, frame)
        return inner if node.attr in ("T", "value") else self._other([whole(inner)], text)

    def _operation(self, node: ast.BinOp, frame: Frame) -> Value:
        first, second = self._value(node.left, frame), self._value(node.right, frame)
        if isinstance(node.op, ast.BitAnd | ast.BitOr) or isinstance(first, _Mask) or isinstance(second, _Mask):
            return _joined([first, second])
        left, right = whole(first), whole(second)
        for name in filter(None, (left.argument(), right.argument())):
            if not self._silent and isinstance(node.op, ast.Add | ast.Sub):
                self.found.moved[name].append(tuple(self._guards))
        match node.op:
            case ast.Add():
                return left.plus(right)
            case ast.Sub():
                return left.plus(right, -1)
            case ast.Mult():
                self._note_fraction(left, right)
                return left.times(right)
            case ast.Mod():
                result = other(
                    f"{sorted(map(str, left.key()))} % {right.argument() or right.constant}",
                    [left, right],
                    values.REMAINDER,
                )
                self._bound(Bound(result, right))
                return result
            case ast.FloorDiv():
                return other(
                    f"{sorted(map(str, left.key()))} // {right.argument() or right.constant}",
                    [left, right],
                    values.QUOTIENT,
                )
            case ast.Div() | ast.Pow():
                for name in (left.argument(), right.argument()):
                    self._note(self.found.floats, name)
        return self._other([left, right], ast.unparse(node))

    def _note_fraction(self, left: Sum, right: Sum) -> None:
        """An argument that multiplies a loaded value is a fraction, if nothing else is known."""
        for one, two in ((left, right), (right, left)):
            if one.argument() and any(atom.kind == values.LOADED for atom in two.below):
                self._note(self.found.floats, one.argument())

    def _compare(self, nodes: Sequence[ast.expr], ops: Sequence[ast.cmpop], frame: Frame) -> Value:
        parts = [self._value(node, frame) for node in nodes]
        bounds = []
        for left, op, right in zip(parts, ops, parts[1:], strict=False):
            low, high = (right, left) if isinstance(op, ast.Gt | ast.GtE) else (left, right)
            if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and not (
                isinstance(low, Text) or isinstance(high, Text)
            ):
                bounds.append(_normal(whole(low), whole(high)))
                self._bound(bounds[-1])
            if isinstance(op, ast.Eq | ast.NotEq):
                for item in (left, right):
                    self._note(self.found.integers, argument_of(item))
        return _Mask(tuple(bounds), self._other([whole(part) for part in parts], "a comparison"))

    def _subscript(self, owner: Value, index: ast.expr) -> Value:
        if isinstance(owner, tuple) and isinstance(index, ast.Constant) and isinstance(index.value, int):
            return owner[index.value] if -len(owner) <= index.value < len(owner) else self._other([], "a part")
        return owner  # [:, None]: the same numbers

    # Calls

    def _call(self, node: ast.Call, frame: Frame) -> Value:
        text = ast.unparse(node.func)
        last = text.rpartition(".")[2]
        if text in frame.text.calls:
            return self._inlined(frame.text.calls[text], node, frame)
        callee = self._value(node.func.value, frame) if isinstance(node.func, ast.Attribute) else None
        if isinstance(callee, _Handle) or (last in ("load", "store", "gather", "scatter") and argument_of(callee)):
            return self._through_handle(callee, last, node, frame)
        positional = [self._value(item, frame) for item in node.args]
        named = {item.arg: self._value(item.value, frame) for item in node.keywords if item.arg}
        if isinstance(node.func, ast.Name) and (name := argument_of(frame.names.get(node.func.id))):
            self._note(self.found.functions, name)
        typed = positional[:1] if last == "to" else positional[1:] if last in ("zeros", "cast", "full") else []
        for value in (named.get("dtype"), named.get("out_dtype"), *typed):
            self._note(self.found.dtypes, argument_of(value))
        of = [] if callee is None or isinstance(callee, _Module) else [callee]
        return self._builtin(last, [*of, *positional], named, node)

    def _builtin(self, name: str, given: list[Value], named: Mapping[str, Value], node: ast.Call) -> Value:
        first = given[0] if given else next(iter(named.values()), None)
        if name == "program_id":
            axis = (whole(named["axis"]) if "axis" in named else whole(first)).constant or 0
            self._note(self.found.programs, axis)
            return Sum.of(Atom(values.PROGRAM, str(axis)))
        if name == "num_programs":
            axis = (whole(named["axis"]) if "axis" in named else whole(first)).constant or 0
            self._note(self.found.persistent, axis)
            return Sum.of(Atom(values.PROGRAMS, str(axis)))
        if name == "arange":
            return self._range(given, named)
        if name == "load":
            mask = named.get("mask", given[1] if len(given) > 1 else None)
            return self._access(READ, whole(first), mask)
        if name == "store":
            mask = named.get("mask", given[2] if len(given) > 2 else None)
            self._access(WRITE, whole(first), mask)
            return Sum.number(0)
        if name in _BUFFERS:
            kind, parameters = _BUFFERS[name]
            parts = dict(zip(parameters, given, strict=False)) | dict(named)
            offsets = whole(parts["offsets"]) if "offsets" in parts else Sum.number(0)
            pointer = whole(parts.get("ptr")).plus(offsets)
            return self._access(kind, pointer, parts.get("mask"))
        if name in _ATOMICS:
            mask = named.get("mask", given[2] if len(given) > 2 else None)
            return self._access(UPDATE, whole(first), mask)
        if name == "cdiv" and len(given) == 2 and (block := argument_of(given[1])) and argument_of(given[0]):
            self.found.tiled.setdefault(block, argument_of(given[0]))
        if name == "make_tensor_descriptor":
            return self._descriptor(given, named)
        if name == "where" and len(given) == 3:
            chosen = given[2] if isinstance(given[1], Text) or not whole(given[1]).atoms else given[1]
            return chosen
        if name in _THROUGH and first is not None:
            return first
        if name in ("dot", "dot_scaled"):
            self.found.has_products = True
        if name in _FRACTIONS:
            for value in given:
                self._note(self.found.floats, argument_of(value))
        if name in ("rand", "randn", "randint", "rand4x", "randint4x"):
            self._note(self.found.integers, argument_of(first))
        return self._other([whole(value) for value in (*given, *named.values())], ast.unparse(node))

    def _range(self, given: Sequence[Value], named: Mapping[str, Value]) -> Sum:
        ends = [*given, *named.values()]
        length = whole(ends[-1]) if ends else Sum.number(0)
        text = length.argument() or str(length.constant or length.digest)
        return Sum.of(Atom(values.RANGE, text, length.atoms))

    def _inlined(self, key: str, node: ast.Call, frame: Frame) -> Value:
        text = self.kernel.functions[key]
        parsed = ast.parse(text.source).body[0]
        assert isinstance(parsed, ast.FunctionDef)
        names = [item.arg for item in (*parsed.args.posonlyargs, *parsed.args.args, *parsed.args.kwonlyargs)]
        given: dict[str, Value] = {}
        defaults = parsed.args.defaults
        inner = Frame(text, given)
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=False):
            given[name] = self._value(default, inner)
        given |= dict(zip(names, [self._value(item, frame) for item in node.args], strict=False))
        given |= {item.arg: self._value(item.value, frame) for item in node.keywords if item.arg}
        if self._depth >= MAX_CALLS:
            return self._other([whole(value) for value in given.values()], key)
        self._depth += 1
        result = self.function(inner)
        self._depth -= 1
        return result if result is not None else Sum.number(0)

    def _descriptor(self, given: Sequence[Value], named: Mapping[str, Value]) -> _Handle:
        parts = dict(zip(("base", "shape", "strides", "block_shape"), given, strict=False)) | dict(named)
        lists = [tuple(map(whole, parts.get(name) or ())) for name in ("shape", "strides", "block_shape")]
        described = Described(whole(parts.get("base")), *lists)
        if not self._silent:
            self.found.described.append(described)
        return _Handle(described)

    def _through_handle(self, callee: Value, method: str, node: ast.Call, frame: Frame) -> Value:
        given = [self._value(item, frame) for item in (*node.args, *(keyword.value for keyword in node.keywords))]
        kind = WRITE if method in ("store", "scatter") else UPDATE if method.startswith("atomic") else READ
        if isinstance(callee, _Handle) and callee.described is not None:
            pointer = callee.described.pointer
            if not self._silent:
                self.found.accesses.append(Access(kind, pointer, (), tuple(self._guards)))
        else:
            pointer = whole(callee)
            if not self._silent:
                self.found.handles.setdefault(argument_of(callee), set()).add(kind)
                if given and isinstance(given[0], tuple):
                    self.found.blocks_at[argument_of(callee)] = tuple(map(whole, given[0]))
        return self._loaded(pointer)

    # What is noted

    def _access(self, kind: str, pointer: Sum, mask: Value) -> Sum:
        bounds = mask.bounds if isinstance(mask, _Mask) else ()
        if not self._silent:
            self.found.accesses.append(Access(kind, pointer, bounds, tuple(self._guards)))
        return self._loaded(pointer)

    def _loaded(self, pointer: Sum) -> Sum:
        self._counter += 1
        bases = [
            atom.key
            for product in pointer.terms
            if len(product) == 1
            for atom in product
            if atom.kind == values.ARGUMENT
        ]
        parts = frozenset({Atom(values.LOADED, bases[0] if bases else "")})
        return Sum.of(Atom(values.OTHER, f"loaded {self._counter}", parts))

    def _bound(self, bound: Bound) -> None:
        if not self._silent:
            self.found.bounds.append(bound)

    def _note(self, group: set[Any], item: Any) -> None:
        if not self._silent and item not in ("", None):
            group.add(item)

    def _other(self, parts: Sequence[Sum], text: str) -> Sum:
        self._counter += 1
        return other(f"{text} #{self._counter}", parts)

    def _atom(self, kind: str) -> Atom:
        self._counter += 1
        return Atom(kind, str(self._counter))


def _normal(low: Sum, high: Sum) -> Bound:
    """`low < high` with everything that is no limit on the left."""
    limits = [product for product in high.terms if all(atom.kind == values.ARGUMENT for atom in product)]
    if not limits or len(limits) == len(high.terms):
        return Bound(low, high)
    limit = high.select(limits)
    return Bound(low.plus(high.plus(limit, -1), -1), limit)


def _pair(left: Sum, right: Sum) -> str:
    """What tells a quotient or a remainder from others."""
    return f"{left.digest} by {right.argument() or right.constant}"


def _joined(parts: Sequence[Value]) -> Value:
    bounds = tuple(bound for part in parts if isinstance(part, _Mask) for bound in part.bounds)
    return _Mask(bounds, other("a mask", [whole(part) for part in parts]))


def whole(value: Value) -> Sum:
    if isinstance(value, Sum):
        return value
    if isinstance(value, _Mask):
        return value.value
    if isinstance(value, tuple):
        return other("several", [whole(part) for part in value])
    if isinstance(value, _Handle) and value.described is not None:
        return value.described.pointer
    return other(str(getattr(value, "value", "")), [])


def argument_of(value: Value) -> str:
    return value.argument() if isinstance(value, Sum) else ""
