"""Random calls that an op's contract allows.

They are small, with extents that no block divides, strides with gaps, optional tensors present and absent, and scalars
at their defaults, limits and choices.

A call is drawn for a point of the op's axes, name by name. A value that contradicts the contract, or leads to another
point, is dropped at once.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import Planner
from aot_runtime.contract.arch import device_names
from aot_runtime.contract.dtypes import DTYPES, FLAG_TYPES, SCALAR_TYPES
from aot_runtime.contract.expressions import parse
from aot_runtime.contract.layout import Shape, aligned_elements, packed_strides, packing_order
from aot_runtime.contract.names import Scope
from aot_runtime.contract.records import Index, Op, Scalar, Tensor
from aot_runtime.device.device import Device
from aot_runtime.errors import ArgumentError

from .constraints import Constraints, Point

TRIES = 120
"""Attempts to draw a call for a point."""
FAR_TRIES = 24
"""The number of these attempts that use an extent far beyond the others."""
MAX_ELEMENTS, MAX_WORKGROUPS, MAX_WORKSPACE = 1 << 16, 128, 8 << 20
"""Limits of a call: larger ones find no more faults, and take long."""
GRID_OF_DEVICE = 1024
"""Workgroups allowed for the smallest calls: a kernel's grid may be as large as the device for any call."""
_SMALL = (1, 2, 3, 5, 7, 8, 13, 16, 17, 19, 24, 31, 32, 33, 48, 67)
_NEAR = 130
"""Extents beyond this are used only if no smaller one will do."""
_FLOATS = (1.0, 0.5, 2.0, 0.125, -1.5)
_INTEGERS = (0, 1, 2, 3, 7, 16, -1)


@dataclass(frozen=True)
class RandomCall:
    """A call with its tensors packed, and the same call with other strides. decision: the plan of the packed call."""

    packed: CallSpec
    strided: CallSpec
    decision: Decision


@dataclass(frozen=True)
class PlanningContext:
    """The variants and the device that calls are planned for."""

    index: Index
    planner: Planner
    device: Device

    def plan(self, call: CallSpec) -> Decision:
        """Plan a call. Raises `ArgumentError`."""
        properties = self.device.properties
        return plan_call(self.index, self.planner, call, properties.num_cus, properties.num_xcds)


