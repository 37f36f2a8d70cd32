"""Times of all ways to make a call, by the model of time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

from aot_bundle.callspec import CallSpec
from aot_bundle.profile.profile_call import make_call
from aot_emulator.driver import EmulatorDriver
from aot_emulator.timing.constants import machine_of
from aot_emulator.timing.sampling import SamplingRunner
from aot_runtime.bundle.reading import read_index
from aot_runtime.device.device import Device
from aot_runtime.device.drivers import device_for_arch
from aot_runtime.opening import Bundle

from .model_timer import model_version
from .way_timers import Times
from .ways import run_of, ways_of


class ModelledWays:
    """Times by the model of time, in several processes."""

    def __init__(self, folder: Path, op: str, jobs: int | None):
        machine_of(read_index(folder).target.arch)  # raises if the model does not have it
        self.folder, self.op, self.jobs = folder, op, jobs or len(os.sched_getaffinity(0))
        self.by = f"model {model_version()}"
        self.told = "times are modelled, not measured"
        self.num_cus: int | None = None
        self.num_xcds: int | None = None

    def times(self, calls: Sequence[CallSpec]) -> Iterator[Times]:
        work = partial(_modelled, self.folder, self.op)
        if self.jobs == 1:
            yield from map(work, calls)
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(self.jobs, len(calls)), context) as pool:
            yield from pool.map(work, calls)


@lru_cache(maxsize=1)
def _opened(folder: Path) -> tuple[EmulatorDriver, Bundle]:
    driver, index = EmulatorDriver(), read_index(folder)
    return driver, Bundle(folder, index, Device(driver, device_for_arch(driver, index.target.arch)))


def _modelled(folder: Path, op: str, call: CallSpec) -> Times:
    driver, bundle = _opened(folder)
    made = make_call(bundle, op, call, {})
    found = {}
    for way in ways_of(made.planner, made.decision):
        runner = SamplingRunner()
        with driver.run_by(runner):
            run_of(bundle, made.planner, way.decision)(**made.arrays, **made.scalars)
        found[way.text] = sum(sampled.time.seconds for sampled in runner.found)
    return found
