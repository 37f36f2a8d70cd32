"""The axes of an op: its constexprs, and a boolean axis for the presence of each optional tensor."""

from __future__ import annotations

from aot_runtime.contract.expressions import parse
from aot_runtime.errors import ExpressionError

from .schema import AxisSpec, OpSpec


def op_axes(op: OpSpec) -> dict[str, AxisSpec]:
    """Return the op's `constexprs`, and an axis `HAS_<TENSOR>` for each tensor that may be absent.

    A tensor gets no axis if it is `nullable`, if a `constexpr` has its presence already, or if the name is taken.
    """
    axes = dict(op.constexprs)
    told = {_canonical(str(axis.pick)) for axis in axes.values()}
    numbers = {*op.derived, *op.alternatives}
    taken = {*op.tensors, *op.scalars, *op.dtypes, *op.constexprs, *numbers, *op.workspace, *op.dims}
    for name, tensor in op.tensors.items():
        condition, axis = presence(name, tensor.optional, str(tensor.when)), f"HAS_{name.upper()}"
        if condition and not tensor.nullable and condition not in told and axis not in taken:
            axes[axis] = AxisSpec(values=[False, True], pick=condition)
            told.add(condition)
    return axes


def presence(name: str, optional: bool, when: str) -> str:
    """Return the condition under which a call has a tensor, in canonical spelling; empty if it always has."""
    condition = f"given({name})" if optional else when
    return _canonical(condition) if condition else ""


def _canonical(text: str) -> str:
    try:
        return parse(text).text
    except ExpressionError:
        return text  # which its reader reports
