"""Timers of trials: the interface of devices and the model of time, and the model's timer."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Protocol

from aot.manifest.schema import MeasuredSpec, ModelledSpec
from aot.progress import counted, steps
from aot_bundle.terminal import Console
from aot_emulator.timing.constants import machine_of

from .model_timer import ModelTask, model_version, modelled_times
from .results import Results, Timed
from .trials import PlannedTuning, Trial

BY = "aotbuild tune"
Times = dict[tuple[int, int], Timed]
"""(position of a call, number of a candidate) → outcome."""


class Timer(Protocol):
    """Times trials.

    Attributes:
        kind: the kind of its times.
        by: name under which results are kept.
        told: the timer in words.
        means: its times are meaningful for a device.
        num_cus, num_xcds: of the device that calls are planned for; None: the architecture's usual one.
    """

    kind: Literal["measured", "modelled"]
    by: str
    told: str
    means: bool
    num_cus: int | None
    num_xcds: int | None

    def times(
        self, planned: PlannedTuning, trials: list[Trial], folder: Path, results: Results, console: Console
    ) -> Times:
        """Return the times of trials of the bundle in a folder. Known results are used; new ones are kept."""

    def origin(self, figure: str) -> MeasuredSpec | ModelledSpec:
        """The origin of configs chosen by its times, for a tuning file."""


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


def told_of(planned: PlannedTuning, trial: Trial) -> dict[str, Any]:
    """Describe a trial for readers of the file of results."""
    candidate = planned.candidate(trial)
    return {
        "op": planned.op.name,
        "call": planned.calls[trial.call].text,
        "group": "" if trial.group is None else planned.groups[trial.group].name,
        "candidate": {} if candidate is None else dict(candidate.chosen),
    }
