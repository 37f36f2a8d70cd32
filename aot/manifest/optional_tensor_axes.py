"""Axes of an op: those in its manifest, and one for each optional tensor, which tells kernels whether a call has it."""

from __future__ import annotations

from aot_runtime.contract.expressions import parse
from aot_runtime.errors import ExpressionError

from .schema import AxisSpec, OpSpec


def op_axes(op: OpSpec) -> dict[str, AxisSpec]:
    """The op's `constexprs`, and an axis `HAS_<TENSOR>` for each tensor that may be absent.

    There is none for a tensor that is `nullable`, whose presence a `constexpr` tells already, or if the name is taken.
    """
    axes = dict(op.constexprs)
    told = {_canonical(str(axis.pick)) for axis in axes.values()}
    taken = {*op.tensors, *op.scalars, *op.dtypes, *op.constexprs, *op.derived, *op.workspace, *op.dims}
    for name, tensor in op.tensors.items():
        condition, axis = presence(name, tensor.optional, str(tensor.when)), f"HAS_{name.upper()}"
        if condition and not tensor.nullable and condition not in told and axis not in taken:
            axes[axis] = AxisSpec(values=[False, True], pick=condition)
            told.add(condition)
    return axes


def presence(name: str, optional: bool, when: str) -> str:
    """The condition under which a call has a tensor, in canonical spelling; empty if it always has."""
    condition = f"given({name})" if optional else when
    return _canonical(condition) if condition else ""


def _canonical(text: str) -> str:
    try:
        return parse(text).text
    except ExpressionError:
        return text  # which its reader reports
