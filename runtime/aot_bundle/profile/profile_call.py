"""Profile a call of an op on the emulator: execution counts of its kernels, and lower bounds of their time.

The call is given as a `CallSpec`, as for `explain`. Tensors are synthetic unless given: floating-point tensors are
N(0, 1), all others 0. Counts rarely depend on values, but those of length and index tensors matter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from aot_bundle.callspec import CallSpec, parse_scalar, plan_call
from aot_emulator.isa.archs import ARCHS, Arch
from aot_emulator.machine.launch_options import Options
from aot_emulator.profile.counters import Statistics
from aot_emulator.profile.peaks import Bounds, lower_bounds
from aot_emulator.state.arrays import Array
from aot_runtime.call.choosing import Decision, LaunchDecision
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.contract.dtypes import numpy_dtype
from aot_runtime.contract.expressions import nearest
from aot_runtime.contract.layout import ALIGNMENT, Layout, make_layout
from aot_runtime.contract.records import Op
from aot_runtime.device.array import DeviceArray
from aot_runtime.device.device import Device
from aot_runtime.device.drivers import device_for_arch
from aot_runtime.device.drivers.protocol import Driver
from aot_runtime.errors import ArgumentError
from aot_runtime.opening import Bundle
from aot_runtime.regular_files import open_regular
from aot_runtime.trust.reader import index_reader

_DRAWN = 1 << 20
"""Period of the random values in a tensor."""
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
Progress = Callable[[str, int, int], None]
"""Callback with a launch's kernel, and its numbers of completed and total workgroups."""


@dataclass(frozen=True)
class TensorTraffic:
    """Memory traffic of a launch to a tensor.

    Attributes:
        nbytes: size of the elements, excluding gaps.
        read, written: distinct bytes of device memory accessed, including gaps.
    """

    name: str
    layout: Layout
    nbytes: int
    read: int
    written: int


@dataclass(frozen=True)
class LaunchProfile:
    """Profile of one launch. other: bytes read and written outside of tensors (workspaces and constants)."""

    decision: LaunchDecision
    kernel: str
    config: str
    settings: Mapping[str, Any]
    statistics: Statistics
    bounds: Bounds
    tensors: tuple[TensorTraffic, ...]
    other: tuple[int, int]


@dataclass(frozen=True)
class Profile:
    """Profile of a call, with its launches in order."""

    bundle: str
    id: str
    op: str
    arch: Arch
    decision: Decision = field(repr=False)
    launches: tuple[LaunchProfile, ...]


class RecordingDriver(Driver, Protocol):
    """A driver that can record statistics of launches."""

    def recording(self, options: Options) -> AbstractContextManager[list[Statistics]]:
        """Run launches in the `with` block with `options`, and yield the list that collects their statistics."""


