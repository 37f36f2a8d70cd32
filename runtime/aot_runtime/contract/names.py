"""Which names an op's expressions may use, and where each dim's extent comes from.

The builder checks a manifest with it; a reader checks a bundle with the very same code.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator, Mapping

import msgspec

from aot_runtime.errors import ExpressionError

from . import expressions
from .arch import EXPRESSION_NAMES
from .dtypes import DTYPES, SCALAR_TYPES
from .records import Axis, Launch, Op, Tensor

PathKey = str | int
Names = dict[str, type]

RESERVED = frozenset(
    {"num_cus", "aligned", "stream", "extent", *EXPRESSION_NAMES, *expressions.FUNCTIONS, *expressions._QUERIES}
) | frozenset(keyword.kwlist)
RESERVED_OPS = frozenset({"device", "explain", "index", "load", "ops", "path", "preload", "selftest"})
"""Attributes that an open bundle has besides its ops."""
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*\Z")
_RULE = re.compile(r"(smallest|largest)\s*(>=|<=|>|<)\s*(.+)\Z", re.DOTALL)
_RULES = {("smallest", ">="), ("smallest", ">"), ("largest", "<="), ("largest", "<")}


def axis_rule(text: str) -> tuple[str, str]:
    """Split a `pick` into (rule, expression): `smallest >= head_dim` is (`>=`, `head_dim`), `causal` (`equal`, …)."""
    match = _RULE.match(text.strip())
    if match and (match[1], match[2]) in _RULES:
        return match[2], match[3]
    return "equal", text


class DimSource(msgspec.Struct, frozen=True):
    """A dim's extent is `inverse`, an expression of `extent`: the given extent of dim `position` of `tensor`."""

    tensor: str
    position: int
    inverse: str
    optional: bool


class Scope(msgspec.Struct, frozen=True):
    """The names of one op: its dims with their sources, and the types of everything that expressions may read."""

    dims: Mapping[str, DimSource]
    subjects: Mapping[str, Tensor]

    @classmethod
    def of(cls, op: Op) -> Scope:
        """Find where every dim comes from. Raises `ExpressionError` for one that no input gives."""
        dims = _find_dims(op)
        taken = {name for names in _named(op).values() for name in names}
        for name in dims:
            if name in RESERVED or name in taken or not IDENTIFIER.match(name):
                raise ExpressionError(f"'{name}' cannot be a dim's name: it is reserved, or something else's name")
        return cls(dims, {tensor.name: tensor for tensor in op.tensors})

    def call_names(self, op: Op) -> Names:
        """Dims and scalars: what is known once a call's arguments are read."""
        kinds: Names = dict.fromkeys(self.dims, int)
        kinds |= {scalar.name: scalar_kind(scalar.type) for scalar in op.scalars}
        return kinds | {**EXPRESSION_NAMES, "num_cus": int} | dict.fromkeys(op.dtypes, str)

    def build_names(self, op: Op) -> Names:
        """Axes, dtype variables and the like: what is known of a variant when it is built."""
        kinds: Names = dict.fromkeys(op.dtypes, str)
        return kinds | {axis.name: axis_kind(axis) for axis in op.axes} | {"aligned": bool, **EXPRESSION_NAMES}

    def all_names(self, op: Op) -> Names:
        """Everything but a launch's config."""
        return self.call_names(op) | dict.fromkeys((let.name for let in op.let), int) | self.build_names(op)

    def expressions(self, op: Op) -> Iterator[tuple[tuple[PathKey, ...], str, Names]]:
        """Every expression of the contract: (path in the manifest, text, names that it may use)."""
        names: Names = {**dict.fromkeys(self.dims, int), **EXPRESSION_NAMES, "num_cus": int}
        names |= dict.fromkeys(op.dtypes, str)
        for tensor in op.tensors:
            for i, dim in enumerate(tensor.shape):
                scope = self.call_names(op) | (dict.fromkeys((let.name for let in op.let), int))
                yield ("tensors", tensor.name, "shape", i), dim.extent, scope
            if tensor.when:
                yield ("tensors", tensor.name, "when"), tensor.when, self.call_names(op)
        for scalar in op.scalars:
            if scalar.default:
                yield ("scalars", scalar.name, "default"), scalar.default, dict(names)
            names[scalar.name] = scalar_kind(scalar.type)
        for i, text in enumerate(op.require):
            yield ("require", i), text, dict(names)
        for let in op.let:
            yield ("let", let.name), let.value, dict(names)
            names[let.name] = int
        names["aligned"] = bool
        for axis in op.axes:
            yield ("constexprs", axis.name, "pick"), axis.pick, dict(names)
            names[axis.name] = axis_kind(axis)
        for space in op.workspace:
            for i, text in enumerate(space.shape):
                yield ("workspace", space.name, "shape", i), text, dict(names)
        configs = {
            name: type(value) for launch in op.launches for c in launch.configs for name, value in c.values.items()
        }
        for denied in op.denied:
            yield ("overrides",), denied.when, names | configs | {"config": str}
        for i, launch in enumerate(op.launches):
            yield from self._launch_expressions(i, launch, names)

    def _launch_expressions(
        self, index: int, launch: Launch, names: Names
    ) -> Iterator[tuple[tuple[PathKey, ...], str, Names]]:
        path = ("launches", index)
        if launch.when:
            yield (*path, "when"), launch.when, names
        for config in launch.configs:
            if config.when:
                yield (*path, "configs"), config.when, names
        for i, text in enumerate(launch.grid):
            yield (*path, "grid", i), text, names | config_names(launch)


