"""Interpret the expressions of a kernel: their values (sums, masks, descriptors), loads, stores and calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from . import values
from .findings import READ, UPDATE, WRITE, Access, Bound, Described, Findings, Guard
from .host_torch import dtype_name
from .texts import FunctionText, KernelText
from .values import LOADED_KEY as LOADED
from .values import Atom, Sum, other

MAX_CALLS = 12
"""Maximum depth of inlined calls; a recursive function is inlined once."""
MAX_SPLITS = 400
"""Maximum number of statements and operations for which both sides of a branch are interpreted."""

_HINTS = ("multiple_of", "max_contiguous", "max_constancy")
_SHAPES = ("broadcast_to", "expand_dims", "view", "reshape", "ravel", "trans", "permute", "interleave", "join", "flip")
_THROUGH = frozenset({"abs", "int", "float", "bitcast", *_HINTS, *_SHAPES})
"""Functions and methods that are treated as returning their first argument."""
MOST_BITS = 31
"""Assumed shift amount if it is unknown."""
_ARITHMETIC = frozenset({"minimum", "maximum", "min", "max", "clamp", "fma"})
_BITS = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift)
_ATOMICS = frozenset(f"atomic_{name}" for name in ("add", "max", "min", "and", "or", "xor", "cas", "xchg"))
_BUFFERS = {
    "buffer_load": (READ, ("ptr", "offsets", "mask")),
    "buffer_store": (WRITE, ("stored_value", "ptr", "offsets", "mask")),
    "buffer_load_to_shared": (READ, ("dest", "ptr", "offsets", "mask")),
    "global_load_to_shared": (READ, ("dest", "ptr", "mask")),
    **{f"buffer_{name}": (UPDATE, ("ptr", "offsets", "value", "mask")) for name in _ATOMICS},
}
"""Gluon's accesses with separate pointer and offsets → kind, and first parameters."""
_FRACTIONS = frozenset(
    ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sigmoid", "softmax", "tanh", "erf", "dot", "sum", "sin", "cos")
)
_WIDE = frozenset(("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sigmoid", "erf", "sin", "cos"))
"""Functions that do not accept floats narrower than float32."""


@dataclass(frozen=True)
class _Handle:
    """A tensor descriptor: of a parameter, or made in the kernel."""

    described: Described | None
    parameter: str = ""


@dataclass(frozen=True)
class _Module:
    """A name from outside the kernel."""

    name: str


@dataclass(frozen=True)
class Text:
    """A constant that is not an integer."""

    value: object


@dataclass(frozen=True)
class Either:
    """A value that differs between the two sides of a branch.

    Attributes:
        branch: the number of the branch; values with the same number take the same side.
        guards: the guards of either side.
    """

    branch: int
    guards: tuple[tuple[Guard, ...], tuple[Guard, ...]]
    first: Value
    second: Value


@dataclass(frozen=True)
class Cast:
    """A value converted to another dtype."""

    value: Sum
    dtype: str


@dataclass(frozen=True)
class _Mask:
    """Conditions that hold where a mask is true."""

    bounds: tuple[Bound, ...]
    value: Sum


Value = Any  # Sum, tuple of values, _Handle, Text, _Mask, Either, Cast


@dataclass
class Frame:
    """A function that is being interpreted."""

    text: FunctionText
    names: dict[str, Value]
    result: Value = None


