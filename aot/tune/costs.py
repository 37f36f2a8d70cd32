"""Fit the constants of an op's costs: draw calls, time all ways to make them, fit, tell the regret, write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.manifest.loading import OpSource, load_tuning
from aot.plan.configs import launch_configs, launch_name
from aot.plan.costs import with_values
from aot.progress import counted, steps
from aot_bundle.callspec import CallSpec, plan_call
from aot_bundle.terminal import Console
from aot_runtime.bundle.reading import read_index
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.contract.expressions import Evaluator, evaluator, parse
from aot_runtime.contract.records import Index
from aot_runtime.folders import write_file

from .draws import call_text, drawn_calls
from .fit import Constant, Regret, Sample, Term, fitted, of_config, regret
from .overlay import with_fitted
from .request import TuneRequest, TuningError, space_and_op
from .way_timers import MeasuredWays, Times, WayTimer
from .ways import ways_of

HELD_OUT = 3
"""Calls of which one is kept out of the fit, to tell the regret."""
SIGNIFICANT = 3
"""Digits of a constant that is written."""


@dataclass(frozen=True)
class CostRequest:
    """The options of a fit.

    Attributes:
        tune: the op, its manifest, space, device, results and output.
        bundle: a built bundle that has the op.
        seed, count: of the calls.
    """

    tune: TuneRequest
    bundle: Path
    seed: int
    count: int


@dataclass(frozen=True)
class Fit:
    """A fit of an op's costs: constants, and regrets of calls that were not used for it, before and after."""

    constants: Mapping[Constant, float]
    before: Regret
    after: Regret
    used: Regret
    calls: int


def fit_costs(request: CostRequest, console: Console) -> Fit:
    """Run a request. Raises `ManifestError`, `TuningError`, `DeviceError`, `BundleError`."""
    tune = request.tune
    index = read_index(request.bundle)
    arch = index.target.arch
    space, source = space_and_op(tune)
    draws = [spec for spec in space.spec.draws if arch in (spec.arch or [arch])]
    if not draws:
        raise TuningError(f"{space.file.path} has no `draws` for {arch}")
    timer = _timer(request, source.name)
    calls = list(drawn_calls(draws, request.seed, request.count))
    console.print(f"{source.name} for {arch}: {counted(len(calls), 'call')}; {timer.told}")
    times = _times(request, source.name, index, timer, calls, console)
    formulas, present = _formulas(source, arch)
    samples = _samples(index, op_planner(index, source.name, request.bundle), calls, times, formulas, timer)
    if not samples:
        raise TuningError(f"no drawn call of '{source.name}' has several ways with a cost")
    used = [sample for sample in samples if sample.call % HELD_OUT]
    held = [sample for sample in samples if not sample.call % HELD_OUT]
    reached = {(term.launch, term.config) for sample in used for term in sample.terms}
    start = {key: value for key, value in present.items() if key[:2] in reached}
    constants = {**present, **fitted(used, start)}
    fit = Fit(constants, regret(held, present), regret(held, constants), regret(used, constants),
              len({sample.call for sample in held}))  # fmt: skip
    console.print(*_lines(source, fit, len({sample.call for sample in used}), present, start))
    _write(tune, source, arch, constants, start, console)
    return fit


def _timer(request: CostRequest, op: str) -> WayTimer:
    tune = request.tune
    if tune.device is None:
        from .modelled_ways import ModelledWays  # needs the emulator

        return ModelledWays(request.bundle, op, tune.build.jobs)
    return MeasuredWays(request.bundle, op, tune.device, tune.rounds)


