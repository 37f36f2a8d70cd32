"""Write the results of a run: configs of a tuning file, and a shortlist."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from aot.manifest.json_schema import schema_file
from aot.manifest.loading import load_tuning
from aot.manifest.schema import ConfigSpec, MeasuredSpec
from aot.manifest.shipped import shipped_manifests
from aot.manifest.spaces import load_space
from aot.progress import counted
from aot_bundle.terminal import Console
from aot_runtime.folders import write_file

from .best_configs import Choice
from .overlay import is_measured, with_config
from .request import Subject, TuneRequest, TuningError
from .shortlist import shortlist_text
from .timers import Timer
from .trials import PlannedTuning

MOST_NAMED = 4
"""Maximum number of calls that a tuning file names for a config."""


def write(
    request: TuneRequest, subject: Subject, planned: PlannedTuning, choices: Sequence[Choice], timer: Timer,
    console: Console,
) -> None:  # fmt: skip
    """Write the chosen configs to the tuning file, and the shortlist. Raises `TuningError`."""
    try:
        _write_tuning(request, subject, planned, choices, timer, console)
        if request.shortlist is not None:
            _write_shortlist(request.shortlist, request, subject, planned, choices, timer)
            console.print(f"{request.shortlist}: written")
    except OSError as error:
        raise TuningError(f"{error.filename} cannot be written: {error.strerror}") from None


def _write_tuning(
    request: TuneRequest, subject: Subject, planned: PlannedTuning, choices: Sequence[Choice], timer: Timer,
    console: Console,
) -> None:  # fmt: skip
    arch, own = request.target.arch, subject.source.manifest.tuning_path(subject.source.name)
    path = request.output or own
    base = path if path.exists() else own
    tuning = load_tuning(base) if base.exists() else None
    old = text = base.read_text(encoding="utf-8") if tuning else ""
    for choice in reversed(choices):  # of those that come in front, the first is the last to do so
        launch = choice.group.launch_name
        names = {name for call in choice.calls for at, name in planned.defaults[call] if at == choice.group.launch}
        held = [name for name in sorted({*names, choice.group.name}) if is_measured(tuning, arch, launch, name)]
        if choice.best is None or not choice.taken:
            console.print(f"{choice.group.name}: unchanged")
        elif held and timer.kind == "modelled":
            console.print(
                f"{choice.group.name}: unchanged: '{held[0]}' was measured, and a modelled time does not replace it"
            )
        else:
            config = _config(choice, subject, planned, timer)
            text = with_config(text, arch, launch, config, _from(schema_file("tuning"), path))
    if text != old:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, [text.encode()])
        load_tuning(path)
        console.print(f"{path}: written")


def _config(choice: Choice, subject: Subject, planned: PlannedTuning, timer: Timer) -> ConfigSpec:
    """The best candidate of a group as a config of a tuning file. The manifest's conditions on its use are kept."""
    group, best = choice.group, choice.best
    assert best is not None
    calls = [planned.calls[call].text for call in choice.calls]
    compared = "; ".join(calls) if len(calls) <= MOST_NAMED else f"the mean of {counted(len(calls), 'call')}"
    of = counted(len(choice.ranking), "candidate")
    origin = timer.origin(f"{1 / best.score:.2f} times as fast as before, the best of {of}: {compared}.")
    declared = subject.source.spec.launches[group.launch].configs
    when = group.spec.when if group.base is None else group.base.when
    return ConfigSpec(
        name=group.name,
        when="" if any(config.name == group.name for config in declared) else when,
        from_kernel=group.base.from_kernel if group.base else None,
        fitted=dict(group.base.fitted) if group.base else {},
        blocks=dict(best.candidate.blocks),
        options=dict(best.candidate.options),
        signature={},
        constants={},
        measured=origin if isinstance(origin, MeasuredSpec) else None,
        modelled=None if isinstance(origin, MeasuredSpec) else origin,
    )


def _write_shortlist(
    path: Path, request: TuneRequest, subject: Subject, planned: PlannedTuning, choices: Sequence[Choice], timer: Timer
) -> None:
    origin = timer.origin("")
    if isinstance(origin, MeasuredSpec):
        raise TuningError(
            "a shortlist is made with the model, to be measured later: --write-shortlist excludes --device"
        )
    text = shortlist_text(
        planned.op.name, _manifest(subject, path), request.target.arch, origin, choices, planned.calls, request.keep,
        _from(schema_file("space"), path),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, [text.encode()])
    load_space(path)


def _manifest(subject: Subject, beside: Path) -> str:
    path = subject.source.manifest.file.path.resolve()
    names = {shipped.resolve(): name for name, shipped in shipped_manifests().items()}
    return names.get(path) or _from(path, beside)


def _from(path: Path, file: Path) -> str:
    return Path(os.path.relpath(path, file.resolve().parent)).as_posix()