class Expressions:
    """Interpreter of expressions, and the base class of the interpreter of statements."""

    def __init__(self, kernel: KernelText):
        self.kernel = kernel
        self.found = Findings()
        self._guards: list[Guard] = []
        self._sides: dict[int, bool] = {}
        self._splits = 0
        self._silent = 0
        self._calls: list[str] = []
        self._counter = 0

    def function(self, frame: Frame) -> Value:
        """Interpret a function and return its value."""
        raise NotImplementedError

    def _condition(self, node: ast.expr, frame: Frame) -> tuple[list[Guard], list[Guard]]:
        """Return the guards of parameters if a condition holds, and if it does not."""
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
        with self._guarded(guards):
            first = self._value(body, frame)
        with self._guarded(opposite):
            second = self._value(orelse, frame)
        return self.merged(self.branch_number(), (tuple(guards), tuple(opposite)), first, second)

    @contextmanager
    def _guarded(self, guards: Sequence[Guard]) -> Iterator[None]:
        count = len(self._guards)
        self._guards += guards
        yield
        del self._guards[count:]

    def may_split(self) -> bool:
        """Return True if both sides of another branch may be interpreted, within `MAX_SPLITS`."""
        self._splits += 1
        return self._splits <= MAX_SPLITS

    def branch_number(self) -> int:
        """Return a new number for a branch."""
        self._counter += 1
        return self._counter

    def merged(
        self, branch: int, guards: tuple[tuple[Guard, ...], tuple[Guard, ...]], first: Value, second: Value
    ) -> Value:
        """Merge the values of the two sides of a branch."""
        if first is second or first == second:
            return first
        if not (_is_place(first) and _is_place(second)):
            return self._one_of(first, second)
        return Either(branch, guards, first, second)

    def _one_of(self, first: Value, second: Value) -> Value:
        """Replace two values by one, if only their dependencies matter."""
        chosen, left = (second, first) if first is None or _is_nothing(first) else (first, second)
        if isinstance(chosen, Sum | Cast) and isinstance(left, Sum | Cast) and _sources(left) - _sources(chosen):
            return self._other([whole(first), whole(second)], "one of two")
        return chosen

    def resolved(self, value: Value) -> Value:
        """Return a value on the current sides of branches."""
        while isinstance(value, Either):
            value = value.first if self._sides.get(value.branch, True) else value.second
        return value

    def _name(self, node: ast.Name | ast.Attribute, frame: Frame) -> Value:
        text = ast.unparse(node)
        if text in frame.names:
            return self.resolved(frame.names[text])
        if text in frame.text.constants:
            value = frame.text.constants[text]
            return Sum.number(value) if type(value) is int else Text(value)
        if text.partition(".")[0] not in frame.names:
            return _Module(text)
        assert isinstance(node, ast.Attribute)
        inner = self._value(node.value, frame)
        return inner if node.attr in ("T", "value") else self._other([whole(inner)], text)

    def _lifted(self, compute: Callable[..., Value], *given: Value) -> Value:
        """Compute with values that may differ between the sides of branches."""
        split = next((value for value in given if isinstance(value, Either)), None)
        if split is None:
            return compute(*given)
        if not self.may_split():
            return self._lifted(compute, *(value.first if isinstance(value, Either) else value for value in given))
        outcomes = []
        for i in (0, 1):
            sides = [(v.second if i else v.first) if isinstance(v, Either) and v.branch == split.branch else v
                     for v in given]  # fmt: skip
            with self._guarded(split.guards[i]):
                outcomes.append(self._lifted(compute, *sides))
        return self.merged(split.branch, split.guards, *outcomes)

    def _operation(self, node: ast.BinOp, frame: Frame) -> Value:
        operands = self._value(node.left, frame), self._value(node.right, frame)
        return self._lifted(lambda first, second: self._computed(node, first, second), *operands)

    def _computed(self, node: ast.BinOp, first: Value, second: Value) -> Value:
        if isinstance(node.op, _BITS):
            for one, two in ((first, second), (second, first)):
                if not isinstance(one, _Mask) and not isinstance(two, _Mask):
                    self._note_bits(one, whole(two).constant)
        if isinstance(node.op, ast.BitAnd | ast.BitOr) or isinstance(first, _Mask) or isinstance(second, _Mask):
            return _joined([first, second])
        left, right = whole(first), whole(second)
        for name in filter(None, (left.argument(), right.argument())):
            if not self._silent and isinstance(node.op, ast.Add | ast.Sub):
                self.found.moved[name].append(tuple(self._guards))
        self._note_mixed((first, second))
        match node.op:
            case ast.Add():
                return left.plus(right)
            case ast.Sub():
                return left.plus(right, -1)
            case ast.Mult():
                return left.times(right)
            case ast.Mod():
                result = self._divided(left, right, values.REMAINDER, "%")
                self._bound(Bound(result, right))
                return result
            case ast.FloorDiv():
                return self._divided(left, right, values.QUOTIENT, "//")
            case ast.Div() | ast.Pow():
                for name in (left.argument(), right.argument()):
                    self._note(self.found.floats, name)
        return self._other([left, right], ast.unparse(node))

    def _divided(self, left: Sum, right: Sum, kind: str, sign: str) -> Sum:
        text = f"{left.digest} {sign} {right.argument() or right.constant}"
        if kind == values.QUOTIENT:
            self.found.quotients[text] = (left, right)
        return other(text, [left, right], kind)

    def _note_bits(self, value: Value, amount: int | None) -> None:
        base = loaded_base(value)
        if base and not self._silent:
            most = MOST_BITS if amount is None else amount
            self.found.bits[base] = max(self.found.bits.get(base, 0), most)

    def _note_mixed(self, parts: Sequence[Value]) -> None:
        """Note that an argument combined with loaded values in a sum, product or comparison is of their kind."""
        for one in parts:
            name = argument_of(one)
            bases = [atom.key for two in parts if two is not one for atom in whole(two).below if _is_loaded(atom)]
            if name and bases and not self._silent:
                self.found.mixed[name].update(bases)

    def _compare(self, nodes: Sequence[ast.expr], ops: Sequence[ast.cmpop], frame: Frame) -> Value:
        parts = [self._value(node, frame) for node in nodes]
        self._note_mixed(parts)
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
        if last == "static_assert" and node.args:
            self._asserted(node.args[0], frame)
        for value in (named.get("dtype"), named.get("out_dtype"), *typed):
            self._note(self.found.dtypes, argument_of(value))
        of = [] if callee is None or isinstance(callee, _Module) else [callee]
        if last in ("to", "cast") and (of or positional):
            return self._cast([*of, *positional], named)
        given = [*of, *positional]
        return self._lifted(
            lambda *v: self._builtin(last, list(v[: len(given)]), dict(zip(named, v[len(given) :], strict=True)), node),
            *given,
            *named.values(),
        )

    def _cast(self, given: Sequence[Value], named: Mapping[str, Value]) -> Value:
        value = given[0]
        wanted = given[1] if len(given) > 1 else named.get("dtype")
        if not isinstance(wanted, _Module):
            return value
        dtype = dtype_name(wanted.name if "." in wanted.name else f"tl.{wanted.name}")
        if named.get("bitcast") == Text(True):
            self._note_bits(value, 0)
            return self._other([whole(value)], "bits")
        return Cast(whole(value), dtype) if dtype and not isinstance(value, tuple | _Mask) else value

    def _asserted(self, test: ast.expr, frame: Frame) -> None:
        match test:
            case ast.BoolOp(op=ast.And(), values=parts):
                for part in parts:
                    self._asserted(part, frame)
            case ast.BoolOp(op=ast.Or(), values=parts):
                found = [self._asserted_dtype(part, frame) for part in parts]
                if all(name for name, _ in found) and len({name for name, _ in found}) == 1:
                    self.found.element.setdefault(found[0][0], tuple(dtype for _, dtype in found))
            case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Tuple(elts=options)]):
                pairs = [self._asserted_dtype(ast.Compare(left, [ast.Eq()], [item]), frame) for item in options]
                if all(name for name, _ in pairs):
                    self.found.element.setdefault(pairs[0][0], tuple(dtype for _, dtype in pairs))
            case ast.Compare():
                name, dtype = self._asserted_dtype(test, frame)
                if name:
                    self.found.element.setdefault(name, (dtype,))
            case ast.Call(func=ast.Attribute(value=owner, attr="is_int" | "is_int_signed" | "is_int_unsigned")):
                if name := self._typed_tensor(owner, frame):
                    self.found.bits.setdefault(name, 0)

    def _asserted_dtype(self, test: ast.expr, frame: Frame) -> tuple[str, str]:
        """Return (tensor, dtype) for `x.dtype.element_ty == tl.uint8`; empty for anything else."""
        if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.Is)):
            return "", ""
        for one, two in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            name, dtype = self._typed_tensor(one, frame), dtype_name(ast.unparse(two))
            if name and dtype:
                return name, dtype
        return "", ""

    def _typed_tensor(self, node: ast.expr, frame: Frame) -> str:
        """Return the tensor whose dtype, or whose pointer's dtype, `node` is."""
        text = ast.unparse(node)
        owner = re.sub(r"(\.type)?(\.dtype)?(\.element_ty|\.scalar)?$", "", text)
        if owner == text or not owner.isidentifier():
            return ""
        value = self.resolved(frame.names.get(owner))
        return loaded_base(value) or argument_of(value)

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
            pointer = whole(named.get("pointer", first))
            self._access(WRITE, pointer, mask)
            self._note_stored(pointer, named.get("value", given[1] if len(given) > 1 else None))
            return Sum.number(0)
        if name in _BUFFERS:
            kind, parameters = _BUFFERS[name]
            parts = dict(zip(parameters, given, strict=False)) | dict(named)
            offsets = whole(parts["offsets"]) if "offsets" in parts else Sum.number(0)
            pointer = whole(parts.get("ptr")).plus(offsets)
            if kind != READ:
                self._note_stored(pointer, parts.get("stored_value", parts.get("value")))
            return self._access(kind, pointer, parts.get("mask"))
        if name in _ATOMICS:
            mask = named.get("mask", given[2] if len(given) > 2 else None)
            self._note_stored(whole(first), named.get("val", given[1] if len(given) > 1 else None))
            return self._access(UPDATE, whole(first), mask)
        if name == "cdiv" and len(given) == 2 and (block := argument_of(given[1])) and argument_of(given[0]):
            self.found.tiled.setdefault(block, argument_of(given[0]))
        if name == "make_tensor_descriptor":
            return self._descriptor(given, named)
        if name == "where" and len(given) == 3:
            if base := loaded_base(given[0]):
                self._note(self.found.asked, base)
            self._note_mixed(given[1:])
            if self._is_chosen(given[1:]):
                return self.merged(self.branch_number(), ((), ()), given[1], given[2])
            return self._other([whole(value) for value in given], "where")
        if name in _ARITHMETIC:
            self._note_mixed(given)
        if name in _THROUGH and first is not None:
            return first
        if name in ("dot", "dot_scaled"):
            self.found.has_products = True
        if name in _FRACTIONS:
            for value in given:
                self._note(self.found.floats, argument_of(value))
                if name in _WIDE and not isinstance(value, Cast):
                    self._note(self.found.wide, loaded_base(value))
        if name in ("rand", "randn", "randint", "rand4x", "randint4x"):
            self._note(self.found.integers, argument_of(first))
        return self._other([whole(value) for value in (*given, *named.values())], ast.unparse(node))

    def _is_chosen(self, options: Sequence[Value]) -> bool:
        """Return True if the options are addresses or indices without loaded values, so one is selected."""
        return not any(_is_loaded(atom) for value in options for atom in whole(value).below)

    def _note_stored(self, pointer: Sum, value: Value) -> None:
        """Record the sources of a stored value, and its dtype. Memory that belongs to no tensor, such as LDS, has the
        name "".
        """
        if self._silent or value is None:
            return
        for base in bases_of(pointer) or ("",):
            stored = self.found.stored[base]
            stored.sources.update(atom.key for atom in whole(value).below if _is_loaded(atom))
            if isinstance(value, Cast):
                stored.dtypes.add(value.dtype)

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
        if key in self._calls or len(self._calls) >= MAX_CALLS:
            return self._other([whole(value) for value in given.values()], key)
        self._calls.append(key)
        result = self.function(inner)
        self._calls.pop()
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
        bases = bases_of(pointer)
        parts = frozenset({Atom(values.LOADED, bases[0] if bases else "")})
        return Sum.of(Atom(values.OTHER, f"{LOADED}{self._counter}", parts))

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
    limits = [product for product in high.terms if all(atom.kind == values.ARGUMENT for atom in product)]
    if not limits or len(limits) == len(high.terms):
        return Bound(low, high)
    limit = high.select(limits)
    return Bound(low.plus(high.plus(limit, -1), -1), limit)