def config_names(launch: Launch) -> Names:
    """The constexprs that every config of a launch sets, with their types (num_warps is known as well)."""
    first, *rest = launch.configs
    common = set(first.values).intersection(*(config.values for config in rest))
    return {name: type(first.values[name]) for name in sorted(common)}


def axis_names(op: Op) -> tuple[str, ...]:
    """The coordinates of a point: dtype variables, then axes."""
    return (*op.dtypes, *(axis.name for axis in op.axes))


def scalar_kind(type_name: str) -> type:
    """The Python type of a scalar's value."""
    return {"flag": bool, "choice": str, "fp32": float, "fp64": float, "i1": bool}.get(type_name, int)


def axis_kind(axis: Axis) -> type:
    """The Python type of an axis's values."""
    return type(axis.values[0])


def stride_position(tensor: Tensor, dim: str | int) -> int:
    """The position that `stride(tensor, dim)` and `innermost(tensor, dim)` mean. Raises `ExpressionError`."""
    if isinstance(dim, int) or dim.isdigit():
        if int(dim) < len(tensor.shape):
            return int(dim)
    else:
        positions = [i for i, item in enumerate(tensor.shape) if item.extent == dim]
        if len(positions) == 1:
            return positions[0]
    dims = ", ".join(item.extent for item in tensor.shape)
    raise ExpressionError(f"stride({tensor.name}, {dim}): '{dim}' names no single dim of '{tensor.name}' [{dims}]")


def _find_dims(op: Op) -> dict[str, DimSource]:
    """Plain names first, in required inputs before optional ones; then what can be solved."""
    inputs = [tensor for tensor in op.tensors if tensor.role != "output"]
    ordered = [tensor for tensor in inputs if not tensor.optional] + [tensor for tensor in inputs if tensor.optional]
    dims: dict[str, DimSource] = {}
    others = {scalar.name for scalar in op.scalars} | {let.name for let in op.let}
    for tensor in ordered:
        for i, dim in enumerate(tensor.shape):
            if not dim.broadcast and dim.extent.isidentifier() and dim.extent not in others:
                dims.setdefault(dim.extent, DimSource(tensor.name, i, "extent", tensor.optional))
    for tensor in ordered:
        for i, dim in enumerate(tensor.shape):
            unknown = expressions.parse(dim.extent).names - dims.keys()  # dims are known before scalars and lets
            if len(unknown) == 1 and not dim.broadcast and not unknown & others:
                (name,) = unknown
                inverse = _solve(dim.extent, name)
                if inverse:
                    dims[name] = DimSource(tensor.name, i, inverse, tensor.optional)
    known = dims.keys() | others
    for tensor in op.tensors:
        for dim in tensor.shape:
            for name in sorted(expressions.parse(dim.extent).names - known):
                raise ExpressionError(
                    f"tensor '{tensor.name}': nothing gives the extent '{name}': some input needs a dim '{name}', or "
                    f"'{name} + c', '{name} - c', '{name} * c' or '{name} // c'"
                )
    return dims


def _solve(text: str, name: str) -> str:
    """The expression of `extent` that gives `name` where `text` == extent; empty where the form is not solved."""
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


