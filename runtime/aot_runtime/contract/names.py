"""The names that an op's expressions may use, and the sources of its dims' extents."""

from __future__ import annotations

import ast
import keyword
import re
from collections import ChainMap
from collections.abc import Container, Iterator, Mapping
from typing import cast

import msgspec

from aot_runtime.errors import ExpressionError

from . import expressions
from .arch import EXPRESSION_NAMES
from .dtypes import FLAG_TYPES, FLOAT_TYPES
from .records import Axis, Launch, Op, Tensor

Path = tuple[str | int, ...]
"""Keys from an op of a manifest to a value in it."""
Names = dict[str, type]
"""Name → Python type of its value."""
Known = Mapping[str, type]
"""The names that an expression may read, with their types."""

RESERVED = frozenset({"num_cus", "aligned", "stream", "extent", *EXPRESSION_NAMES, *expressions.FUNCTIONS}) | frozenset(
    keyword.kwlist
)
TYPE_NAME, TYPE_OPS = "_bundle_name", "_bundle_ops"
"""Attributes of a bundle's type (a stub class): the bundle's name and the names of its ops."""
VERSION = (
    r"^(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))*((a|b|rc)(0|[1-9][0-9]*))?"
    r"(\.post(0|[1-9][0-9]*))?(\.dev(0|[1-9][0-9]*))?(\+[a-z0-9]+(\.[a-z0-9]+)*)?$"
)
"""Pattern of a bundle's version: a normalised version of a Python package (PEP 440) without an epoch."""
MAX_VERSION = 64
"""Maximum length of a version."""
IDENTIFIER = re.compile(r"(?=.{1,256}\Z)[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*\Z")


def is_version(text: str) -> bool:
    """Return True if `text` is a valid version of a bundle."""
    return len(text) <= MAX_VERSION and re.fullmatch(VERSION, text) is not None


class DimSource(msgspec.Struct, frozen=True):
    """The source of a dim's extent.

    Attributes:
        tensor, position: the argument's dim that the extent is computed from.
        inverse: expression of the dim's extent; its name `extent` stands for the argument's.
        optional: the tensor is optional.
    """

    tensor: str
    position: int
    inverse: str
    optional: bool


def overlay(over: Names, under: Known) -> Known:
    """Return a view of both mappings in which `over` takes precedence."""
    return ChainMap(over, cast(Names, under))  # a ChainMap writes to its first mapping only


class Scope(msgspec.Struct, frozen=True):
    """The names of an op: its dims with their sources, and its tensors by name."""

    dims: Mapping[str, DimSource]
    subjects: Mapping[str, Tensor]

    @classmethod
    def of(cls, op: Op) -> Scope:
        """Find the source of every dim. Raises `ExpressionError` if no input gives a dim's extent."""
        dims = _find_dims(op)
        taken = {name for names in named(op).values() for name in names}
        for name in dims:
            if name in RESERVED or name in taken or not IDENTIFIER.match(name):
                raise ExpressionError(f"'{name}' cannot be a dim's name: it is reserved, or something else's name")
        return cls(dims, {tensor.name: tensor for tensor in op.tensors})

    def call_names(self, op: Op) -> Names:
        """Return the names that are known from a call's arguments: dims, scalars, dtype variables and the device's."""
        kinds: Names = dict.fromkeys(self.dims, int)
        kinds |= {scalar.name: scalar_kind(scalar.type) for scalar in op.scalars}
        return kinds | {**EXPRESSION_NAMES, "num_cus": int} | dict.fromkeys(op.dtypes, str)

    def build_names(self, op: Op) -> Names:
        """Return the names that are known when a variant is built: dtype variables, axes and the architecture's."""
        kinds: Names = dict.fromkeys(op.dtypes, str)
        return kinds | {axis.name: axis_kind(axis) for axis in op.axes} | {"aligned": bool, **EXPRESSION_NAMES}

    def all_names(self, op: Op) -> Names:
        """Return all names except those of a launch's configs."""
        numbers = [*(item.name for item in op.derived), *(item.name for item in op.alternatives)]
        return self.call_names(op) | dict.fromkeys(numbers, int) | self.build_names(op)

    def check_queries(self, expression: expressions.Expression) -> None:
        """Raise `ExpressionError` if a layout query is not a single dim of its tensor."""
        for function, subject, *rest in expression.queries:
            if function in expressions.DIM_QUERIES:
                stride_position(self.subjects[str(subject)], rest[0])

    def expressions(self, op: Op) -> Iterator[tuple[Path, str, Known]]:
        """Yield every expression of the contract: (path in the manifest, text, names that it may use).

        The names are valid until the next expression is asked for: later ones may use more.
        """
        of_call = self.call_names(op)
        of_shapes = of_call | dict.fromkeys((item.name for item in op.derived), int)
        for tensor in op.tensors:
            for i, dim in enumerate(tensor.shape):
                yield ("tensors", tensor.name, "shape", i), dim.extent, of_shapes
            if tensor.when:
                yield ("tensors", tensor.name, "when"), tensor.when, of_call
        names: Names = {**dict.fromkeys(self.dims, int), **EXPRESSION_NAMES, "num_cus": int}
        for variable in op.dtypes:
            names[variable] = str
        for scalar in op.scalars:
            if scalar.default:
                yield ("scalars", scalar.name, "default"), scalar.default, names
            names[scalar.name] = scalar_kind(scalar.type)
        for i, text in enumerate(op.require):
            yield ("require", i), text, names
        for item in op.derived:
            yield ("derived", item.name), item.value, names
            names[item.name] = int
        for number in op.alternatives:
            for i, text in enumerate(number.values):
                yield ("alternatives", number.name, i), text, names
        names |= dict.fromkeys((number.name for number in op.alternatives), int)
        names["aligned"] = bool
        for axis in op.axes:
            yield ("constexprs", axis.name, "pick"), axis.pick, names
            names[axis.name] = axis_kind(axis)
        for space in op.workspace:
            for i, text in enumerate(space.shape):
                yield ("workspace", space.name, "shape", i), text, names
        configs = {
            name: type(value) for launch in op.launches for c in launch.configs for name, value in c.values.items()
        }
        for denied in op.denied:
            yield ("overrides",), denied.when, overlay({**configs, "config": str}, names)
        for i, launch in enumerate(op.launches):
            yield from self._launch_expressions(i, launch, names)

    def _launch_expressions(self, index: int, launch: Launch, names: Known) -> Iterator[tuple[Path, str, Known]]:
        path: Path = ("launches", index)
        if launch.when:
            yield (*path, "when"), launch.when, names
        for config in launch.configs:
            if config.when:
                yield (*path, "configs", config.name, "when"), config.when, names
            if config.cost:
                yield (*path, "configs", config.name, "cost"), config.cost, names
        for i, text in enumerate(launch.grid):
            yield (*path, "grid", i), text, overlay(config_names(launch), names)


