"""Apply changes to a call's arguments as its caller would, to try out advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import evaluator, query_name
from aot_runtime.contract.layout import (
    Layout,
    Shape,
    aligned_elements,
    divisors,
    make_layout,
    packed_strides,
    packing_order,
)
from aot_runtime.contract.records import Op, Tensor


class Change(msgspec.Struct, frozen=True):
    """Another value of an argument.

    Attributes:
        subject, value: the argument and its new value, in words.
        names: new values of the call's names.
        aligns: True if every address and stride becomes a multiple of 16 bytes.
        innermost: tensor → position of the dim that gets stride 1.
    """

    subject: str
    value: str
    names: Mapping[str, Any]
    aligns: bool = False
    innermost: Mapping[str, int] = {}


class Arguments(msgspec.Struct, frozen=True):
    """A call's arguments and the values of names computed from them."""

    layouts: Mapping[str, Layout | None]
    scalars: Mapping[str, Any]
    names: Mapping[str, Any]

    def changed(self, op: Op, changes: Iterable[Change], device: tuple[str, int]) -> Arguments:
        """Apply changes to a call.

        Tensors with the same shape, dtype and order of dims stay as they are; others become packed. Changed outputs
        are left to be allocated.

        Raises:
            ExpressionError, ArithmeticError: the new shapes cannot be computed.
        """
        made = [*changes]
        aligns = any(change.aligns for change in made)
        innermost = {name: dim for change in made for name, dim in change.innermost.items()}
        new = {name: value for change in made for name, value in change.names.items()}
        scalars = {scalar.name: new[scalar.name] for scalar in op.scalars if scalar.name in new}
        names = {**self.names, **new}
        if aligns:
            for dim, number in divisors(op, names).items():
                names[dim] += -names[dim] % number
        for value in op.derived:
            names[value.name] = evaluator(value.value)(names)
        layouts = {}
        for tensor in op.tensors:
            was = self.layouts.get(tensor.name)
            if new.get(query_name("given", tensor.name), was is not None):
                layouts[tensor.name] = _layout(tensor, was, names, aligns, innermost.get(tensor.name), device)
        return Arguments(layouts, {**self.scalars, **scalars}, names)


def _layout(
    tensor: Tensor, was: Layout | None, names: Mapping[str, Any], aligns: bool, innermost: int | None,
    device: tuple[str, int],
) -> Layout | None:  # fmt: skip
    shape = tuple(_extent(tensor, dim, was, names) for dim in range(len(tensor.shape)))
    if tensor.pointer:
        shape = () if was is None else was.shape
    dtype = names.get(tensor.dtype, tensor.dtype)
    stays = was is not None and (was.shape, was.dtype) == (shape, dtype) and innermost is None
    if was is not None and stays and not aligns:
        return was
    if tensor.role == "output":
        return None
    order = packing_order(tensor, len(shape), () if was is None else was.strides, innermost)
    unit = aligned_elements(DTYPES[dtype].size)
    strides = _aligned_strides(tensor, shape, order, unit) if aligns else packed_strides(shape, order)
    return make_layout(device, dtype, shape, strides, aligns or was is None or was.aligned)


def _extent(tensor: Tensor, position: int, was: Layout | None, names: Mapping[str, Any]) -> int:
    dim = tensor.shape[position]
    if dim.broadcast and was is not None and was.shape[position] == 1:
        return 1
    return evaluator(dim.extent)(names)


def _aligned_strides(tensor: Tensor, shape: Shape, order: Shape | None, unit: int) -> Shape:
    """Return strides that are multiples of `unit`, except along the innermost dim and dims that must be contiguous."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order if order is not None else range(len(shape))):
        if step != 1 and dim not in tensor.contiguous:
            step += -step % unit
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)
