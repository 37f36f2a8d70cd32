"""Validation of contracts, for manifests and for bundles.

Each fault has a path of the manifest's keys below the op, from which the builder finds file, line and column. Records
are checked for consistency, and expressions for undefined names. Nothing is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from aot_runtime.errors import ExpressionError

from .dtypes import DTYPES, INDEX_DTYPES, INT32, INT32_OR_INT64, INTEGER_TYPES, INTEGERS, SCALAR_TYPES
from .expressions import nearest, parse
from .names import IDENTIFIER, RESERVED, DimSource, Path, Scope, config_names, named, overlay
from .records import Launch, Op, Tensor, Variant

_BEFORE_OUTPUTS = ("tensors", "scalars", "require", "derived")
"""Parts of a contract whose expressions are evaluated before the outputs have layouts."""
_ROLES = ("input", "output", "inout")
_RULES = ("equal", ">=", ">", "<=", "<")
MAX_RANK = 64
"""Maximum number of dims of a tensor, as in numpy."""
MAX_COMBINATIONS = 64
"""Maximum number of combinations of an op's alternatives."""


class Fault(msgspec.Struct, frozen=True):
    """A fault of a contract and the path to it."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.text}" if self.path else self.text


def require_sound(op: Op, faults: Iterable[Fault]) -> None:
    """Raise `ExpressionError` with the first of an op's faults, if any."""
    for fault in faults:
        raise ExpressionError(f"op '{op.name}': {fault}")


def structure_faults(op: Op) -> Iterator[Fault]:
    """Yield faults of names and of references: dims, dtypes, positions. Of the expressions, only extents are parsed."""
    unsound = False
    for fault in _name_faults(op):
        unsound = True
        yield fault
    if unsound:
        return  # later checks would report misleading faults
    try:
        dims = Scope.of(op).dims
    except ExpressionError as error:
        yield Fault(("tensors",), str(error))
        return
    integers = _integer_scalars(op)
    bounds = _Bounds.of(op, dims, integers)
    inputs = {tensor.name: tensor for tensor in op.tensors if tensor.role == "input"}
    for tensor in op.tensors:
        yield from _tensor_faults(op, tensor, inputs)
        yield from _offsets_faults(tensor, dims, integers)
        yield from _range_faults(tensor, bounds)
    yield from _dtype_faults(op)
    yield from _dim_faults(op, dims)
    for scalar in op.scalars:
        if scalar.type not in SCALAR_TYPES and scalar.type not in ("flag", "choice"):
            yield Fault(("scalars", scalar.name, "type"), f"unknown type of a scalar '{scalar.type}'")
        elif (scalar.type == "choice") != bool(scalar.choices):
            yield Fault(("scalars", scalar.name), "`values` goes with `type: choice`, and only with it")
    for axis in op.axes:
        if not axis.values or axis.rule not in _RULES:
            yield Fault(("constexprs", axis.name), f"has no values, or an unknown rule '{axis.rule}'")
    if any(not item.values for item in op.alternatives):
        yield Fault(("alternatives",), "alternatives have at least one value")
    if (count := math.prod(len(item.values) for item in op.alternatives)) > MAX_COMBINATIONS:
        yield Fault(("alternatives",), f"{count} combinations of alternatives; at most {MAX_COMBINATIONS} are allowed")
    taken = dims.keys() | {name for names in named(op).values() for name in names}
    for index, launch in enumerate(op.launches):
        yield from _launch_faults(index, launch, taken)


def _name_faults(op: Op) -> Iterator[Fault]:
    if not IDENTIFIER.match(op.name) or op.name in RESERVED:
        yield Fault((), f"'{op.name}' is not a name of an op, or is reserved")
    seen: dict[str, str] = {}
    for key, names in named(op).items():
        for name in names:
            if name in RESERVED:
                yield Fault((key, name), f"'{name}' is reserved; choose another name")
            elif not IDENTIFIER.match(name):
                yield Fault((key, name), f"{name!r} is not a valid name")
            elif name in seen:
                yield Fault((key, name), f"'{name}' is in `{seen[name]}` already; names are distinct")
            seen[name] = key