def profile_call(
    driver: RecordingDriver,
    folder: Path,
    op_name: str,
    call: CallSpec,
    content: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Run a call of a bundle's op on the emulator and profile it.

    Args:
        driver: the emulator's driver.
        content: contents of tensors, by name: a number to fill it with, `LOW..HIGH` for uniform random integers in
            this range (inclusive), or the path of a .npy file of its shape.

    Raises:
        ArgumentError: the op does not exist, or its contract rejects the call.
        BundleError: the bundle is damaged, or rejected by the trust policy of the environment.
        DeviceError: the bundle's architecture is not emulated.
        EmulationError: a kernel fails.
    """
    return profile_on(driver, open_for(driver, folder, op_name), op_name, call, content, progress)


def open_for(driver: Driver, folder: Path, op_name: str) -> Bundle:
    """Open a bundle on the emulated device of its architecture. Raises like `profile_call`."""
    index = index_reader()(folder)
    device = Device(driver, device_for_arch(driver, index.target.arch))
    op_planner(index, op_name)  # raises for an unknown name
    return Bundle(folder, index, device)


def profile_on(
    driver: RecordingDriver,
    bundle: Bundle,
    op_name: str,
    call: CallSpec,
    content: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Profile a call like `profile_call`, for a bundle that is open on `driver`. Preserves the driver's options."""
    made = make_call(bundle, op_name, call, content or {})
    shown = None if progress is None else _Progress(progress, made.launched)
    with driver.recording(Options(profile=True, progress=shown)) as record:
        made.run()
    index, arch = bundle.index, ARCHS[bundle.index.target.arch]
    launches = (
        _launch(made.planner, launch, found, arch, made.arrays)
        for launch, found in zip(made.launched, record, strict=True)
    )
    return Profile(index.name, index.id, op_name, arch, made.decision, tuple(launches))


@dataclass(frozen=True)
class MadeCall:
    """A call with its tensors in device memory."""

    bundle: Bundle
    planner: Planner
    decision: Decision
    arrays: Mapping[str, DeviceArray]
    scalars: Mapping[str, Any]

    @property
    def launched(self) -> list[LaunchDecision]:
        """The launches with a non-empty grid."""
        return [launch for launch in self.decision.launches if 0 not in launch.grid]

    def run(self) -> None:
        self.bundle[self.planner.op.name](**self.arrays, **self.scalars)


def make_call(bundle: Bundle, op_name: str, call: CallSpec, content: Mapping[str, str]) -> MadeCall:
    """Plan a call and allocate its tensors. Raises `ArgumentError`."""
    index, device = bundle.index, bundle.device
    planner: Planner = bundle[op_name].planner  # type: ignore[attr-defined]
    decision = plan_call(index, planner, call, device.properties.num_cus, device.properties.num_xcds)
    arrays = _arrays(device, planner.op, decision, content)
    scalars = {
        scalar.name: parse_scalar(planner.op, scalar, call.scalars.get(scalar.name)) for scalar in planner.op.scalars
    }
    return MadeCall(bundle, planner, decision, arrays, {name: v for name, v in scalars.items() if v is not None})


class _Progress:
    """Adapter that adds the kernel of each launch to its progress reports."""

    def __init__(self, tell: Progress, launches: list[LaunchDecision]):
        self._tell, self._launches = tell, iter(launches)
        self._kernel: str | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._kernel is None:
            self._kernel = next(self._launches).variant.symbol
        self._tell(self._kernel, done, total)
        if done == total:
            self._kernel = None


def _launch(
    planner: Planner, launch: LaunchDecision, statistics: Statistics, arch: Arch, arrays: Mapping[str, DeviceArray]
) -> LaunchProfile:
    declared = planner.op.launches[launch.index]
    config = declared.configs[launch.variant.config]
    assert statistics.traffic is not None
    tensors = tuple(_tensor_traffic(name, array, statistics) for name, array in arrays.items())
    read, written = statistics.traffic.reached()
    return LaunchProfile(
        decision=launch,
        kernel=declared.kernel,
        config=config.name or str(launch.variant.config),
        settings={**config.values, **config.options},
        statistics=statistics,
        bounds=lower_bounds(arch, statistics.work),
        tensors=tensors,
        other=(read - sum(tensor.read for tensor in tensors), written - sum(tensor.written for tensor in tensors)),
    )


def _tensor_traffic(name: str, array: DeviceArray, statistics: Statistics) -> TensorTraffic:
    layout = array.layout
    start = array.ptr + layout.low * layout.itemsize
    assert statistics.traffic is not None
    read, written = statistics.traffic.reached(start, (layout.high - layout.low) * layout.itemsize)
    return TensorTraffic(name, layout, layout.size * layout.itemsize, read, written)


# Tensors


def _arrays(device: Device, op: Op, decision: Decision, content: Mapping[str, str]) -> dict[str, DeviceArray]:
    for name in content:
        if name not in decision.layouts:
            raise ArgumentError(f"{op.name}: the call has no tensor '{name}'{nearest(name, tuple(decision.layouts))}")
    rng = np.random.default_rng(0)
    return {
        name: _array(device, layout, _values(op, name, layout, content.get(name), rng))
        for name, layout in decision.layouts.items()
    }


def _values(op: Op, name: str, layout: Layout, given: str | None, rng: np.random.Generator) -> Array:
    dtype = numpy_dtype(layout.dtype)
    if given is not None:
        return _given(op, name, layout, given, rng).astype(dtype)
    if "float" in layout.dtype:
        drawn = rng.standard_normal(min(layout.size, _DRAWN), np.float32).astype(dtype)
        return np.resize(drawn, layout.shape)
    return np.zeros(layout.shape, dtype)


def _given(op: Op, name: str, layout: Layout, text: str, rng: np.random.Generator) -> Array:
    if ends := _RANGE.fullmatch(text):
        low, high = map(int, ends.groups())
        if low > high:
            raise ArgumentError(f"{op.name}: invalid range '{text}' for '{name}': {low} > {high}")
        return rng.integers(low, high, layout.shape, endpoint=True)
    try:
        return np.full(layout.shape, float(text))
    except ValueError:
        pass
    try:
        with os.fdopen(open_regular(text), "rb") as file:
            found: Array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArgumentError(
            f"{op.name}: '{text}' for '{name}' is not a number, a range such as 0..7, or a .npy file: {error}"
        ) from None
    if found.shape != layout.shape:
        raise ArgumentError(f"{op.name}: '{name}' has shape {layout.shape}, but the array in {text} has {found.shape}")
    return found


def _array(device: Device, layout: Layout, values: Array) -> DeviceArray:
    layout = make_layout(device.key, layout.dtype, layout.shape, layout.strides, layout.aligned)
    span = layout.high - layout.low
    if not span:
        return DeviceArray(device, 0, layout, None)
    host = np.zeros(span, values.dtype)
    strides = tuple(stride * layout.itemsize for stride in layout.strides)
    np.lib.stride_tricks.as_strided(host[-layout.low :], layout.shape, strides)[...] = values
    shift = 0 if layout.aligned else layout.itemsize
    owner = device.memory.allocate(host.nbytes + ALIGNMENT, 0)
    device.write(owner.address + shift, host, 0)
    return DeviceArray(device, owner.address + shift - layout.low * layout.itemsize, layout, owner)
