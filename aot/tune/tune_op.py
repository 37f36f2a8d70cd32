"""Tune an op: plan, compile, leave candidates out, time, choose, write."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from aot.build import compile_all, plan_manifests
from aot.manifest.loading import Manifest
from aot.plan.bundles import PlannedBundle
from aot.plan.calls import WantedCalls
from aot.progress import counted
from aot.write.bundle_writer import write_bundle
from aot_bundle.terminal import Console

from .best_configs import Choice, choose
from .candidates import Group
from .code_filter import pruned, reasons_text, without_failures
from .output_files import write
from .request import Subject, TuneRequest, TuningError, subject_of
from .results import Results
from .timers import Timer
from .trials import PlannedTuning, plan_tuning

MARGINS = {"measured": 0.02, "modelled": 0.1}
"""Part of its time by which one config has to be faster than another to be told apart."""


def tune(request: TuneRequest, console: Console) -> tuple[Choice, ...]:
    """Run a request; returns the outcome of each group.

    Raises:
        ManifestError, BuildError, CacheError: as a build does.
        DeviceError: the device does not exist, or the model has no constants for the architecture.
        TuningError: no candidate is left, or something cannot be written.
    """
    request = request.resolved
    arch = request.target.arch
    subject = subject_of(request)
    _check_left(subject.groups, [{} for _ in subject.groups])
    if request.dry_run:
        console.print(*_head(_planned(request, subject), arch))
        return ()
    timer = _timer(request)
    planned = _planned(request, subject, timer.num_cus, timer.num_xcds)
    console.print(*_head(planned, arch), timer.told)
    for group in subject.groups:
        if not group.candidates:
            console.print(f"{group.name}: no candidate is left: {reasons_text(group, {})}")
    outcome = compile_all(request.build, [planned.bundle], console)
    bundle, failed = without_failures(planned, outcome)
    dropped = {**planned.unreached, **failed}
    dropped |= pruned(planned, bundle, outcome.kernels)
    _check_left(planned.groups, [dropped for _ in planned.groups])
    trials = [trial for trial in planned.trials if trial.number not in dropped]
    wanted = {key for trial in trials for key in trial.keys}
    bundle = replace(bundle, variants=tuple(variant for variant in bundle.variants if variant.key in wanted))
    with tempfile.TemporaryDirectory(prefix="aotbuild-tune-") as folder:
        written = write_bundle(bundle, outcome.kernels, (), Path(folder))
        results = Results(request.results or Path("tuned") / f"{planned.op.name}-{arch}.jsonl")
        times = timer.times(planned, trials, written.folder, results, console)
    margin = MARGINS[timer.kind] if request.margin is None else request.margin
    choices = tuple(choose(planned, place, times, dropped, margin) for place in range(len(planned.groups)))
    for choice in choices:
        console.print(*_choice_lines(choice, planned, timer))
    _check_left(planned.groups, [choice.dropped for choice in choices])
    write(request, subject, planned, choices, timer, console)
    return choices


def _planned(
    request: TuneRequest, subject: Subject, num_cus: int | None = None, num_xcds: int | None = None
) -> PlannedTuning:
    def plan(manifest: Manifest, wanted: WantedCalls) -> PlannedBundle:
        (bundle,) = plan_manifests(request.build, [manifest], {}, wanted)
        return bundle

    arch = request.target.arch
    return plan_tuning(plan, subject.source, subject.groups, subject.calls, arch, num_cus, num_xcds)


def _timer(request: TuneRequest) -> Timer:
    if request.device is None:
        from .model_timer import ByModel  # needs the emulator

        return ByModel(request.target.arch, request.build.jobs)
    from .device_timer import OnDevice

    device = OnDevice(request.device, request.target.arch, request.rounds)
    if not device.means and request.output is None:
        raise TuningError(f"{device.told}: such times mean nothing, so they are written only to a file given with -o")
    return device


def _check_left(groups: Sequence[Group], dropped: Sequence[Mapping[int, str]]) -> None:
    if not any(c.number not in why for group, why in zip(groups, dropped, strict=True) for c in group.candidates):
        reasons = [f"{group.name}: {reasons_text(group, why)}" for group, why in zip(groups, dropped, strict=True)]
        raise TuningError("the space leaves no candidate", *reasons)


def _head(planned: PlannedTuning, arch: str) -> list[str]:
    lines = [f"{planned.op.name} for {arch}"]
    for place, group in enumerate(planned.groups):
        candidates, calls = len(group.candidates), len(planned.calls_of(place))
        lines.append(f"  {group.name}: {counted(candidates, 'candidate')}, {counted(calls, 'call')}")
    if planned.unserved:
        lines.append(f"  {counted(planned.unserved, 'call')} left out: no group serves what they use")
    return lines


def _choice_lines(choice: Choice, planned: PlannedTuning, timer: Timer) -> list[str]:
    group, best = choice.group, choice.best
    reasons = reasons_text(group, choice.dropped)
    if best is None:
        return [f"{group.name}: no candidate is left: {reasons}"]
    lines = [
        f"{group.name}: the best of {counted(len(choice.ranking), 'candidate')}, {timer.kind}: {best.candidate.text}"
    ]
    for call, now, seconds in zip(choice.calls, choice.now, best.seconds, strict=True):
        lines.append(f"  {planned.calls[call].text}: {seconds * 1e6:.2f} us, {now * 1e6:.2f} as it is")
    lines.append(f"  {1 / best.score:.3f} times as fast as it is")
    if reasons:
        lines.append(f"  left out: {reasons}")
    return lines
