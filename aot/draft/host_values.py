"""Values in the function that launches a kernel: tensors, sizes, strides, conditions and constants.

A size is the text of an expression. It names the extent of a tensor's dim `<tensor>__<position>`, and the number of
elements of a tensor of unknown rank `<tensor>__numel`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

ZEROS, EMPTY = "zeros", "empty"
UNKNOWN = "unknown__size"
"""Name of an unknown size."""


@dataclass(frozen=True)
class Unknown:
    """An unknown value."""

    text: str = ""


@dataclass(frozen=True)
class Const:
    """A number, a boolean, text or None."""

    value: object


@dataclass(frozen=True)
class Size:
    """An integer that is computed from sizes and arguments, as the text of an expression."""

    text: str


@dataclass(frozen=True)
class Condition:
    """A condition on a call, as the text of an expression; `given(tensor)` asks for a tensor by its key."""

    text: str


@dataclass(frozen=True)
class DtypeValue:
    """A dtype: a name, or that of a tensor."""

    name: str = ""
    of: HostTensor | None = None


@dataclass(frozen=True)
class Stride:
    """The stride of a tensor's dim."""

    tensor: HostTensor
    dim: int


@dataclass(frozen=True)
class Strides:
    """The strides of a tensor whose number of dims is not known."""

    tensor: HostTensor


@dataclass(frozen=True)
class Table:
    """A dict of which some values are known.

    Attributes:
        of_dtypes: whether it maps torch's dtypes to Triton's.
    """

    items: Mapping[object, Value]
    of_dtypes: bool = False


@dataclass(frozen=True)
class Shape:
    """The shape of a tensor whose number of dims is not known; `start` and `stop` of a slice of it."""

    tensor: HostTensor
    start: int | None = None
    stop: int | None = None


@dataclass(frozen=True)
class Joined:
    """The first extents of a tensor of unknown rank, followed by further ones."""

    head: Shape
    tail: tuple[str, ...]


@dataclass(frozen=True)
class Several:
    """Several possible values, of which an unknown condition selects one."""

    options: tuple[Value, ...]


@dataclass(frozen=True)
class Function:
    """A function of the file, or a lambda, with the names around it."""

    node: ast.FunctionDef | ast.Lambda
    names: Mapping[str, Value]


