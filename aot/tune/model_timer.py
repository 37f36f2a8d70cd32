"""Times by the model of time: trials run on the emulator, in several processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Literal

import aot_emulator.timing
from aot.manifest.calls import CallEntrySpec
from aot.manifest.schema import ModelledSpec
from aot.progress import counted, steps
from aot_bundle.profile.profile_call import MadeCall
from aot_bundle.terminal import Console
from aot_emulator.driver import EmulatorDriver
from aot_emulator.timing.constants import machine_of
from aot_emulator.timing.sampling import SamplingRunner
from aot_runtime.bundle.reading import read_index
from aot_runtime.device.device import Device
from aot_runtime.device.drivers import device_for_arch
from aot_runtime.errors import AotError
from aot_runtime.opening import Bundle

from .made_calls import made_call, run_with
from .results import Results, Timed
from .timers import BY, Times, told_of
from .trials import PlannedTuning, Trial


@dataclass(frozen=True)
class ModelTask:
    """A trial to be run in a worker process.

    Attributes:
        folder: folder of the bundle.
        key: identifies the tensors: tasks with the same key share them.
    """

    folder: str
    op: str
    key: str
    call: CallEntrySpec
    content: Mapping[str, str]
    number: int


@lru_cache
def model_version() -> str:
    """The model's version: a digest of its sources, since any change to them may change times."""
    folder = Path(aot_emulator.timing.__file__).parent
    sources = b"\0".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(sources).hexdigest()[:12]


def modelled_times(tasks: Sequence[ModelTask], jobs: int) -> Iterator[tuple[int, Timed]]:
    """Yield (position of a task, outcome) as they come."""
    if jobs == 1:
        here = _Worker()
        yield from ((place, here.time(task)) for place, task in enumerate(tasks))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), context) as pool:
        waiting: dict[Future[Timed], int] = {pool.submit(_time, task): place for place, task in enumerate(tasks)}
        try:
            while waiting:
                for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(done), done.result()
        except BrokenProcessPool:
            raise AotError(
                "a process that modelled times died; with fewer processes (-j) each has more memory"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class ByModel:
    """A timer by the model of time."""

    kind: Literal["measured", "modelled"] = "modelled"
    means = True
    num_cus: int | None = None
    num_xcds: int | None = None

    def __init__(self, arch: str, jobs: int | None):
        """Raise `DeviceError` if the model has no constants for the architecture."""
        machine_of(arch)
        self.jobs = jobs or len(os.sched_getaffinity(0))
        self.by = f"model {model_version()}"
        self.told = "times are modelled, not measured"

    def times(
        self, planned: PlannedTuning, trials: list[Trial], folder: Path, results: Results, console: Console
    ) -> Times:
        found: Times = {}
        same: dict[str, list[Trial]] = {}
        for trial in sorted(trials, key=lambda trial: (trial.call, trial.number)):
            known = results.get(trial.identity, self.by)
            if known is not None:
                found[trial.call, trial.number] = known
            else:
                same.setdefault(trial.identity, []).append(trial)
        todo = list(same.values())
        tasks = [self._task(planned, trials[0], folder) for trials in todo]
        if found:
            console.print(f"{counted(len(found), 'time')} from {results.path}")
        if tasks:
            jobs = min(self.jobs, len(tasks))
            head = f"modelling {counted(len(tasks), 'time')} with {counted(jobs, 'process')}"
            with steps(console, head.replace("processs", "processes"), len(tasks)) as advance:
                for place, timed in modelled_times(tasks, jobs):
                    for trial in todo[place]:
                        found[trial.call, trial.number] = timed
                    results.add(todo[place][0].identity, self.by, timed, told_of(planned, todo[place][0]))
                    advance(timed.seconds is None)
        return found

    def origin(self, figure: str) -> ModelledSpec:
        version = f"model {model_version()}, triton {metadata.version('triton')}"
        return ModelledSpec(by=f"{BY}, by the model of time", figure=figure, version=version)

    def _task(self, planned: PlannedTuning, trial: Trial, folder: Path) -> ModelTask:
        call = planned.calls[trial.call]
        return ModelTask(str(folder), planned.op.name, call.text, call.spec, call.content, trial.number)


class _Worker:
    """Runs tasks, and keeps the tensors of one call at a time."""

    def __init__(self) -> None:
        self._key: tuple[str, str] | None = None
        self._made: MadeCall | None = None
        self._bundle: tuple[str, EmulatorDriver, Bundle] | None = None

    def time(self, task: ModelTask) -> Timed:
        try:
            driver, made = self._at(task)
            runner = SamplingRunner()
            with driver.run_by(runner):
                run_with(made, task.number)
        except AotError as error:
            return Timed(None, str(error).splitlines()[0])
        return Timed(sum(sampled.time.seconds for sampled in runner.found))

    def _at(self, task: ModelTask) -> tuple[EmulatorDriver, MadeCall]:
        if self._bundle is None or self._bundle[0] != task.folder:
            folder, driver = Path(task.folder), EmulatorDriver()
            index = read_index(folder)
            device = Device(driver, device_for_arch(driver, index.target.arch))
            self._bundle = task.folder, driver, Bundle(folder, index, device)
        _, driver, bundle = self._bundle
        if self._made is None or self._key != (task.folder, task.key):
            self._made = None  # whose memory goes first
            self._made = made_call(bundle, task.op, task.call, task.content)
            self._key = task.folder, task.key
        return driver, self._made


@lru_cache(maxsize=1)
def _worker() -> _Worker:
    return _Worker()


def _time(task: ModelTask) -> Timed:
    return _worker().time(task)
