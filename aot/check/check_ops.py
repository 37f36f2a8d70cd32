"""Check the ops of manifests: plan calls of every op, build the variants that they need, and run the calls."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from aot.build import Request, make, plan
from aot.errors import BuildError
from aot.forked_process import ForkedProcess
from aot.plan.bundles import PlannedBundle
from aot.plan.cases import Recipe
from aot.write.vectors import Expectation, expectation
from aot_bundle.terminal import Console
from aot_emulator.driver import EmulatorDriver
from aot_emulator.isa.archs import ARCHS
from aot_emulator.machine.launch_options import Options
from aot_runtime.bundle.reading import read_index
from aot_runtime.device.device import Device
from aot_runtime.device.drivers import device_for_arch
from aot_runtime.errors import DeviceError
from aot_runtime.opening import Bundle

from .call_selection import PlannedCheck, PlannedOp, narrowed, plan_op
from .findings import ENDLESS, CaseReport, OpReport, call_text, variants_text
from .properties import Runner, run_case

Tell = Callable[[OpReport], None]
"""Called with the report of each op as soon as it is complete."""


@dataclass(frozen=True)
class CheckRequest:
    """The options of a check on the command line.

    Attributes:
        build: the manifests, and how variants are built; the output folder is a temporary one.
        count: number of calls of each op.
        case: the only call to make, by its number; None: all.
        time_limit_s: time limit of one launch on the emulator.
        words: options of the command line that restrict the variants, repeated in the command that makes a call again.
    """

    build: Request
    seed: int
    count: int
    case: int | None
    time_limit_s: float
    words: tuple[str, ...]


def check(request: CheckRequest, tell: Tell) -> list[OpReport] | None:
    """Check every op; returns the reports, or None if something did not compile, after that was reported.

    Raises `ManifestError`, `BuildError` and `CacheError` as a build does, and `DeviceError` if a target is not
    emulated.
    """
    for target in request.build.targets:
        if target.arch not in ARCHS:
            raise DeviceError(f"the emulator does not support {target.arch}; supported: {', '.join(ARCHS)}")
    quiet = request.build.quiet
    console = Console(err=True, quiet=quiet)
    bundles = plan(request.build)
    for op in (op for bundle in bundles for op in bundle.ops):
        if pointers := [tensor.name for tensor in op.tensors if tensor.pointer]:
            listed = ", ".join(pointers)
            raise BuildError(f"op '{op.name}' takes pointers ({listed}): no manifest says how far it reads")
    reports: list[OpReport] = []
    with tempfile.TemporaryDirectory(prefix="aotbuild-check-") as folder:
        build = replace(request.build, output=Path(folder))
        checked = [_Checked(request, bundle) for bundle in bundles]
        needed = [item.needed for item in checked if item.needed is not None]
        if needed and make(build, needed, Console(quiet=True) if not console.is_terminal else console) is None:
            return None
        for item in checked:
            for report in item.run(Path(folder), console):
                reports.append(report)
                tell(report)
    return reports


class _Checked:
    """The planned calls of one bundle, and the emulated device that they run on."""

    def __init__(self, request: CheckRequest, bundle: PlannedBundle):
        self.request, self.bundle = request, bundle
        self.driver = EmulatorDriver(Options(strict=True))
        self.device = Device(self.driver, device_for_arch(self.driver, bundle.target.arch))
        sources = {source.name: source.manifest for source in bundle.manifest.sources}
        self.ops = [self._planned(plan_op(bundle, sources[op.name], op, self.device, request.seed, self._count))
                    for op in bundle.ops]  # fmt: skip
        self.needed = narrowed(bundle, self.ops) if any(op.checks for op in self.ops) else None

    @property
    def _count(self) -> int:
        return self.request.count if self.request.case is None else self.request.case + 1

    def _planned(self, op: PlannedOp) -> PlannedOp:
        case = self.request.case
        if case is None:
            return op
        checks = tuple(item for item in op.checks if item.number == case)
        return replace(op, checks=checks, refusal=op.refusal or ("" if checks else f"there is no case {case}"))

    def run(self, output: Path, console: Console) -> Iterator[OpReport]:
        folder = output / self.bundle.folder_name
        opened = Bundle(folder, read_index(folder), self.device, check_contents=True) if self.needed else None
        with ForkedProcess(self.request.build.timeout) as process:
            for op in self.ops:
                if opened is None or not op.checks:
                    yield OpReport(op.op.name, self.bundle.target.arch, (), op.refusal)
                    continue
                runner = Runner(opened, self.driver, self.request.time_limit_s)
                with console.status(f"checking {op.op.name}"):
                    cases = tuple(self._cases(runner, op, process))
                yield OpReport(op.op.name, self.bundle.target.arch, cases)

    def _cases(self, runner: Runner, op: PlannedOp, process: ForkedProcess) -> Iterator[CaseReport]:
        """Yield the report of each call, up to one that does not end: the others would take as long."""
        for planned in op.checks:
            report = self._case(runner, op, planned, process)
            yield report
            if any(finding.kind == ENDLESS for finding in report.findings):
                return

    def _case(self, runner: Runner, op: PlannedOp, planned: PlannedCheck, process: ForkedProcess) -> CaseReport:
        def refer(recipe: Recipe) -> Expectation:
            return process.run(expectation, str(op.manifest.root), recipe)

        findings, seconds = run_case(runner, op.op, planned, refer)
        return CaseReport(
            planned.number,
            call_text(op.op, planned.drawn.packed, planned.drawn.decision),
            tuple(dict.fromkeys(text for found in planned.decisions for text in variants_text(op.op, found))),
            tuple(findings),
            seconds,
            self._again(op.op.name, planned.number),
        )

    def _again(self, op: str, case: int) -> str:
        words = [
            "aotbuild", "check", *map(str, self.request.build.manifests), *self.request.words, "--arch",
            self.bundle.target.arch, "--op", op, "--seed", str(self.request.seed), "--case", str(case),
        ]  # fmt: skip
        return shlex.join(words)