@dataclass(eq=False)
class HostTensor:
    """An argument of the function, which is a tensor if it is used as one, or a tensor that the function makes.

    Attributes:
        key: a name that no other tensor has.
        is_given: whether the caller passes it.
        made: `zeros` or `empty`; nothing for what the caller passes.
        own_shape: the extents of a tensor that is made.
        like: the tensor whose shape it has.
        joined: its shape, if that begins like another tensor's.
        dtypes: its possible dtypes; none if unknown.
        dtype_of: the tensor whose dtype it has.
        is_dtype_default: whether the caller may choose another dtype.
        when: the condition under which it exists.
        default: its value if the caller passes nothing.
        annotation: its type annotation.
    """

    key: str
    is_given: bool = False
    made: str = ""
    own_shape: tuple[str, ...] | None = None
    like: HostTensor | None = None
    joined: Joined | None = None
    rank: int | None = None
    dtypes: tuple[str, ...] = ()
    dtype_of: HostTensor | None = None
    is_dtype_default: bool = False
    when: str = ""
    default: Value | None = None
    annotation: str = ""
    is_packed: bool = False
    _asked: set[int] = field(default_factory=set)

    @property
    def is_optional(self) -> bool:
        """The caller may pass None."""
        return isinstance(self.default, Const) and self.default.value is None

    @property
    def shape(self) -> tuple[str, ...] | None:
        """The extents; None where the number of dims is not known."""
        if self.own_shape is not None:
            return self.own_shape
        if self.joined is not None:
            head = self.joined.head
            known = head.tensor.shape
            return None if known is None else (*known[head.start : head.stop], *self.joined.tail)
        if self.like is not None:
            return self.like.shape
        return None if self.rank is None else tuple(f"{self.key}__{i}" for i in range(self.rank))

    def set_rank(self, rank: int) -> None:
        """Set the number of dims."""
        if self.like is not None:
            self.like.set_rank(rank)
        elif self.joined is not None:
            head = self.joined.head
            if head.start is None and head.stop is not None and head.stop < 0:
                head.tensor.set_rank(rank - len(self.joined.tail) - head.stop)
        elif self.own_shape is None and self.rank is None:
            self.rank = rank

    def extent(self, dim: int) -> str:
        """Return the extent of a dim by position; negative positions count from the end."""
        shape = self.shape
        if shape is not None:
            return shape[dim] if -len(shape) <= dim < len(shape) else UNKNOWN
        if self.like is not None:
            return self.like.extent(dim)
        self._asked.add(dim)
        return f"{self.key}__{dim if dim >= 0 else f'm{-dim}'}"

    @property
    def least_rank(self) -> int:
        """Smallest possible number of dims, given the positions in use."""
        owner = self.like or self
        return max((dim + 1 if dim >= 0 else -dim for dim in owner._asked), default=0)

    @property
    def counts_from_first(self) -> bool:
        """Return True if positions counted from the first dim are in use."""
        return any(dim >= 0 for dim in (self.like or self)._asked)

    @property
    def numel(self) -> str:
        """The number of elements."""
        shape = self.shape
        if shape is not None:
            return " * ".join(map(atomic, shape)) or "1"
        return self.like.numel if self.like is not None else f"{self.key}__numel"

    def final_names(self) -> dict[str, str]:
        """Resolve names of extents that were used before the number of dims was known."""
        if self.shape is None or self.like is not None or self.own_shape is not None:
            return {}
        count = len(self.shape)
        early = {f"{self.key}__m{-dim}": self.extent(dim) for dim in self._asked if -count <= dim < 0}
        return {**early, f"{self.key}__numel": f"({self.numel})"}

    def final_dtypes(self) -> tuple[str, ...]:
        """Return the possible dtypes, from facts about this tensor and the one that it is like."""
        seen: list[HostTensor] = []
        tensor: HostTensor | None = self
        while tensor is not None and tensor not in seen:
            if tensor.dtypes:
                return tensor.dtypes
            seen.append(tensor)
            tensor = tensor.dtype_of
        return ()

    @property
    def dtype_root(self) -> HostTensor:
        """Return the tensor that determines its dtype."""
        seen: list[HostTensor] = []
        tensor = self
        while tensor.dtype_of is not None and tensor not in seen:
            seen.append(tensor)
            tensor = tensor.dtype_of
        return tensor


Value = (
    Unknown
    | Const
    | Size
    | Condition
    | DtypeValue
    | Stride
    | Strides
    | Table
    | Shape
    | Joined
    | Several
    | Function
    | HostTensor
    | tuple["Value", ...]
)


def atomic(text: str) -> str:
    """Return an expression in parentheses, unless it can be multiplied without them."""
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def size_text(value: Value) -> str:
    """Return a value as the text of a size; empty if it is none. An argument that is a number has its own name."""
    match value:
        case Size(text):
            return text
        case Const(value=int(number)) if not isinstance(number, bool):
            return str(number)
        case HostTensor(is_given=True, made="", rank=None) if not value.least_rank:
            return value.key
    return ""


def condition_text(value: Value) -> str:
    """Return a value as the text of a condition; empty if it is not one."""
    match value:
        case Condition(text):
            return text
        case Const(value=bool(flag)):
            return str(flag)
        case HostTensor(is_given=True):
            return value.key
        case Size(text):
            return f"{atomic(text)} != 0"
    return ""


def negated(text: str) -> str:
    """Return the negation of a condition."""
    if text.startswith("not "):
        return text.removeprefix("not ")
    return f"not {text}" if text.isidentifier() or _is_call(text) else f"not ({text})"


def _is_call(text: str) -> bool:
    return isinstance(ast.parse(text, mode="eval").body, ast.Call)
