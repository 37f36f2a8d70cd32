"""Describe a call without arrays, to plan it without a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import Planner
from aot_runtime.contract import expressions
from aot_runtime.contract.arch import device_names
from aot_runtime.contract.dtypes import DTYPES, FLAG_TYPES, FLOAT_TYPES
from aot_runtime.contract.gpu_names import usual_cus
from aot_runtime.contract.layout import Layout, Shape, make_layout, packed_strides, packing_order
from aot_runtime.contract.names import Scope
from aot_runtime.contract.partial_evaluation import evaluate
from aot_runtime.contract.records import Index, Op, Scalar, Tensor, Value
from aot_runtime.errors import ArgumentError, ExpressionError
from aot_runtime.texts import shown


class UnsaidError(ArgumentError):
    """A call's description is incomplete.

    Attributes:
        kind: kind of the missing value, `dtype` or `dim`.
        name: name of the missing value.
    """

    def __init__(self, message: str, kind: str, name: str):
        super().__init__(message)
        self.kind, self.name = kind, name


@dataclass(frozen=True)
class CallSpec:
    """Description of a call's arguments.

    Attributes:
        shapes: shapes by tensor.
        dims: extents by dim. They determine the shapes of required inputs that are not in `shapes`.
        given: optional inputs to pass, with shapes determined by `dims`.
        dtypes: dtypes by dtype variable or tensor. Variables with a single allowed dtype may be left out.
        strides: strides in elements, by tensor. Defaults to packed.
        unaligned: tensors whose address is not a multiple of 16 bytes.
        scalars: values as text, by scalar.
        innermost: position of the dim with stride 1, by tensor. Defaults to the first allowed one.
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    strides: Mapping[str, Shape] = field(default_factory=dict)
    unaligned: frozenset[str] = frozenset()
    scalars: Mapping[str, str] = field(default_factory=dict)
    innermost: Mapping[str, int] = field(default_factory=dict)


def plan_call(
    index: Index, planner: Planner, call: CallSpec, num_cus: int | None, num_xcds: int | None = None
) -> Decision:
    """Plan a call for the bundle's architecture. Raises `ArgumentError` if the call would.

    Args:
        num_cus: compute units of the device. Defaults to the number of a whole GPU, if the launch depends on it.
        num_xcds: XCDs of the device. Defaults to the number of a whole GPU.
    """
    op = planner.op
    arch = index.target.arch
    if num_cus is None and "num_cus" in _read_names(index, op):
        num_cus = usual_cus(arch)
        if num_cus is None:
            raise ArgumentError(f"{op.name}: the launch depends on the number of compute units: pass --num-cus")
    _check_names(op, call)
    scalars = {scalar.name: parse_scalar(op, scalar, call.scalars.get(scalar.name)) for scalar in op.scalars}
    dtypes = _dtypes(op, call)
    hardware = device_names(arch, num_cus or 0, num_xcds)
    shapes = {**_derived_shapes(op, call, scalars, dtypes, hardware), **call.shapes}
    layouts = {tensor.name: _layout(index, op, tensor, call, shapes, dtypes) for tensor in op.tensors}
    return planner.decide(layouts, scalars, _device(index), num_cus or 0, arch, num_xcds)


def parse_scalar(op: Op, scalar: Scalar, text: str | None) -> Value | None:
    """Parse a scalar's value. None stays None. Raises `ArgumentError`."""
    if text is None or scalar.type == "choice":
        return text
    try:
        if scalar.type in FLAG_TYPES:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return float(text) if scalar.type in FLOAT_TYPES else int(text, 0)
    except (KeyError, ValueError):
        allowed = {**dict.fromkeys(FLAG_TYPES, "true or false"), **dict.fromkeys(FLOAT_TYPES, "a number")}
        wanted = allowed.get(scalar.type, "an integer")
        raise ArgumentError(f"{op.name}: argument '{scalar.name}' is '{text}'; {wanted} is allowed") from None


def _device(index: Index) -> tuple[str, int]:
    return index.target.backend, 0


def _read_names(index: Index, op: Op) -> set[str]:
    texts = {text for _, text, _ in Scope.of(op).expressions(op)}
    variants = (variant for variant in index.variants if variant.op == op.name)
    texts |= {arg.value for variant in variants for arg in variant.kernargs if arg.is_expression}
    return {name for text in texts for name in expressions.parse(text).names}


