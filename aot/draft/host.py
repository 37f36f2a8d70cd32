"""Abstract interpretation of the function that launches a kernel, up to the launch.

Names have values of `aot.draft.host_values`. Both sides of a branch are interpreted, and the results are merged. The
conditions of `assert`, and of an `if` that ends with `raise`, become facts about sizes, dtypes and dims. Unsupported
expressions are `Unknown`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from . import host_torch
from .host_values import (
    UNKNOWN,
    Condition,
    Const,
    DtypeValue,
    Function,
    HostTensor,
    Joined,
    Several,
    Shape,
    Size,
    Stride,
    Strides,
    Table,
    Unknown,
    Value,
    atomic,
    condition_text,
    negated,
    size_text,
)
from .sizes import names_of, renamed

MAX_CALLS = 4
"""Maximum depth of inlined functions of the file."""
_ON_AMD = {"is_hip": True, "is_cuda": False, "is_xpu": False, "is_npu": False}
"""Answers to questions about the machine, for AMD, which has the stricter limits."""
_OPERATORS: Mapping[type, str] = {ast.Mult: "*", ast.Add: "+", ast.Sub: "-", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARISONS: Mapping[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_SIZES = {"cdiv": "cdiv", "ceil_div": "cdiv", "next_power_of_2": "next_pow2", "min": "min", "max": "max"}


@dataclass
class Facts:
    """Facts about a function's arguments.

    Attributes:
        tensors: by key.
        same: name of an extent → an equal one.
        required: conditions that calls have to meet.
        hints: name of an extent, or text of a size → the variable that has it.
        whole: text of a size that is an extent of an input → a name for it.
        allowed: text of a size → the values that it may have.
        defined: name of a size that the function computes → its expression.
    """

    tensors: dict[str, HostTensor] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    hints: dict[str, str] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    allowed: dict[str, tuple[object, ...]] = field(default_factory=dict)
    defined: dict[str, str] = field(default_factory=dict)


class _End(Exception):
    """Raised where the rest of a function is not reached."""


class Host:
    """Evaluates a function of a file.

    Args:
        reached: called with this object and the launch when it is reached.
    """

    def __init__(self, outer: Mapping[str, Value], launch: ast.Call | None, reached: Callable[[Host, ast.Call], None]):
        self.outer, self.launch, self._reached = outer, launch, reached
        self.names: dict[str, Value] = {}
        self.facts = Facts()
        self._depth = 0
        self._is_doubtful = False
        self._result: Value | None = None

    def tensor(self, hint: str, **known: object) -> HostTensor:
        """Create a tensor with a unique key."""
        key, count = hint, 1
        while key in self.facts.tensors:
            key, count = f"{hint}_{count + 1}", count + 1
        self.facts.tensors[key] = HostTensor(key, **known)  # type: ignore[arg-type]
        return self.facts.tensors[key]

    # Functions

    def enter(self, scope: ast.FunctionDef) -> None:
        """Interpret the function that contains the launch."""
        arguments = scope.args
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults: dict[str, ast.expr] = {
            item.arg: value
            for item, value in zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True)
        }
        defaults |= {
            item.arg: value
            for item, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value is not None
        }
        for item in (*plain, *arguments.kwonlyargs):
            default = self.value(defaults[item.arg]) if item.arg in defaults else None
            annotation = ast.unparse(item.annotation) if item.annotation else ""
            self.names[item.arg] = self.tensor(item.arg, is_given=True, default=default, annotation=annotation)
        self.run(scope.body)

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Interpret statements."""
        with suppress(_End):
            self._block(body)

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                result = self.value(value)
                for target in targets:
                    self._assign(target, result)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self.value(value))
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                self._assign(target, self.value(ast.BinOp(ast.Name(name, ast.Load()), op, value)))
            case ast.Expr(value=value):
                self.value(value)
            case ast.Return(value=value):
                self._result = self.value(value) if value is not None else Const(None)
                raise _End
            case ast.Raise():
                raise _End
            case ast.Assert(test=test):
                self._holds(test)
            case ast.If():
                self._branch(node)
            case ast.For(body=body) | ast.While(body=body):
                for name in _assigned(body):
                    self.names[name] = Unknown(name)
                self._block(body)
            case ast.With(items=items, body=body):
                for item in items:
                    self.value(item.context_expr)
                self._block(body)
            case ast.Try(body=body, finalbody=final):
                self._block([*body, *final])
            case ast.FunctionDef(name=name):
                self.names[name] = Function(node, self.names)

    def _assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(id=name):
                self.names[name] = self._named(name, value)
            case ast.Tuple(elts=parts) if isinstance(value, Unknown) and value.text.endswith(".saved_tensors"):
                for item in parts:
                    self._assign(item, self.tensor(ast.unparse(item), is_given=True))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for item, part in zip(parts, self._unpacked(parts, value), strict=True):
                    self._assign(item.value if isinstance(item, ast.Starred) else item, part)

    def _named(self, name: str, value: Value) -> Value:
        if not isinstance(value, Size) or name == "_":
            return value
        self.facts.hints.setdefault(value.text, name)
        if "__numel" in value.text and not value.text.endswith("__numel"):
            self.facts.hints.setdefault(f"{name}__v", name)
            self.facts.defined.setdefault(f"{name}__v", value.text)
            return Size(f"{name}__v")  # the number of rows of a tensor of any dims, which is a dim of its own
        return value

    def _unpacked(self, parts: Sequence[ast.expr], value: Value) -> list[Value]:
        count = len(parts)
        starred = next((i for i, part in enumerate(parts) if isinstance(part, ast.Starred)), None)
        if isinstance(value, Shape) and value.start is None and starred is None:
            if value.stop is None:
                value.tensor.set_rank(count)
            return [Size(value.tensor.extent(i)) for i in range(count)]
        if isinstance(value, Shape) and value.stop is None and value.start is not None and starred is None:
            return [Size(value.tensor.extent(value.start + i)) for i in range(count)]
        if isinstance(value, Shape) and starred is not None and value.start is None and value.stop is None:
            return [
                Unknown() if i == starred else Size(value.tensor.extent(i if i < starred else i - count))
                for i in range(count)
            ]
        if isinstance(value, Strides) and starred is None:
            value.tensor.set_rank(count)
            return [Stride(value.tensor, i) for i in range(count)]
        if isinstance(value, tuple) and len(value) == count and starred is None:
            return list(value)
        if isinstance(value, tuple) and starred is not None and len(value) >= count - 1:
            behind = count - starred - 1
            middle = value[starred : len(value) - behind]
            return [*value[:starred], middle, *value[len(value) - behind :]]
        return [Unknown()] * count

    # Branches

    def _branch(self, node: ast.If) -> None:
        test = self.value(node.test)
        if isinstance(test, Const):
            self._block(node.body if test.value else node.orelse)
            return
        text = condition_text(test)
        before, doubtful = dict(self.names), self._is_doubtful
        # What holds where a tensor is given is of that tensor; what holds where something else does, holds there alone.
        self._is_doubtful = doubtful or not (_PRESENCE.fullmatch(text) or _leaves(node.body) or _leaves(node.orelse))
        first = self._side(node.body)
        first_names, self.names = self.names, dict(before)
        second = self._side(node.orelse)
        second_names, self._is_doubtful = self.names, doubtful
        if first and second:
            raise _End
        if first or second:  # one side is left: what it takes for granted holds from here on
            self.names = second_names if first else first_names
            if first and _raises(node.body):
                self._holds(ast.UnaryOp(ast.Not(), node.test))
            return
        self.names = {
            name: self._merged(text, first_names.get(name), second_names.get(name), before.get(name))
            for name in {**first_names, **second_names}
        }

    def _side(self, body: Sequence[ast.stmt]) -> bool:
        try:
            self._block(body)
        except _End:
            return True
        return False

    def _merged(self, condition: str, one: Value | None, two: Value | None, before: Value | None = None) -> Value:
        if one is None or two is None or one == two:
            return two if one is None and two is not None else one if one is not None else Unknown()
        for value, none, text in ((one, two, condition), (two, one, negated(condition) if condition else "")):
            if isinstance(value, HostTensor) and isinstance(none, Const) and none.value is None:
                if not value.is_given:
                    value.when = value.when or text or UNKNOWN
                return value
        if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
            return tuple(self._merged(condition, *pair) for pair in zip(one, two, strict=True))
        if isinstance(one, HostTensor) and isinstance(two, HostTensor):
            made = [item for item in (one, two) if item.made]
            given = [item for item in (one, two) if item.is_given]
            if len(made) == 1 and given and given[0].is_optional:
                return made[0]
            return one if one.is_given and not two.is_given else two
        for value, other in ((one, two), (two, one)):
            if isinstance(value, HostTensor) and isinstance(other, Unknown):
                return value  # another view of it
        options = [*(one.options if isinstance(one, Several) else (one,))]
        options += [*(two.options if isinstance(two, Several) else (two,))]
        kept = [item for item in options if not isinstance(item, Unknown)]
        if any(isinstance(item, HostTensor) and item.is_given for item in kept):
            return Unknown()  # an argument, or what it is by default
        return Several(tuple(kept)) if len(kept) == len(options) else Unknown()

    # What holds

    def _holds(self, test: ast.expr) -> None:
        if self._is_doubtful:
            return
        match test:
            case ast.BoolOp(op=ast.And(), values=parts):
                for part in parts:
                    self._holds(part)
                return
            case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp(op=ast.Or(), values=parts)):
                for part in parts:
                    self._holds(ast.UnaryOp(ast.Not(), part))
                return
            case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left=left, ops=[op], comparators=[right])) if (
                type(op) in _OPPOSITES
            ):
                self._holds(ast.Compare(left, [_OPPOSITES[type(op)]()], [right]))
                return
            case ast.UnaryOp(op=ast.Not(), operand=ast.UnaryOp(op=ast.Not(), operand=inner)):
                self._holds(inner)
                return
            case ast.Compare(left=left, ops=ops, comparators=rights) if len(ops) > 1:
                for one, op, two in zip((left, *rights), ops, rights, strict=False):
                    self._holds(ast.Compare(one, [op], [two]))
                return
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                if self._compared(self.value(left), op, self.value(right)):
                    return
            case ast.Call(func=ast.Attribute(value=owner, attr="is_contiguous")):
                if isinstance(tensor := self.value(owner), HostTensor):
                    tensor.is_packed = True
                return
        text = condition_text(self.value(test))
        if text and not text.isidentifier():
            self.facts.required.append(text)

    def _compared(self, left: Value, op: ast.cmpop, right: Value) -> bool:
        match left, op, right:
            case DtypeValue(of=HostTensor() as tensor), ast.Eq() | ast.Is(), DtypeValue(name=name, of=None):
                tensor.dtypes = (name,)
            case DtypeValue(of=HostTensor() as one), ast.Eq() | ast.Is(), DtypeValue(of=HostTensor() as two):
                if one.dtype_root is not two.dtype_root:
                    one.dtype_root.dtype_of = two
            case DtypeValue(of=HostTensor() as tensor), ast.In(), tuple() as options:
                names = [item.name for item in options if isinstance(item, DtypeValue)]
                tensor.dtypes = tuple(names) if len(names) == len(options) else ()
            case Size(text), ast.Eq(), Const(value=int(rank)) if text.endswith("__rank"):
                self.facts.tensors[text.removesuffix("__rank")].set_rank(rank)
            case (Shape(tensor=one), ast.Eq(), Shape(tensor=two)) if one is not two:
                if two.is_given and two.own_shape is None and two.like is None:
                    two.like = one
            case Stride(), _, _:
                pass
            case Size(text), ast.In(), tuple() if all(isinstance(item, Const) for item in right):
                self.facts.allowed[text] = tuple(item.value for item in right if isinstance(item, Const))
            case (Size() | Const() | HostTensor(), ast.Eq(), Size() | Const() | HostTensor()):
                return self._equal(size_text(left), size_text(right))
            case tuple(), ast.Eq(), tuple() if len(left) == len(right):
                for one_part, two_part in zip(left, right, strict=True):
                    self._compared(one_part, op, two_part)
            case (tuple(), ast.Eq(), Shape(tensor=tensor)) | (Shape(tensor=tensor), ast.Eq(), tuple()):
                extents = left if isinstance(left, tuple) else right
                assert isinstance(extents, tuple)
                tensor.set_rank(len(extents))
                for i, extent in enumerate(extents):
                    self._equal(tensor.extent(i), size_text(extent))
            case _:
                return False
        return True

    def _equal(self, one: str, two: str) -> bool:
        one, two = self.same(one), self.same(two)
        if one and one == two:
            return True
        for name, other in ((two, one), (one, two)):
            if name.isidentifier() and "__" in name and other and name not in names_of(other):
                self.facts.same[name] = other
                return True
        return False

    def same(self, text: str) -> str:
        """Return the text of a size in which equal extents have the same name."""
        while any(name in self.facts.same for name in names_of(text)):
            text = renamed(text, self.facts.same)
        return text

    # Expressions

    def value(self, node: ast.expr) -> Value:
        """Return the value of an expression."""
        if node is self.launch and isinstance(node, ast.Call):
            self._reached(self, node)
            return Unknown()
        match node:
            case ast.Constant(value=value):
                return Const(value)
            case ast.Name(id=name):
                return self.names.get(name, self.outer.get(name, Unknown(name)))
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return self._sequence(parts)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(node, owner, name)
            case ast.Subscript(value=owner, slice=index):
                return self._subscript(self.value(owner), index)
            case ast.BinOp(left=left, op=op, right=right):
                return self._operation(self.value(left), op, self.value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.value(operand)
                number = inner.value if isinstance(inner, Const) else None
                return Const(-number) if isinstance(number, int | float) else Unknown()
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._not(self.value(operand))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._comparison(self.value(left), op, self.value(right))
            case ast.BoolOp(op=op, values=parts):
                return self._joined(op, [self.value(part) for part in parts])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self.value(test)
                if isinstance(condition, Const):
                    return self.value(body if condition.value else orelse)
                return self._merged(condition_text(condition), self.value(body), self.value(orelse))
            case ast.Dict():
                return self._table(node)
            case ast.Lambda():
                return Function(node, self.names)
            case ast.Call():
                return self._call(node)
            case ast.NamedExpr(target=target, value=inner_node):
                result = self.value(inner_node)
                self._assign(target, result)
                return result
        return Unknown(ast.unparse(node))

    def _sequence(self, parts: Sequence[ast.expr]) -> Value:
        found: list[Value] = []
        for part in parts:
            value = self.value(part.value) if isinstance(part, ast.Starred) else self.value(part)
            if isinstance(part, ast.Starred):
                if isinstance(value, Shape) and not found:
                    tail = tuple(size_text(self.value(item)) for item in parts[1:])
                    return Joined(value, tail) if all(tail) else Unknown()
                if not isinstance(value, tuple):
                    return Unknown()
                found += value
            else:
                found.append(value)
        return tuple(found)

    def _table(self, node: ast.Dict) -> Value:
        pairs = [(self.value(key) if key is not None else Unknown(), self.value(value))
                 for key, value in zip(node.keys, node.values, strict=True)]  # fmt: skip
        dtypes = [(key, value) for key, value in pairs if isinstance(key, DtypeValue) and key == value]
        known = {key.value: value for key, value in pairs if isinstance(key, Const)}
        return Table(known, bool(pairs) and len(dtypes) == len(pairs))

    def _attribute(self, node: ast.Attribute, owner: ast.expr, name: str) -> Value:
        value = self.value(owner)
        if isinstance(value, HostTensor):
            return host_torch.attribute(self, value, name) if name != "saved_tensors" else Unknown(ast.unparse(node))
        if name == "multi_processor_count":
            return Size("num_cus")
        if (dtype := host_torch.dtype_name(ast.unparse(node))) and isinstance(value, Unknown):
            return DtypeValue(dtype)
        return Unknown(ast.unparse(node))

    def _subscript(self, owner: Value, index: ast.expr) -> Value:
        if isinstance(index, ast.Slice):
            return self._slice(owner, index)
        position = self.value(index)
        match owner, position:
            case Table(of_dtypes=True), DtypeValue():
                return position
            case Table(items=items), Const(value=key):
                return items.get(key, Unknown())
            case Strides(tensor=tensor), Const(value=int(at)):
                return host_torch.method(self, tensor, "stride", [Const(at)], {})
            case ((Unknown() | HostTensor(is_given=True)), Const(value=str(name))):
                return Size(name)  # of the meta-parameters that a grid is computed from
            case Shape(tensor=tensor, start=start, stop=None), Const(value=int(at)):
                return Size(tensor.extent(at + (start or 0) if at >= 0 else at))
            case Shape(tensor=tensor, start=None), Const(value=int(at)) if at >= 0:
                return Size(tensor.extent(at))
            case tuple(), Const(value=int(at)) if -len(owner) <= at < len(owner):
                return owner[at]
        return Unknown()

    def _slice(self, owner: Value, index: ast.Slice) -> Value:
        ends = [self.value(item) if item is not None else Const(None) for item in (index.lower, index.upper)]
        known = all(isinstance(end, Const) and (end.value is None or type(end.value) is int) for end in ends)
        if index.step is not None or not known:
            return Unknown()
        low, high = (_index(end) for end in ends)
        if isinstance(owner, tuple):
            return owner[low:high]
        if isinstance(owner, Strides) and high is not None and high > 0:
            return tuple(Stride(owner.tensor, i) for i in range(low or 0, high))
        if isinstance(owner, Shape) and owner.start is None and owner.stop is None:
            return Shape(owner.tensor, low, high)
        return Unknown()

    def _operation(self, left: Value, op: ast.operator, right: Value) -> Value:
        if isinstance(left, tuple) and isinstance(right, tuple) and isinstance(op, ast.Add):
            return (*left, *right)
        if isinstance(left, Shape) and isinstance(right, tuple) and isinstance(op, ast.Add):
            tail = tuple(map(size_text, right))
            return Joined(left, tail) if all(tail) else Unknown()
        if isinstance(left, Const) and isinstance(right, Const):
            return _folded(left.value, op, right.value)
        if isinstance(left, Table):  # `config | tuned`: what else it may be is not known
            return Table({key: Several((value,)) for key, value in left.items.items()})
        for value, other, is_left in ((left, right, True), (right, left, False)):
            if isinstance(value, Several):
                pairs = [(item, other) if is_left else (other, item) for item in value.options]
                return Several(tuple(self._operation(one, op, two) for one, two in pairs))
        texts = [size_text(item) for item in (left, right)]
        if isinstance(op, ast.LShift | ast.Pow) and (power := _power_of_2(left, op, texts[1])):
            return Size(power)
        if type(op) in _OPERATORS and all(texts):
            return Size(ast.unparse(ast.parse(f"{atomic(texts[0])} {_OPERATORS[type(op)]} {atomic(texts[1])}")))
        return Unknown()

    def _not(self, value: Value) -> Value:
        if isinstance(value, Const):
            return Const(not value.value)
        text = condition_text(value)
        return Condition(negated(text)) if text else Unknown()

    def _comparison(self, left: Value, op: ast.cmpop, right: Value) -> Value:
        if isinstance(op, ast.Is | ast.IsNot) and isinstance(right, Const) and right.value is None:
            return self._presence(left, isinstance(op, ast.IsNot))
        if isinstance(left, Const) and isinstance(right, Const):
            return _compared_constants(left.value, op, right.value)
        texts = [size_text(item) for item in (left, right)]
        if isinstance(left, HostTensor) and isinstance(right, Const) and isinstance(right.value, str):
            texts = [left.key, repr(right.value)]
        if type(op) in _COMPARISONS and all(texts):
            return Condition(f"{atomic(texts[0])} {_COMPARISONS[type(op)]} {texts[1]}")
        return Unknown()

    def _presence(self, value: Value, is_there: bool) -> Value:
        match value:
            case Const(value=inner):
                return Const((inner is not None) == is_there)
            case HostTensor(is_given=True, key=key):
                text = f"given({key})"
            case HostTensor(when=when):
                if not when:
                    return Const(is_there)
                text = when
            case _:
                return Unknown()
        return Condition(text if is_there else negated(text))

    def _joined(self, op: ast.boolop, parts: Sequence[Value]) -> Value:
        is_and = isinstance(op, ast.And)
        left: list[Value] = []
        for part in parts:
            if isinstance(part, Const) and bool(part.value) != is_and:
                return part if not left else Unknown()
            if not isinstance(part, Const):
                left.append(part)
        if not left:
            return parts[-1]
        if len(left) == 1:
            return left[0]
        texts = [condition_text(part) for part in left]
        if not all(texts):
            return Unknown()
        return Condition(f" {'and' if is_and else 'or'} ".join(f"({text})" if " " in text else text for text in texts))

    # Calls

    def _call(self, node: ast.Call) -> Value:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in _ON_AMD:
            return Const(_ON_AMD[name])
        owner = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        arguments = self._arguments(node.args)
        named = {item.arg: self.value(item.value) for item in node.keywords if item.arg}
        if isinstance(owner, HostTensor):
            return host_torch.method(self, owner, name, arguments, named)
        if (made := host_torch.factory(self, name, arguments, named)) is not None:
            return made
        if name in _SIZES and not named:
            return self._computed_size(_SIZES[name], arguments)
        if name in (int.__name__, bool.__name__) and len(arguments) == 1:
            return arguments[0]
        if name == "bit_length" and owner is not None and (text := size_text(owner)):
            return Size(f"bit_length({text})")
        if name == "divmod" and len(arguments) == 2:
            return tuple(self._operation(arguments[0], op, arguments[1]) for op in (ast.FloorDiv(), ast.Mod()))
        if name in ("log2", "ceil") and len(arguments) == 1 and (text := size_text(arguments[0])):
            prefix = "ceil_" if text.startswith("log2(") else ""
            return Size(f"log2({text})" if name == "log2" else f"{prefix}{text}")
        if name == "len" and len(arguments) == 1:
            match arguments[0]:
                case Shape(tensor=tensor, start=None, stop=None):
                    return Size(f"{tensor.key}__rank")
                case tuple():
                    return Const(len(arguments[0]))
            return Unknown()
        if name in ("get_num_sms", "num_sms", "get_sm_count", "get_num_cus"):
            return Size("num_cus")
        function = self.value(node.func) if isinstance(node.func, ast.Name) else Unknown()
        if isinstance(function, Function):
            return self.called(function, arguments, named)
        return Unknown(ast.unparse(node))

    def _arguments(self, nodes: Sequence[ast.expr]) -> list[Value]:
        value = self._sequence(nodes)
        return list(value) if isinstance(value, tuple) else [self.value(node) for node in nodes]

    def _computed_size(self, name: str, arguments: Sequence[Value]) -> Value:
        for i, argument in enumerate(arguments):
            if isinstance(argument, Several):
                calls = ([*arguments[:i], option, *arguments[i + 1 :]] for option in argument.options)
                return Several(tuple(self._computed_size(name, call) for call in calls))
        numbers = [item.value for item in arguments if isinstance(item, Const)]
        if len(numbers) == len(arguments) and all(type(item) is int for item in numbers):
            return Const(_NUMBERS[name](*numbers))
        texts = [size_text(item) for item in arguments]
        return Size(f"{name}({', '.join(texts)})") if all(texts) else Unknown()

    def called(self, function: Function, arguments: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """Interpret a call of a function of the file, and return its value."""
        if self._depth >= MAX_CALLS:
            return Unknown()
        node, outside = function.node, self.names
        names = [item.arg for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        defaults = [self.value(item) for item in node.args.defaults]
        plain = names[: len(names) - len(node.args.kwonlyargs)]
        given = dict(zip(plain[len(plain) - len(defaults) :], defaults, strict=True))
        given |= dict(zip(plain, arguments, strict=False)) | {k: v for k, v in named.items() if k in names}
        own = {name: Unknown(name) for name in names}
        self.names, self._depth = {**function.names, **own, **given}, self._depth + 1
        result, self._result = self._result, None
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body)
            self.run(node.body)
            return self._result if self._result is not None else Const(None)
        finally:
            self.names, self._depth, self._result = outside, self._depth - 1, result


_OPPOSITES: Mapping[type, type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_ARITHMETIC: Mapping[type, Callable[..., int | float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
}  # fmt: skip
_NUMBERS: Mapping[str, Callable[..., int]] = {
    "cdiv": lambda a, b: -(-a // b),
    "next_pow2": lambda n: 1 << max(0, n - 1).bit_length(),
    "min": min,
    "max": max,
}


_LOGARITHMS = {ast.LShift: (Const(1), "bit_length"), ast.Pow: (Const(2), "ceil_log2")}


def _power_of_2(left: Value, op: ast.operator, exponent: str) -> str:
    """Return `next_pow2(n)` for `1 << (n - 1).bit_length()` and `2 ** math.ceil(math.log2(n))`; empty for anything
    else.
    """
    base, function = _LOGARITHMS[type(op)]
    match ast.parse(exponent, mode="eval").body if exponent and left == base else None:
        case ast.Call(func=ast.Name(id="bit_length"), args=[ast.BinOp(inner, ast.Sub(), ast.Constant(value=1))]):
            return f"next_pow2({ast.unparse(inner)})" if function == "bit_length" else ""
        case ast.Call(func=ast.Name(id="ceil_log2"), args=[inner]):
            return f"next_pow2({ast.unparse(inner)})" if function == "ceil_log2" else ""
    return ""


def _folded(left: object, op: ast.operator, right: object) -> Value:
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        return Unknown()
    compute = _ARITHMETIC.get(type(op))
    if compute is None or (isinstance(op, ast.Pow | ast.LShift) and not (_is_small(left) and _is_small(right))):
        return Unknown()
    try:
        return Const(compute(left, right))
    except (ArithmeticError, TypeError, ValueError):
        return Unknown()


def _index(value: Value) -> int | None:
    return value.value if isinstance(value, Const) and isinstance(value.value, int) else None


def _is_small(value: object) -> bool:
    return type(value) is int and 0 <= value < 64


def _compared_constants(left: object, op: ast.cmpop, right: object) -> Value:
    match op:
        case ast.Eq() | ast.Is():
            return Const(left == right)
        case ast.NotEq() | ast.IsNot():
            return Const(left != right)
    return Unknown()


_PRESENCE = re.compile(r"(not )?given\(\w+\)")


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Raise | ast.Return)


def _raises(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Raise)


def _assigned(body: Sequence[ast.stmt]) -> set[str]:
    nodes = (item for statement in body for item in ast.walk(statement))
    return {item.id for item in nodes if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