def _tensor_faults(op: Op, tensor: Tensor, inputs: Mapping[str, Tensor]) -> Iterator[Fault]:
    path: Path = ("tensors", tensor.name)
    if tensor.role not in _ROLES:
        yield Fault((*path, "role"), f"unknown role '{tensor.role}'; allowed: {', '.join(_ROLES)}")
    if tensor.dtype not in DTYPES and tensor.dtype not in op.dtypes:
        known = [*op.dtypes, *DTYPES]
        yield Fault((*path, "dtype"), f"unknown dtype or dtype variable '{tensor.dtype}'{nearest(tensor.dtype, known)}")
    if tensor.also_int64 and (
        (tensor.dtype, tensor.role) != (INT32.name, "input") or tensor.contiguous or tensor.innermost
    ):
        yield Fault((*path, "dtype"), f"'{INT32_OR_INT64}' is for an input without contiguous dims: `contiguous: []`")
    if len(tensor.shape) > MAX_RANK:
        yield Fault((*path, "shape"), f"a tensor has at most {MAX_RANK} dims, not {len(tensor.shape)}")
        return
    for key, positions in (("contiguous", tensor.contiguous), ("innermost", tensor.innermost)):
        if len(set(positions)) != len(positions) or any(not 0 <= p < len(tensor.shape) for p in positions):
            yield Fault((*path, key), f"dims {list(positions)} are not the tensor's")
    if tensor.contiguous and tensor.innermost:
        yield Fault((*path, "innermost"), "a tensor has `contiguous` or `innermost` dims, not both")
    if tensor.pointer and (tensor.shape or tensor.role == "output"):
        yield Fault((*path, "pointer"), "a pointer has no shape, and is an input or an inout")
    if tensor.zero and tensor.role != "output":
        yield Fault((*path, "zero"), f"only an output is zeroed before the launches; this is an {tensor.role}")
    elif tensor.zero and tensor.in_place:
        yield Fault((*path, "zero"), f"zeroed before the launches, it cannot be '{tensor.in_place[0]}' itself, too")
    for name in tensor.in_place:
        if tensor.role == "input" or name not in inputs:
            yield Fault((*path, "in_place"), f"'{name}': it lists inputs that an output may be")
        elif (inputs[name].dtype, len(inputs[name].shape)) != (tensor.dtype, len(tensor.shape)):
            yield Fault((*path, "in_place"), f"'{name}' has another dtype or number of dims than '{tensor.name}'")


def _offsets_faults(tensor: Tensor, dims: Mapping[str, DimSource], integers: Collection[str]) -> Iterator[Fault]:
    if tensor.offsets is None:
        return
    path: Path = ("tensors", tensor.name, "offsets")
    into, longest = tensor.offsets.into, tensor.offsets.longest
    if tensor.role != "input" or len(tensor.shape) != 1 or tensor.dtype not in INDEX_DTYPES:
        yield Fault(path, f"offsets are an input of one dim, of dtype {' or '.join(INDEX_DTYPES)}")
    if into not in dims or dims[into].inverse != "extent" or dims[into].optional:
        text = f"'{into}' is not a dim of a required input, as offsets need{nearest(into, dims.keys())}"
        yield Fault((*path, "into"), text)
    if longest and longest not in integers:
        yield Fault((*path, "longest"), f"unknown integer scalar '{longest}'{nearest(longest, integers)}")


class _Bounds(msgspec.Struct, frozen=True):
    """The names that bounds of ranges may read.

    Attributes:
        plain: dims of required inputs.
        known: dims of required inputs, and integer scalars.
        defaults: scalar → its default.
    """

    plain: Mapping[str, type]
    known: Mapping[str, type]
    defaults: Mapping[str, str]

    @classmethod
    def of(cls, op: Op, dims: Mapping[str, DimSource], integers: Iterable[str]) -> _Bounds:
        plain = {name: int for name, source in dims.items() if source.inverse == "extent" and not source.optional}
        defaults = {scalar.name: scalar.default for scalar in op.scalars if scalar.default}
        return cls(plain, plain | dict.fromkeys(integers, int), defaults)


def _range_faults(tensor: Tensor, bounds: _Bounds) -> Iterator[Fault]:
    if not tensor.range:
        return
    path: Path = ("tensors", tensor.name, "range")
    if len(tensor.range) != 2 or tensor.role != "input" or tensor.dtype not in INTEGERS:
        yield Fault(path, f"a range has two bounds, and its tensor is an input of integers: {', '.join(INTEGERS)}")
    for i, text in enumerate(tensor.range):
        try:
            bound = parse(text)
            bound.check_names(bounds.known)
            for name in sorted(name for name in bound.names if name in bounds.defaults):
                parse(bounds.defaults[name]).check_names(bounds.plain)
        except ExpressionError as error:
            yield Fault((*path, i), str(error))


