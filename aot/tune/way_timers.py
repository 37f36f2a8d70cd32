"""Times of all ways to make a call, on a device."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from aot_bundle.callspec import CallSpec, parse_scalar, plan_call
from aot_bundle.event_timing import device_rounds
from aot_runtime.bundle.reading import read_index
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import Planner
from aot_runtime.contract.layout import ALIGNMENT, Layout, make_layout
from aot_runtime.device.array import DeviceArray
from aot_runtime.device.memory import Allocation
from aot_runtime.device.registry import get_device
from aot_runtime.errors import ArgumentError, DeviceMemoryError
from aot_runtime.opening import Bundle

from .ways import run_of, ways_of

Times = Mapping[str, float]
"""Text of a way → seconds."""
CACHED = 256 << 20
"""Bytes that the calls of a graph go through: more than an L2 cache holds."""
MOST_COPIES = 16
POOL = 2 << 30
"""Bytes of random numbers of which inputs are parts; outputs are parts of as many other bytes."""
BLOCK = 1 << 24


class TooLargeError(ArgumentError):
    """A call's tensors do not fit the memory that is set aside for them."""


class WayTimer(Protocol):
    """Times all ways to make calls.

    Attributes:
        by: name under which results are kept.
        told: the timer in words.
        num_cus, num_xcds: of the device that calls are planned for; None: the architecture's usual one.
    """

    by: str
    told: str
    num_cus: int | None
    num_xcds: int | None

    def times(self, calls: Sequence[CallSpec]) -> Iterator[Times]:
        """Yield the times of each call's ways; empty if it has fewer than two, or its tensors are too large."""


class MeasuredWays:
    """Times on a device: graphs of several calls, with tensors of their own, take turns. Tensors are random floats."""

    def __init__(self, folder: Path, op: str, name: str, rounds: int):
        index = read_index(folder)
        self.device, self.rounds, self.op = get_device(name, index.target.arch), rounds, op
        found = self.device.properties
        if found.arch != index.target.arch:
            arch = index.target.arch
            raise ArgumentError(f"device '{name}' is {found.name} ({found.arch}), the bundle is for {arch}")
        self.bundle = Bundle(folder, index, self.device)
        self.by = found.name
        self.num_cus: int | None = found.num_cus
        self.num_xcds: int | None = found.num_xcds
        self.told = f"measured on {found.name}, driver {found.driver_version}"
        self._inputs, self._outputs = (self.device.memory.allocate(POOL, 0) for _ in range(2))
        block = np.random.default_rng(0).standard_normal(BLOCK // 2, np.float32).astype(np.float16)
        for start in range(0, POOL, BLOCK):
            self.device.write(self._inputs.address + start, block, 0)

    def times(self, calls: Sequence[CallSpec]) -> Iterator[Times]:
        for call in calls:
            try:
                yield self._times(call)
            except (DeviceMemoryError, TooLargeError):
                yield {}

    def _times(self, call: CallSpec) -> Times:
        planner: Planner = self.bundle[self.op].planner  # type: ignore[attr-defined]
        decision = plan_call(self.bundle.index, planner, call, self.num_cus, self.num_xcds)
        copies = self._copies(planner, decision)
        texts = {s.name: call.scalars.get(s.name) for s in planner.op.scalars}
        scalars = {s.name: parse_scalar(planner.op, s, texts[s.name]) for s in planner.op.scalars if texts[s.name]}
        graphs = {
            way.text: self._graph(run_of(self.bundle, planner, way.decision), copies, scalars)
            for way in ways_of(planner, decision)
        }
        if len(graphs) < 2:
            return {}
        taken = device_rounds(self.device, graphs, self.rounds)
        return {text: statistics.median(seconds) / len(copies) for text, seconds in taken.items()}

    def _copies(self, planner: Planner, decision: Decision) -> list[dict[str, DeviceArray]]:
        """Return the tensors of several calls."""
        written = {tensor.name for tensor in planner.op.tensors if tensor.role != "input"}
        pools = {name: self._outputs if name in written else self._inputs for name in decision.layouts}
        sizes = {name: _span(layout) for name, layout in decision.layouts.items()}
        count = max(1, min(MOST_COPIES, CACHED // max(1, sum(sizes.values()))))
        used = {id(self._inputs): 0, id(self._outputs): 0}
        copies: list[dict[str, DeviceArray]] = [{} for _ in range(count)]
        for copy in copies:
            for name, layout in decision.layouts.items():
                pool = pools[name]
                copy[name] = self._array(layout, pool, used[id(pool)])
                used[id(pool)] += sizes[name]
        if max(used.values()) > POOL:
            raise TooLargeError(f"{self.op}: the tensors of a call have more than {POOL >> 30} GiB")
        return copies

    def _array(self, layout: Layout, pool: Allocation, start: int) -> DeviceArray:
        made = make_layout(self.device.key, layout.dtype, layout.shape, layout.strides, layout.aligned)
        shift = 0 if layout.aligned else layout.itemsize
        return DeviceArray(self.device, pool.address + start + shift - layout.low * layout.itemsize, made, pool)

    def _graph(
        self, run: Callable[..., Any], copies: Sequence[dict[str, DeviceArray]], scalars: Mapping[str, Any]
    ) -> Callable[[], object]:
        stream = self.device.stream()
        for arrays in copies:  # loads code and makes workspaces
            run(**arrays, **scalars, stream=stream)
        stream.synchronize()
        with self.device.capture(stream) as graph:
            for arrays in copies:
                run(**arrays, **scalars, stream=stream)
        return partial(graph.launch, None)


def _span(layout: Layout) -> int:
    """Return the bytes that a tensor takes, and some for its start."""
    nbytes = (layout.high - layout.low) * layout.itemsize
    return (-(-nbytes // ALIGNMENT) + 1) * ALIGNMENT