def _joined(parts: Sequence[Value]) -> Value:
    bounds = tuple(bound for part in parts if isinstance(part, _Mask) for bound in part.bounds)
    return _Mask(bounds, other("a mask", [whole(part) for part in parts]))


def whole(value: Value) -> Sum:
    """Return a value as a sum."""
    if isinstance(value, Sum):
        return value
    if isinstance(value, _Mask | Cast):
        return value.value
    if isinstance(value, Either):
        return whole(value.first)
    if isinstance(value, tuple):
        return other("several", [whole(part) for part in value])
    if isinstance(value, _Handle) and value.described is not None:
        return value.described.pointer
    return other(str(getattr(value, "value", "")), [])


def argument_of(value: Value) -> str:
    """Return the argument that a value is; empty for any other value."""
    if isinstance(value, Cast):
        value = value.value
    return value.argument() if isinstance(value, Sum) else ""


def loaded_base(value: Value) -> str:
    """Return the tensor that a number was loaded from without changes; empty for computed values."""
    if isinstance(value, Cast):
        if "float" in value.dtype:
            return ""
        value = value.value
    match list(value.terms.items()) if isinstance(value, Sum) else []:
        case [((Atom(kind="other", key=key) as atom,), 1)] if key.startswith(LOADED):
            return next((part.key for part in atom.parts), "")
    return ""


def bases_of(pointer: Sum) -> list[str]:
    """Return the arguments that may be the base of an address."""
    alone = (product[0] for product, count in pointer.terms.items() if len(product) == 1 and count == 1)
    return [atom.key for atom in alone if atom.kind == values.ARGUMENT]


def _is_loaded(atom: Atom) -> bool:
    return atom.kind == values.LOADED and bool(atom.key)


def _is_place(value: Value) -> bool:
    """Return True if a value may be an address or a mask, for which both sides of a branch matter."""
    if isinstance(value, Either):
        return _is_place(value.first)
    return isinstance(value, _Mask | _Handle) or (isinstance(value, Sum) and bool(bases_of(value)))


def _sources(value: Value) -> set[str]:
    return {atom.key for atom in whole(value).below if _is_loaded(atom)}


def _is_nothing(value: Value) -> bool:
    """Return True if a value is a number or None, the placeholder on a side without a tensor."""
    return isinstance(value, Text) or (isinstance(value, Sum) and not value.atoms)