def _times(
    request: CostRequest, op: str, index: Index, timer: WayTimer, calls: Sequence[CallSpec],
    console: Console,
) -> list[Times]:  # fmt: skip
    """Time the ways of calls. Known times of the same bundle and timer are read from the file of results."""
    path = request.tune.results or Path("tuned") / f"{op}-{index.target.arch}-costs.jsonl"
    known: dict[str, Times] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if (entry["bundle"], entry["by"]) == (index.id, timer.by):
                known[entry["call"]] = entry["seconds"]
    todo = [call for call in calls if call_text(call) not in known]
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"timing all ways of {counted(len(todo), 'call')}"
    with steps(console, head, len(todo)) as advance, path.open("a") as file:
        for call, seconds in zip(todo, timer.times(todo) if todo else (), strict=True):
            text = call_text(call)
            known[text] = seconds
            entry = {"op": op, "call": text, "seconds": seconds, "by": timer.by, "bundle": index.id}
            file.write(json.dumps(entry) + "\n")
            file.flush()
            advance(not seconds)
    return [known[call_text(call)] for call in calls]


Formulas = Mapping[tuple[int, str], Evaluator]


def _formulas(source: OpSource, arch: str) -> tuple[Formulas, dict[Constant, float]]:
    """Return the cost of each config as a function of names and of its constants, and the present constants."""
    formulas: dict[tuple[int, str], Evaluator] = {}
    constants: dict[Constant, float] = {}
    launches = source.spec.launches
    for index, configs in enumerate(launch_configs(source.manifest, source.name, arch)):
        for config in configs:
            if config.fitted:
                text = with_values(str(launches[index].cost), config.blocks)
                formulas[index, config.name] = evaluator(parse(text).text)
                constants |= {(index, config.name, name): float(value) for name, value in config.fitted.items()}
    return formulas, constants


def _samples(
    index: Index, planner: Planner, calls: Sequence[CallSpec], times: Sequence[Times], formulas: Formulas,
    timer: WayTimer,
) -> list[Sample]:  # fmt: skip
    """Return the timed ways of calls that have several."""
    samples = []
    for number, (call, seconds) in enumerate(zip(calls, times, strict=True)):
        decision = plan_call(index, planner, call, timer.num_cus, timer.num_xcds)
        found = []
        for way in ways_of(planner, decision):
            launches = [(item.index, item.tried[-1].config.name) for item in way.decision.launches]
            terms = tuple(Term(*key, formulas[key], way.decision.names) for key in launches if key in formulas)
            if way.text in seconds:
                found.append(Sample(number, way.text, seconds[way.text], terms))
        if len(found) > 1 and any(sample.terms for sample in found):
            samples += found
    return samples


def _lines(
    source: OpSource, fit: Fit, used: int, present: Mapping[Constant, float], start: Mapping[Constant, float]
) -> list[str]:
    names = [launch_name(launch) for launch in source.spec.launches]
    lines = [f"regret of {counted(fit.calls, 'call')} that the fit does not use: {fit.after}",
             f"  with the constants as they were: {fit.before}",
             f"  of the {counted(used, 'call')} that it uses: {fit.used}"]  # fmt: skip
    configs = dict.fromkeys((launch, config) for launch, config, _ in start)
    for launch, config in configs:
        own = of_config(fit.constants, launch, config)
        shown = ", ".join(f"{name} {present[launch, config, name]:.3g} -> {value:.3g}" for name, value in own.items())
        lines.append(f"  {names[launch]} {config}: {shown}")
    return lines


def _write(
    tune: TuneRequest, source: OpSource, arch: str, constants: Mapping[Constant, float],
    start: Mapping[Constant, float], console: Console,
) -> None:  # fmt: skip
    own = source.manifest.tuning_path(source.name)
    path = tune.output or own
    base = path if path.exists() else own
    text = base.read_text(encoding="utf-8") if base.exists() else ""
    for launch, config in dict.fromkeys((launch, config) for launch, config, _ in start):
        exact = of_config(constants, launch, config)
        values = {name: float(f"{value:.{SIGNIFICANT}g}") for name, value in exact.items()}
        name = launch_name(source.spec.launches[launch])
        try:
            text = with_fitted(text, arch, name, config, values)
        except KeyError:
            message = f"{base} has no `fitted` for '{config}' of {name} on {arch}: write rough numbers"
            raise TuningError(message) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, [text.encode()])
    load_tuning(path)
    console.print(f"{path}: written")
