"""Times on a device: candidates take turns, and their results are compared with those of the present config."""

from __future__ import annotations

import datetime
import itertools
import statistics
from collections.abc import Iterable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aot.manifest.schema import MeasuredSpec
from aot.progress import counted, steps
from aot_bundle.event_timing import device_seconds, take_turns
from aot_bundle.gpu_settings import gpu_settings
from aot_bundle.profile.profile_call import MadeCall
from aot_bundle.terminal import Console
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.dtypes import UINT8
from aot_runtime.device.array import DeviceArray
from aot_runtime.device.registry import get_device
from aot_runtime.errors import AotError, ArgumentError
from aot_runtime.opening import Bundle

from .made_calls import made_call, run_with
from .results import Results, Timed
from .timers import Times, told_of
from .trials import PlannedTuning, Trial

FLUSHED = 512 << 20
"""Bytes written before each timed call to flush caches: twice an MI300X's."""
_UNWRITTEN = 0xFF
"""Byte that fills outputs before a call whose results are compared; as floats it is NaN."""


class OnDevice:
    """A timer on a device."""

    kind: Literal["measured", "modelled"] = "measured"

    def __init__(self, name: str, arch: str, rounds: int):
        """Open the device. Raises `DeviceError`, and `ArchMismatchError` if it has another architecture."""
        self.device, self.rounds = get_device(name, arch), rounds
        found = self.device.properties
        if found.arch != arch:
            raise ArgumentError(f"device '{name}' is {found.name} ({found.arch}), but --arch is {arch}")
        self.num_cus: int | None = found.num_cus
        self.num_xcds = found.num_xcds
        self.by = found.name
        self.told = f"measured on {found.name}, driver {found.driver_version}"
        self.clocks = gpu_settings(self.device.driver.name, found.pci).summary()
        self.means = not self.device.driver.is_emulated

    def times(
        self, planned: PlannedTuning, trials: list[Trial], folder: Path, results: Results, console: Console
    ) -> Times:
        found: Times = {}
        bundle = Bundle(folder, read_index(folder), self.device)
        places = dict.fromkeys(trial.call for trial in trials)
        head = f"measuring {counted(len(trials), 'candidate')} on {counted(len(places), 'call')}, {self.rounds} rounds"
        with steps(console, head, len(places)) as advance:
            for place in places:
                here = [trial for trial in trials if trial.call == place]
                for trial, timed in self._of_call(planned, here, bundle, results):
                    found[trial.call, trial.number] = timed
                advance(False)
        return found

    def _of_call(
        self, planned: PlannedTuning, trials: list[Trial], bundle: Bundle, results: Results
    ) -> list[tuple[Trial, Timed]]:
        """Time one call with each candidate. All are timed together, since they take turns, or all are known."""
        known = [results.get(trial.identity, self.by) for trial in trials]
        if all(known):
            return [(trial, timed) for trial, timed in zip(trials, known, strict=True) if timed]
        call = planned.calls[trials[0].call]
        made = made_call(bundle, planned.op.name, call.spec, call.content)
        trials = sorted(trials, key=lambda trial: trial.number)  # the config that is there comes first
        faults = _Compared(made).faults(trial.number for trial in trials)
        sound = [trial.number for trial in trials if not faults.get(trial.number)]
        seconds = self._medians(made, sound)
        found = []
        for trial in trials:
            timed = Timed(seconds.get(trial.number), faults.get(trial.number, ""))
            results.add(trial.identity, self.by, timed, told_of(planned, trial))
            found.append((trial, timed))
        return found

    def _medians(self, made: MadeCall, numbers: list[int]) -> dict[int, float]:
        """Time a call with each candidate: medians of rounds in which all take turns."""
        device, bytes_written = self.device, itertools.count()
        flushed = device.empty((FLUSHED if self.means else 1,), UINT8.name)

        def measure(number: int) -> float:
            device.driver.fill(device.index, flushed.ptr, next(bytes_written) % 251, flushed.nbytes, 0)
            return device_seconds(device, lambda: run_with(made, number))

        taken = take_turns({number: partial(measure, number) for number in numbers}, self.rounds)
        return {number: statistics.median(seconds) for number, seconds in taken.items()}

    def origin(self, figure: str) -> MeasuredSpec:
        version = f"triton {metadata.version('triton')}, driver {self.device.properties.driver_version}"
        date = datetime.date.today().isoformat()
        return MeasuredSpec(device=self.by, date=date, figure=figure, clocks=self.clocks, version=version)


class _Compared:
    """Compares the results of candidates with those of the present config."""

    def __init__(self, made: MadeCall):
        op = made.planner.op
        self._made = made
        roles = {tensor.name: tensor.role for tensor in op.tensors}
        self._written = {name: array for name, array in made.arrays.items() if roles[name] != "input"}
        self._inouts = {name: _bytes(array) for name, array in self._written.items() if roles[name] == "inout"}

    def faults(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return candidate → description of the fault in its results. The first number is the present config."""
        faults: dict[int, str] = {}
        expected: dict[str, Any] = {}
        for number in numbers:
            try:
                found = self._results(number)
            except AotError as error:
                if not number:
                    raise
                faults[number] = f"fails: {str(error).splitlines()[0]}"
                continue
            if not expected:
                expected = found
            elif wrong := next((name for name in expected if not is_same(found[name], expected[name])), ""):
                faults[number] = f"computes another {wrong}"
        return faults

    def _results(self, number: int) -> dict[str, Any]:
        device = self._made.bundle.device
        for name, array in self._written.items():
            if name in self._inouts:
                device.write(_start(array), self._inouts[name], 0)
            else:
                span = array.layout.high - array.layout.low
                if span:
                    device.driver.fill(device.index, _start(array), _UNWRITTEN, span * array.layout.itemsize, 0)
        run_with(self._made, number)
        return {name: array.numpy() for name, array in self._written.items()}


def _start(array: DeviceArray) -> int:
    return array.ptr + array.layout.low * array.layout.itemsize


def _bytes(array: DeviceArray) -> Any:
    host = np.empty((array.layout.high - array.layout.low) * array.layout.itemsize, np.uint8)
    if host.size:
        array.device.read(host, _start(array), 0)
    return host


def is_same(found: Any, expected: Any) -> bool:
    """Tell if two results agree up to the order of additions: within 8 steps of the dtype at the largest value, or 1e-4
    of it; integers, which may have been rounded, within 1."""
    if found.dtype.kind in "iub":
        return bool(np.all(np.abs(found.astype(np.int64) - expected.astype(np.int64)) <= (found.dtype.itemsize == 1)))
    one, other = (np.asarray(values, np.float64) for values in (found, expected))
    finite = np.isfinite(other)
    if not np.array_equal(finite, np.isfinite(one)) or not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return False
    import ml_dtypes

    step = float(ml_dtypes.finfo(found.dtype).eps)
    most = float(np.abs(other[finite]).max(initial=0.0))
    return bool(np.all(np.abs(one - other)[finite] <= max(8 * step, 1e-4) * most))