def _check_names(op: Op, call: CallSpec) -> None:
    tensors = [tensor.name for tensor in op.tensors]
    optional = [tensor.name for tensor in op.tensors if tensor.optional]
    for what, used, known in (
        ("tensor", (*call.shapes, *call.strides, *call.unaligned), tensors),
        ("optional tensor", call.given, optional),
        ("dim", call.dims, list(Scope.of(op).dims)),
        ("dtype variable or tensor", call.dtypes, [*op.dtypes, *tensors]),
        ("scalar", call.scalars, [scalar.name for scalar in op.scalars]),
    ):
        for name in used:
            if name not in known:
                raise ArgumentError(f"{op.name} has no {what} '{name}'{expressions.nearest(name, known)}")
    for name in call.dtypes.values():
        if name not in DTYPES:
            raise ArgumentError(f"{op.name}: unknown dtype '{name}'{expressions.nearest(name, tuple(DTYPES))}")


def _dtypes(op: Op, call: CallSpec) -> dict[str, str]:
    return {variable: _dtype(op, variable, allowed, call) for variable, allowed in op.dtypes.items()}


def _dtype(op: Op, variable: str, allowed: tuple[str, ...], call: CallSpec) -> str:
    holders = (tensor.name for tensor in op.tensors if tensor.dtype == variable)
    for name in (variable, *holders):
        if name in call.dtypes:
            return call.dtypes[name]
    if len(allowed) == 1:
        return allowed[0]
    raise UnsaidError(
        f"{op.name}: the dtype of {variable} is missing; allowed: {', '.join(allowed)}", "dtype", variable
    )


def _derived_shapes(
    op: Op, call: CallSpec, scalars: Mapping[str, Any], dtypes: Mapping[str, str], hardware: Mapping[str, Any]
) -> dict[str, Shape]:
    """Compute shapes from `dims`. Raises `ArgumentError` if a dim is missing."""
    if not call.dims and Scope.of(op).dims:
        return {}
    passed = [t for t in op.tensors if t.role != "output" and (not t.optional or t.name in call.given)]
    given = {tensor.name for tensor in passed} | call.shapes.keys()
    env: dict[str, Any] = {**dtypes, **call.dims, **hardware}
    for tensor in op.tensors:
        env[expressions.query_name("given", tensor.name)] = tensor.name in given
        env[expressions.query_name("elsize", tensor.name)] = DTYPES[dtypes.get(tensor.dtype, tensor.dtype)].size
    env |= {expressions.query_name("elsize", variable): DTYPES[dtype].size for variable, dtype in dtypes.items()}
    _add_values(env, ((s.name, s.default if scalars[s.name] is None else repr(scalars[s.name])) for s in op.scalars))
    _add_values(env, ((item.name, item.value) for item in op.derived))
    return {tensor.name: _shape(op, tensor, env) for tensor in passed if tensor.name not in call.shapes}


def _add_values(env: dict[str, Any], named: Iterable[tuple[str, str]]) -> None:
    for name, text in named:
        with suppress(ExpressionError):
            env[name] = evaluate(expressions.parse(text), env)


def _shape(op: Op, tensor: Tensor, env: Mapping[str, Any]) -> Shape:
    for name in (name for dim in tensor.shape for name in expressions.parse(dim.extent).names):
        if name not in env and name in Scope.of(op).dims:
            raise UnsaidError(f"{op.name}: the extent of {name}, a dim of '{tensor.name}', is missing", "dim", name)
    try:
        shape = tuple(evaluate(expressions.parse(dim.extent), env) for dim in tensor.shape)
    except ExpressionError as error:
        raise ArgumentError(f"{op.name}: the shape of '{tensor.name}' does not follow from the dims: {error}") from None
    if not all(isinstance(extent, int) and extent >= 0 for extent in shape):
        raise ArgumentError(f"{op.name}: the shape of '{tensor.name}' would be {shown(list(shape))}")
    return shape


def _layout(
    index: Index, op: Op, tensor: Tensor, call: CallSpec, shapes: Mapping[str, Shape], dtypes: Mapping[str, str]
) -> Layout | None:
    shape = shapes.get(tensor.name)
    if shape is None:
        return None
    order = packing_order(tensor, len(shape), innermost=call.innermost.get(tensor.name))
    strides = call.strides.get(tensor.name) or packed_strides(shape, order)
    if len(strides) != len(shape):
        raise ArgumentError(f"{op.name}: '{tensor.name}' has {len(shape)} dims, but strides for {len(strides)}")
    dtype = call.dtypes.get(tensor.name, dtypes.get(tensor.dtype, tensor.dtype))
    return make_layout(_device(index), dtype, shape, strides, tensor.name not in call.unaligned)
