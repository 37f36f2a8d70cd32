"""Timers of trials: the interface that devices and the model of time have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

from aot.manifest.schema import MeasuredSpec, ModelledSpec
from aot_bundle.terminal import Console

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


def told_of(planned: PlannedTuning, trial: Trial) -> dict[str, Any]:
    """Describe a trial for readers of the file of results."""
    candidate = planned.candidate(trial)
    return {
        "op": planned.op.name,
        "call": planned.calls[trial.call].text,
        "group": "" if trial.group is None else planned.groups[trial.group].name,
        "candidate": {} if candidate is None else dict(candidate.chosen),
    }