def check_op(op: Op) -> None:
    """Raise `ExpressionError` unless every name of a contract is an identifier and every reference is in range.

    Planners are written from contracts: this, and the check of every expression, is what makes that safe.
    """
    if op.name in RESERVED_OPS:
        raise ExpressionError(f"an op cannot be called '{op.name}': open bundles have an attribute of that name")
    seen: set[str] = set()
    for group, names in {"op": [op.name], **_named(op)}.items():
        for name in names:
            if not IDENTIFIER.match(name) or name in RESERVED:
                raise ExpressionError(f"{group} '{name}': not a name, or a reserved one")
            if name in seen:
                raise ExpressionError(f"'{name}' names two things")
            if group != "op":
                seen.add(name)
    dims = Scope.of(op).dims
    for tensor in op.tensors:
        _check_tensor(op, tensor)
        _check_offsets(op, tensor, dims)
        _check_range(op, tensor, dims)
    for scalar in op.scalars:
        if scalar.type not in SCALAR_TYPES and scalar.type not in ("flag", "choice"):
            raise ExpressionError(f"scalar '{scalar.name}' has unknown type '{scalar.type}'")
    for axis in op.axes:
        if not axis.values or axis.rule not in ("equal", ">=", ">", "<=", "<"):
            raise ExpressionError(f"constexpr '{axis.name}' has no values, or an unknown rule '{axis.rule}'")
    for name, values in op.dtypes.items():
        if not values or any(value not in DTYPES for value in values):
            raise ExpressionError(f"dtype variable '{name}' has unknown dtypes {list(values)}")
    for space in op.workspace:
        if space.dtype not in DTYPES:
            raise ExpressionError(f"workspace '{space.name}' has unknown dtype '{space.dtype}'")
    for launch in op.launches:
        set_names = {name for config in launch.configs for name in config.values}
        if not launch.configs or not launch.kernel.isidentifier():
            raise ExpressionError(f"launch '{launch.kernel}' has no configs, or no identifier as its name")
        if any(not _is_plain(name) or name in RESERVED for name in set_names):
            raise ExpressionError(
                f"a config of '{launch.kernel}' sets what is no identifier, or reserved: {sorted(set_names)}"
            )
        config_clash = (seen | dims.keys()) & set_names
        if config_clash:
            raise ExpressionError(
                f"config of '{launch.kernel}' sets {', '.join(sorted(config_clash))}, which the op has"
            )
    for name in op.align:
        if name not in dims:
            raise ExpressionError(f"align names '{name}', which is no dim")


def _named(op: Op) -> dict[str, list[str]]:
    """All that an op names itself, by kind; dims are named by the shapes."""
    return {
        "tensor": [tensor.name for tensor in op.tensors],
        "scalar": [scalar.name for scalar in op.scalars],
        "dtype variable": list(op.dtypes),
        "constexpr": [axis.name for axis in op.axes],
        "let": [let.name for let in op.let],
        "workspace": [space.name for space in op.workspace],
    }


def _is_plain(name: str) -> bool:
    """Whether Python reads a name as it stands: other letters than ASCII's may become different ones."""
    return name.isascii() and name.isidentifier() and not name.startswith("_")


def _check_offsets(op: Op, tensor: Tensor, dims: Mapping[str, DimSource]) -> None:
    if tensor.offsets is None:
        return
    into, longest = tensor.offsets.into, tensor.offsets.longest
    if tensor.role != "input" or len(tensor.shape) != 1 or tensor.dtype not in ("int32", "int64"):
        raise ExpressionError(f"tensor '{tensor.name}': offsets are an input of one dim, of dtype int32 or int64")
    if into not in dims or dims[into].inverse != "extent" or dims[into].optional:
        raise ExpressionError(
            f"tensor '{tensor.name}': offsets go into '{into}', which is no dim of a required input"
            f"{expressions.nearest(into, tuple(dims))}"
        )
    integers = [scalar.name for scalar in op.scalars if scalar.type[:1] in ("i", "u")]
    if longest and longest not in integers:
        raise ExpressionError(
            f"tensor '{tensor.name}': the longest of offsets is '{longest}', which is no integer scalar"
            f"{expressions.nearest(longest, integers)}"
        )


def _check_range(op: Op, tensor: Tensor, dims: Mapping[str, DimSource]) -> None:
    if not tensor.range:
        return
    if len(tensor.range) != 2 or tensor.role != "input" or tensor.dtype not in ("int32", "int64"):
        raise ExpressionError(
            f"tensor '{tensor.name}': a range is of two bounds, and of an input of dtype int32 or int64"
        )
    plain = {name: int for name, source in dims.items() if source.inverse == "extent" and not source.optional}
    integers = [scalar for scalar in op.scalars if scalar.type[:1] in ("i", "u")]
    known = plain | {scalar.name: int for scalar in integers}
    for text in tensor.range:
        bound = expressions.parse(text)
        bound.check_names(known)
        for scalar in integers:
            if scalar.name in bound.names and scalar.default:
                expressions.parse(scalar.default).check_names(plain)


def _check_tensor(op: Op, tensor: Tensor) -> None:
    if tensor.role not in ("input", "output", "inout"):
        raise ExpressionError(f"tensor '{tensor.name}' has unknown role '{tensor.role}'")
    if tensor.dtype not in DTYPES and tensor.dtype not in op.dtypes:
        raise ExpressionError(f"tensor '{tensor.name}' has unknown dtype '{tensor.dtype}'")
    for key, positions in (("contiguous", tensor.contiguous), ("innermost", tensor.innermost)):
        if len(set(positions)) != len(positions) or any(not 0 <= p < len(tensor.shape) for p in positions):
            raise ExpressionError(f"tensor '{tensor.name}': {key} dims {list(positions)} are not its dims")
    if tensor.contiguous and tensor.innermost:
        raise ExpressionError(f"tensor '{tensor.name}' has both `contiguous` and `innermost` dims")