def _integer_scalars(op: Op) -> frozenset[str]:
    return frozenset(scalar.name for scalar in op.scalars if scalar.type in INTEGER_TYPES)


def _dtype_faults(op: Op) -> Iterator[Fault]:
    decided = {tensor.dtype for tensor in op.tensors if tensor.role != "output" and not tensor.optional}
    for name, values in op.dtypes.items():
        if not values or any(value not in DTYPES for value in values):
            yield Fault(("dtypes", name), f"{list(values)} are not dtypes")
        if name not in decided:
            yield Fault(("dtypes", name), f"no required input has dtype '{name}', so no call decides it")
    for space in op.workspace:
        if space.dtype not in DTYPES and space.dtype not in op.dtypes:
            known = [*op.dtypes, *DTYPES]
            text = f"unknown dtype or dtype variable '{space.dtype}'{nearest(space.dtype, known)}"
            yield Fault(("workspace", space.name, "dtype"), text)


def _dim_faults(op: Op, dims: Mapping[str, DimSource]) -> Iterator[Fault]:
    for key, names in (("dims", [dim.name for dim in op.dims]), ("divisible", [item.dim for item in op.divisible])):
        for name in names:
            if name not in dims:
                yield Fault((key, name), f"unknown dim '{name}'{nearest(name, dims.keys())}")
    present = {tensor.name for tensor in op.tensors if tensor.is_required}
    for item in op.divisible:
        if item.elements < 0 or not (item.elements or item.tensors) or not present.issuperset(item.tensors):
            text = (
                f"{item.elements} elements, tensors {list(item.tensors)}; expected a positive number of elements, or "
                f"tensors among those that every call has: {', '.join(sorted(present)) or 'none'}"
            )
            yield Fault(("divisible", item.dim), text)


def _launch_faults(index: int, launch: Launch, taken: set[str]) -> Iterator[Fault]:
    path: Path = ("launches", index)
    if not launch.configs or not launch.kernel.isidentifier():
        yield Fault(path, f"launch '{launch.kernel}' has no configs, or no identifier as its name")
    for config in launch.configs:
        for name in config.values:
            where: Path = (*path, "configs", config.name, name)
            if not _is_plain(name) or name in RESERVED:
                yield Fault(where, f"a config of '{launch.kernel}' sets '{name}': no identifier, or a reserved one")
            elif name in taken:
                yield Fault(where, f"a config of '{launch.kernel}' sets '{name}', which the op has")


def _is_plain(name: str) -> bool:
    """Return True for an ASCII identifier without a leading underscore. Python normalises non-ASCII letters."""
    return name.isascii() and name.isidentifier() and not name.startswith("_")


def expression_faults(op: Op, variants: Iterable[Variant] = ()) -> Iterator[Fault]:
    """Yield faults of the expressions of an op whose structure is sound: syntax, and names that they may not read."""
    scope = Scope.of(op)
    for path, text, names in scope.expressions(op):
        yield from text_faults(path, text, names, scope)
    all_names = scope.all_names(op)
    for index, texts in kernarg_texts(op, variants).items():
        names = overlay(config_names(op.launches[index]), all_names)
        for text in texts:
            yield from text_faults(("launches", index, "bind"), text, names, scope)


def text_faults(path: Path, text: str, names: Mapping[str, type], scope: Scope) -> Iterator[Fault]:
    """Yield faults of an expression that may read `names`."""
    try:
        parsed = parse(text)
        parsed.check_names(names, scope.subjects)
        scope.check_queries(parsed)
    except ExpressionError as error:
        yield Fault(path, str(error))
        return
    for subject in parsed.laid_out:
        if path[0] in _BEFORE_OUTPUTS and scope.subjects[subject].role == "output":
            yield Fault(path, f"'{text}' asks for the layout of output '{subject}' before it is laid out")


def kernarg_texts(op: Op, variants: Iterable[Variant]) -> dict[int, list[str]]:
    """Return launch → the expressions of its variants' scalar kernargs."""
    found: dict[int, dict[str, None]] = {index: {} for index in range(len(op.launches))}
    layouts = {(variant.launch, id(variant.kernargs)): variant.kernargs for variant in variants}  # shared objects
    for (launch, _), kernargs in layouts.items():
        found[launch].update((arg.value, None) for arg in kernargs if arg.is_expression)
    return {index: sorted(texts) for index, texts in found.items()}