def config_names(launch: Launch) -> Names:
    """Return the constexprs that all configs of a launch set, with their types."""
    first, *rest = launch.configs
    common = set(first.values).intersection(*(config.values for config in rest))
    return {name: type(first.values[name]) for name in sorted(common)}


def axis_names(op: Op) -> tuple[str, ...]:
    """Return the names of a variant's values: dtype variables, then axes."""
    return (*op.dtypes, *(axis.name for axis in op.axes))


def scalar_kind(type_name: str) -> type:
    """Return the Python type of a scalar's value."""
    return float if type_name in FLOAT_TYPES else {"choice": str, **dict.fromkeys(FLAG_TYPES, bool)}.get(type_name, int)


def axis_kind(axis: Axis) -> type:
    """Return the Python type of an axis's values."""
    return type(axis.values[0])


def stride_position(tensor: Tensor, dim: str | int) -> int:
    """Return the position of `dim` in `stride(tensor, dim)` or `innermost(tensor, dim)`.

    Raises:
        ExpressionError: `dim` is not a single dim of the tensor.
    """
    if isinstance(dim, int) or dim.isdigit():
        if int(dim) < len(tensor.shape):
            return int(dim)
    else:
        positions = [i for i, item in enumerate(tensor.shape) if item.extent == dim]
        if len(positions) == 1:
            return positions[0]
    dims = ", ".join(item.extent for item in tensor.shape)
    raise ExpressionError(f"stride({tensor.name}, {dim}): '{dim}' is not a single dim of '{tensor.name}' [{dims}]")


def _find_dims(op: Op) -> dict[str, DimSource]:
    """Find the sources of all dims.

    Dims that are plain names come first, in required inputs before optional ones; then solvable expressions.
    """
    inputs = [tensor for tensor in op.tensors if tensor.role != "output"]
    ordered = [tensor for tensor in inputs if not tensor.optional] + [tensor for tensor in inputs if tensor.optional]
    dims: dict[str, DimSource] = {}
    others = {scalar.name for scalar in op.scalars} | {item.name for item in op.derived}
    others |= {item.name for item in op.alternatives}
    for tensor in ordered:
        for i, dim in enumerate(tensor.shape):
            if not dim.broadcast and dim.extent.isidentifier() and dim.extent not in others:
                dims.setdefault(dim.extent, DimSource(tensor.name, i, "extent", tensor.optional))
    for tensor in ordered:
        for i, dim in enumerate(tensor.shape):
            unknown = _missing(dim.extent, dims)  # scalars are known later
            if len(unknown) == 1 and not dim.broadcast and not unknown & others:
                (name,) = unknown
                inverse = _solve(dim.extent, name)
                if inverse:
                    dims[name] = DimSource(tensor.name, i, inverse, tensor.optional)
    known = dims.keys() | others
    for tensor in op.tensors:
        for dim in tensor.shape:
            for name in sorted(_missing(dim.extent, known)):
                raise ExpressionError(
                    f"tensor '{tensor.name}': nothing gives the extent '{name}': some input needs a dim '{name}', or "
                    f"'{name} + c', '{name} - c', '{name} * c' or '{name} // c'; or '{name}' must be a scalar"
                )
    return dims


def _missing(text: str, known: Container[str]) -> set[str]:
    return {name for name in expressions.parse(text).names if name not in known}


def _solve(text: str, name: str) -> str:
    """Solve `text` == `extent` for `name`. Return an expression of `extent`; empty for an unsupported form."""
    match expressions.parse(text).tree:
        case ast.BinOp(left=ast.Name(id=left), op=op, right=constant) if left == name:
            known = ast.unparse(constant)
        case ast.BinOp(left=constant, op=(ast.Add() | ast.Mult()) as op, right=ast.Name(id=right)) if right == name:
            known = ast.unparse(constant)
        case _:
            return ""
    if name in expressions.parse(known).names:
        return ""
    sign = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*"}.get(type(op))
    return expressions.parse(f"extent {sign} ({known})").text if sign else ""


def named(op: Op) -> dict[str, list[str]]:
    """Return the names that an op defines, by their key of the manifest. Dims are not among them."""
    return {
        "tensors": [tensor.name for tensor in op.tensors],
        "scalars": [scalar.name for scalar in op.scalars],
        "dtypes": list(op.dtypes),
        "constexprs": [axis.name for axis in op.axes],
        "derived": [item.name for item in op.derived],
        "alternatives": [item.name for item in op.alternatives],
        "workspace": [space.name for space in op.workspace],
    }