class CallSampler:
    """Draws calls of one point of an op.

    Args:
        number: the call's number. Two of three calls have a dim beyond a block or another constant of the op: each dim
            and
            each such constant in turn.

    Attributes:
        refusal: why the latest attempt failed.
    """

    def __init__(self, context: PlanningContext, op: Op, point: Point, number: int, rng: np.random.Generator):
        self.context, self.op, self.point, self.rng = context, op, point, rng
        self.constraints = Constraints(op, point)
        self.dims = Scope.of(op).dims
        properties = context.device.properties
        self._hardware = device_names(properties.arch, properties.num_cus, properties.num_xcds)
        self._limits = {limit.name: (limit.min, limit.max) for limit in op.dims}
        self._sizes = sorted(_sizes(op))
        self._far = _far_extents(op, list(self.dims)) if number % 3 else []
        self._turn = number - number // 3 - 1
        self._boldness = 1.0  # from 1 to 0 as calls turn out to be too large, or to be none
        self.refusal = "no extents were found that meet `require` and the axes"

    def draw(self) -> RandomCall | None:
        """Draw a call; None if `TRIES` attempts find none."""
        for attempt in range(TRIES):
            self._boldness = max(0.0, 1 - attempt / 20)
            reaches = bool(self._far) and attempt < FAR_TRIES
            self._wanted = self._far[(self._turn + attempt) % len(self._far)] if reaches else None
            call = self._draw()
            if call is None:
                continue
            try:
                found = self._laid_out(call)
            except ArgumentError as error:
                self.refusal = str(error)
                continue
            if found is not None:
                return found
        return None

    # Names

    def _draw(self) -> CallSpec | None:
        op, rng = self.op, self.rng
        inputs = [tensor for tensor in op.tensors if tensor.role != "output"]
        optional = [tensor.name for tensor in inputs if tensor.optional]
        given = frozenset(name for name in optional if rng.random() < 0.5)
        innermost = {t.name: int(rng.choice(t.innermost)) for t in inputs if t.innermost}
        names = {**self._hardware, **self.constraints.answers(given, innermost)}
        if not self.constraints.allow(names):
            return None
        passed: dict[str, Any] = {}
        for scalar in op.scalars:
            for value in self._values(scalar):
                chosen = {} if value is None else {scalar.name: value}
                if self.constraints.allow({**names, **chosen}):
                    passed |= chosen
                    names |= chosen
                    break
            else:
                return None
        wanted = [name for name, at in self.dims.items() if not at.optional or at.tensor in given]
        extents = self._extents(names, wanted)
        if extents is None:
            return None
        return CallSpec(
            dims=extents,
            given=given,
            dtypes={name: str(self.point[name]) for name in op.dtypes},
            scalars={name: _text(value) for name, value in passed.items()},
            innermost=innermost,
        )

    def _values(self, scalar: Scalar) -> Iterator[Any]:
        rng = self.rng
        if scalar.default and rng.random() < 0.5:
            yield None
        found = _values_of(scalar, [size for size in self._sizes if size <= _NEAR])
        yield from (found[i] for i in rng.permutation(len(found)))
        if scalar.default:
            yield None

    def _extents(self, names: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, int] | None:
        """Draw an extent for each dim, different ones if possible; None if the conditions contradict each other."""
        known, chosen = dict(names), dict.fromkeys((name for name in self.dims if name not in wanted), 0)
        known |= chosen
        order = [wanted[i] for i in self.rng.permutation(len(wanted))]
        far, extent = self._wanted or ("", 0)
        if far and (far not in wanted or not self.constraints.allow({**known, far: extent})):
            return None
        for name in sorted(order, key=lambda name: name != far):
            candidates = [extent] if name == far else self._candidates(name)
            fresh = [value for value in candidates if value not in chosen.values()]
            for value in (*fresh, *candidates):
                if self.constraints.allow({**known, name: value}):
                    known[name] = chosen[name] = value
                    break
            else:
                return None
        return {name: chosen[name] for name in wanted}

    def _candidates(self, name: str) -> list[int]:
        """Return the extents of a dim in the order in which they are tried, mostly small ones first."""
        low, high = self._limits.get(name, (1, 2**31 - 1))
        rng = self.rng
        few = (0, *_SMALL) if rng.random() < 0.05 else _SMALL
        boldness = 0.0 if self._wanted else self._boldness
        small = [value for value in few if low <= value <= high and value <= 3 + 64 * boldness]
        sizes = [value for value in self._sizes if low <= value <= high]
        near, far = ([v for v in sizes if (v <= _NEAR) == is_near] for is_near in (True, False))
        groups = [near, small, far] if rng.random() < 0.4 * boldness else [small, near, far]
        shuffled = [group[i] for group in groups for i in rng.permutation(len(group))]
        return list(dict.fromkeys([*shuffled, *([low] if low > 0 else [])]))

    # Layouts

    def _laid_out(self, call: CallSpec) -> RandomCall | None:
        """Lay out a call's tensors packed and strided; both get the point's variants. Raises `ArgumentError`."""
        shapes = {name: layout.shape for name, layout in self.context.plan(call).layouts.items()}
        shapes = self._broadcast(shapes)
        if sum(map(math.prod, shapes.values())) > (MAX_ELEMENTS if self._boldness == 0 else MAX_ELEMENTS // 4):
            self.refusal = "its calls are too large"
            return None
        there = [tensor for tensor in self.op.tensors if tensor.name in shapes]
        unaligned = frozenset() if self.point["aligned"] else self._unaligned(there, shapes)
        strides = {tensor.name: self._strides(tensor, shapes[tensor.name], call, gaps=False) for tensor in there}
        packed = CallSpec(shapes, {}, frozenset(), call.dtypes, strides, unaligned, call.scalars)
        decision = self.context.plan(packed)
        if decision.aligned != self.point["aligned"] or any(
            decision.names[name] != value for name, value in self.point.items() if name != "aligned"
        ):
            self.refusal = "its calls get other variants"
            return None
        if not all(_reach_end(tensor, decision) for tensor in there if tensor.offsets):
            self.refusal = "its offsets cannot reach the end of what they divide"
            return None
        most = GRID_OF_DEVICE if self._boldness == 0 else MAX_WORKGROUPS
        if any(math.prod(item.grid) > most for item in decision.launches) or (
            sum(size for _, size, _ in decision.workspaces) > MAX_WORKSPACE
        ):
            self.refusal = "its calls are too large"
            return None
        strides = {tensor.name: self._strides(tensor, shapes[tensor.name], call, gaps=True) for tensor in there}
        strided = CallSpec(shapes, {}, frozenset(), call.dtypes, strides, unaligned, call.scalars)
        return RandomCall(packed, strided, decision)

    def _broadcast(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        found = dict(shapes)
        for tensor in self.op.tensors:
            if tensor.name in shapes and tensor.role != "output":
                found[tensor.name] = tuple(
                    1 if dim.broadcast and self.rng.random() < 0.3 else extent
                    for dim, extent in zip(tensor.shape, shapes[tensor.name], strict=True)
                )
        return found

    def _unaligned(self, there: Sequence[Tensor], shapes: Mapping[str, Shape]) -> frozenset[str]:
        names = [tensor.name for tensor in there if tensor.align and 0 not in shapes[tensor.name]]
        return frozenset({names[int(self.rng.integers(len(names)))]} if names else ())

    def _strides(self, tensor: Tensor, shape: Shape, call: CallSpec, gaps: bool) -> Shape:
        """Draw strides that the point allows: packed as far as possible, or with gaps and dims in another order."""
        if tensor.zero:  # which is packed
            return packed_strides(shape, packing_order(tensor, len(shape), innermost=call.innermost.get(tensor.name)))
        rng, last = self.rng, tensor.contiguous
        if tensor.innermost:
            last = (call.innermost.get(tensor.name, tensor.innermost[0]),)
        outer = [dim for dim in range(len(shape)) if dim not in last]
        order = [outer[i] for i in rng.permutation(len(outer))] if gaps and rng.random() < 0.7 else outer
        itemsize = DTYPES[str(self.point.get(tensor.dtype, tensor.dtype))].size
        unit = aligned_elements(itemsize) if self.point["aligned"] and tensor.align_strides else 1
        strides = [0] * len(shape)
        step = 1
        for dim in (*reversed(last), *reversed(order)):
            if dim in outer:
                step += int(rng.integers(1, 4)) * unit if gaps else 0
                step += -step % unit
            strides[dim] = step
            step *= max(1, shape[dim])
        return tuple(strides)


def _reach_end(tensor: Tensor, decision: Decision) -> bool:
    """Tell if sequences of a tensor of offsets can be long enough to reach the end."""
    assert tensor.offsets is not None
    sequences = decision.layouts[tensor.name].size - 1
    longest = decision.names[tensor.offsets.longest] if tensor.offsets.longest else math.inf
    return decision.names[tensor.offsets.into] <= (longest * sequences if sequences > 0 else 0)


def _constants(texts: Iterable[str]) -> set[int]:
    nodes = (node for text in texts for node in ast.walk(parse(text).tree))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int}


def _blocks(op: Op) -> set[int]:
    """Return numbers that matter to an op: block sizes, values of axes, and constants in its expressions."""
    found = {value for axis in op.axes for value in axis.values if type(value) is int}
    configs = (config for launch in op.launches for config in launch.configs)
    found |= {value for config in configs for value in config.values.values() if type(value) is int}
    found |= _constants(text for _, text, _ in Scope.of(op).expressions(op))
    return {value for value in found if 1 < value <= 1 << 15}


def _sizes(op: Op) -> set[int]:
    """Return numbers that matter to an op, their neighbours, and numbers that may have to divide extents."""
    blocks, required = _blocks(op), _constants(op.require)
    return (
        {near for value in blocks for near in (value - 1, value, value + 1, 2 * value)}
        | {value + value // 2 for value in blocks if value <= 256}
        | {3 * value for value in blocks & required}
    )


def _far_extents(op: Op, dims: Sequence[str]) -> list[tuple[str, int]]:
    """Return (dim, extent) of extents just above, just below and twice each large block. The last dims come first: rows
    lie along them."""
    blocks = sorted(value for value in _blocks(op) if value > _NEAR)
    extents = [of(value) for of in (lambda v: v + 1, lambda v: v - 1, lambda v: 2 * v) for value in blocks]
    return [(dim, extent) for extent in extents for dim in reversed(dims)]


def _values_of(scalar: Scalar, sizes: Sequence[int]) -> list[Any]:
    if scalar.type == "choice":
        return list(scalar.choices)
    if scalar.type in FLAG_TYPES:
        return [False, True]
    kind = SCALAR_TYPES[scalar.type]
    low = -math.inf if scalar.min is None else scalar.min
    high = math.inf if scalar.max is None else scalar.max
    if kind.low is None or kind.high is None:
        ends = [float(value) for value in (low, high) if abs(value) <= 1024]
        return sorted({value for value in (*_FLOATS, *ends) if low <= value <= high} - {0.0}) or ends
    low, high = max(low, kind.low), min(high, kind.high)
    ends = [int(value) for value in (low, high) if abs(value) <= 1024]
    return sorted({value for value in (*_INTEGERS, *ends, *sizes) if low <= value <= high})


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
