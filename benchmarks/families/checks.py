"""Comparison of a part of a call's result with its op's reference in float64."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np

from aot_runtime.call.choosing import Decision
from aot_runtime.contract.expressions import evaluator, parse
from aot_runtime.contract.records import Op, Tensor

from .family import Call, Family, Part

SAME_DTYPE = "_same_dtype"
ToNumpy = Callable[[Any, str], np.ndarray]
"""Copies a tensor of a dtype to the host."""


def wrong(family: Family, op: Op, decision: Decision, call: Call, tensors: Mapping[str, Any], to_numpy: ToNumpy) -> str:
    """Compare a part of a result with float64. Return the fault in words, or an empty string.

    The largest error is at most twice that of the reference in the op's dtypes, and a few units in the last place of
    the largest element. Integers must be equal.

    Args:
        tensors: tensors of the call, after it, that can be sliced.
    """
    part = family.part(call, float(np.random.default_rng(len(str(call))).random()))
    arrays = dict(part.values)
    for tensor in op.tensors:
        if tensor.name in tensors and tensor.name not in arrays:
            some = cut(tensor, tensors[tensor.name], decision.names, part)
            arrays[tensor.name] = to_numpy(some, decision.layouts[tensor.name].dtype)
    ours = arrays[family.output]
    inputs = {tensor.name: arrays[tensor.name] for tensor in op.tensors
              if tensor.role != "output" and tensor.name in arrays}  # fmt: skip
    exact, honest = references(op, inputs, decision.names)
    if ours.dtype.kind == "i":
        return "" if np.array_equal(ours, honest) else f"{np.count_nonzero(ours != honest)} integers differ"
    floor = 4 * float(ml_dtypes.finfo(ours.dtype).eps) * float(np.abs(exact).max(initial=0))
    error, allowed = (float(np.abs(x.astype(np.float64) - exact).max(initial=0)) for x in (ours, honest))
    return "" if error <= 2 * allowed + floor else f"an error of {error:.2e}; an honest sum has {allowed:.2e}"


def cut(tensor: Tensor, array: Any, names: Mapping[str, Any], part: Part) -> Any:
    """Cut a tensor along the dims whose extents depend on those of the part."""
    slices: list[slice] = []
    lists: dict[int, list[int]] = {}
    for axis, dim in enumerate(tensor.shape):
        name = next((name for name in parse(dim.extent).names if name in part.dims), None)
        if name is None or (dim.broadcast and array.shape[axis] == 1):
            slices.append(slice(None))
            continue
        indices, value = part.dims[name], evaluator(dim.extent)
        if isinstance(indices, range):
            slices.append(slice(*(int(value({**names, name: end})) for end in (indices.start, indices.stop))))
        else:
            slices.append(slice(None))
            lists[axis] = list(indices)
    found = array[tuple(slices)]
    for axis, indices in lists.items():
        found = found[(slice(None),) * axis + (indices,)]
    return found


def references(op: Op, inputs: Mapping[str, np.ndarray], names: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact result, and the one that rounds as kernels do."""
    file, _, function = op.reference.rpartition(":")
    module = import_module(file.removesuffix(".py").replace("/", "."))
    with np.errstate(all="ignore"):
        exact, honest = (_call(getattr(module, name), op, inputs, names) for name in (function, function + SAME_DTYPE))
    return exact.astype(np.float64), honest


def _call(function: Callable[..., Any], op: Op, inputs: Mapping[str, np.ndarray], names: Mapping[str, Any]) -> Any:
    parameters = inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    scalars = {each.name: names[each.name] for each in op.scalars if takes_all or each.name in parameters}
    taken = {name: array for name, array in inputs.items() if takes_all or name in parameters}
    return function(**taken, **scalars)
