"""Values of a call's tensors that the contract allows, as recipes, from which references can also be computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aot.manifest.loading import Manifest
from aot.manifest.schema import InputSpec
from aot.plan.cases import PlannedScalar, PlannedTensor, Recipe
from aot_runtime.call.choosing import Decision
from aot_runtime.contract.dtypes import INDEX_DTYPES, numpy_dtype
from aot_runtime.contract.expressions import evaluator
from aot_runtime.contract.records import Op, Tensor, Value

from .random_calls import RandomCall

_LISTED = 1 << 16
"""Indices in smaller ranges are drawn without repetition."""
_MOST = 2**31 - 1
"""The largest integer drawn for tensors of 32 bits or more without a range."""


def make_recipe(manifest: Manifest, op: Op, drawn: RandomCall, name: str, rng: np.random.Generator) -> Recipe:
    """Make the recipe of a call's values. manifest: the one that declares the op."""
    decision, cases = drawn.decision, manifest.spec.ops[op.name].selftest
    there = [tensor for tensor in op.tensors if tensor.name in decision.layouts]
    inputs = [tensor for tensor in there if tensor.role != "output"]
    hints: dict[str, InputSpec] = {}
    for case in cases:
        hints |= {key: spec for key, spec in case.inputs.items() if spec.values is None and key not in hints}
    return Recipe(
        op=op.name,
        name=name,
        reference=op.reference,
        inputs=tuple(_planned(item, decision, _filled(item, decision, hints, rng)) for item in inputs),
        outputs=tuple(_planned(tensor, decision, None) for tensor in there if tensor.role != "input"),
        scalars=tuple(
            PlannedScalar(item.name, item.type, decision.names[item.name], item.name in drawn.packed.scalars)
            for item in op.scalars
        ),
        dtypes=tuple((variable, str(decision.names[variable])) for variable in op.dtypes),
        innermost=(),
        floor=max([float(case.floor) for case in cases], default=1e-6),
        seed=int(rng.integers(2**31)),
    )


def names_twice(op: Op, recipe: Recipe) -> bool:
    """Return True if an index occurs twice, in one tensor or in two with the same `range`.

    Contracts do not define the result, so references may differ from kernels.
    """
    rules = {tensor.name: tensor.range for tensor in op.tensors if tensor.range and tensor.dtype in INDEX_DTYPES}
    drawn: dict[tuple[str, ...], list[Value]] = {}
    for tensor in recipe.inputs:
        if tensor.name in rules and tensor.filled and tensor.filled.values is not None:
            drawn.setdefault(rules[tensor.name], []).extend(tensor.filled.values)
    return any(len(set(values)) < len(values) for values in drawn.values())


def _planned(tensor: Tensor, decision: Decision, filled: InputSpec | None) -> PlannedTensor:
    layout = decision.layouts[tensor.name]
    return PlannedTensor(tensor.name, layout.dtype, tuple(layout.shape), filled)


def _filled(
    tensor: Tensor, decision: Decision, hints: Mapping[str, InputSpec], rng: np.random.Generator
) -> InputSpec | None:
    """Choose the values of an input: by its declaration, or else as selftest cases fill it."""
    layout = decision.layouts[tensor.name]
    kind = numpy_dtype(layout.dtype).kind
    if tensor.offsets:
        longest = decision.names[tensor.offsets.longest] if tensor.offsets.longest else None
        extent = int(decision.names[tensor.offsets.into])
        return _listed(draw_offsets(layout.size, extent, longest, rng))
    if tensor.range:
        low, high = (evaluator(text)(decision.names) for text in tensor.range)
        low, high = _within(layout.dtype, low, max(low, high))
        if layout.dtype in INDEX_DTYPES and high - low < _LISTED:
            return _listed(draw_distinct(int(low), int(high), layout.size, rng))
        return _between([low, high])
    if tensor.name in hints:
        return hints[tensor.name]
    if kind == "b":
        return _between([0, 1])
    return _between(_within(layout.dtype, -_MOST, _MOST)) if kind in "iu" else None


def _listed(values: list[Value]) -> InputSpec:
    return InputSpec(std=None, range=None, values=values)


def _between(limits: list[int | float]) -> InputSpec:
    return InputSpec(std=None, range=limits, values=None)


def draw_distinct(low: int, high: int, count: int, rng: np.random.Generator) -> list[Value]:
    """Draw indices, each once as far as possible: with an index twice, a kernel could write one place twice. Excess
    indices are -1 (nowhere) if that is allowed."""
    drawn = rng.permutation(np.arange(low, high + 1))[:count]
    more = count - len(drawn)
    rest = np.full(more, -1) if low == -1 else rng.integers(low, high, more, endpoint=True)
    return [int(value) for value in rng.permutation(np.concatenate([drawn, rest]))]


def _within(dtype: str, low: Any, high: Any) -> list[int | float]:
    if numpy_dtype(dtype).kind not in "iu":
        return [low, high]
    limits = np.iinfo(numpy_dtype(dtype))
    return [max(int(low), int(limits.min)), min(int(high), int(limits.max), 2**63 - 1)]


def draw_offsets(count: int, extent: int, longest: int | None, rng: np.random.Generator) -> list[Value]:
    """Draw the offsets of sequences: from 0 to `extent`, or as near to it as `longest` allows."""
    if count == 0:
        return []
    most = extent if longest is None else min(extent, int(longest) * (count - 1))
    lengths = np.zeros(count - 1, np.int64)
    room = np.full(count - 1, most if longest is None else int(longest))
    left = most if count > 1 else 0
    for i in rng.permutation(count - 1):  # the last one takes what is left
        fair = -(-left // max(1, count - 1))
        lengths[i] = min(room[i], left, int(rng.integers(0, 2 * fair + 1)))
        left -= int(lengths[i])
    for i in range(count - 1):
        more = min(left, int(room[i] - lengths[i]))
        lengths[i] += more
        left -= more
    return [0, *(int(value) for value in np.cumsum(lengths))]
