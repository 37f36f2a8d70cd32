"""Part `commands`: execute every shown command line, in a copy of the checkout."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .exceptions import Action, Treated, treat, unused
from .running import Findings, Result, each
from .scratch import copy_template, make_template
from .setting import Setting, say
from .shown import Script, collect, shipped_commands

TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Outcome:
    """A command of a script: its treatment, and its result unless it was skipped."""

    shown: str
    treated: Treated
    result: Result | None


def commands(setting: Setting) -> Findings:
    """Return all command lines that are shown. Those shown together run in one copy of the checkout, in order."""
    scripts = collect(setting.checkout, shipped_commands())
    findings = Findings(f"{sum(len(_split(script)) for script in scripts)} commands of {len(scripts)} blocks")
    findings.failures += outdated(scripts)
    template = make_template(setting)

    def execute(numbered: tuple[int, Script]) -> list[Outcome]:
        number, script = numbered
        folder = copy_template(template, setting.work / f"script-{number}")
        try:
            return run_script(setting, script, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    for (_, script), outcomes in each(execute, enumerate(scripts), setting.jobs):
        _tell(script, outcomes)
        findings.failures += [
            f"{', '.join(script.sources)}: {fault}" for outcome in outcomes for fault in faults_of(outcome)
        ]
        findings.skipped += [text for outcome in outcomes for text in _left_out(outcome)]
    counts = Counter(findings.skipped)
    findings.skipped = [f"{text} ({count} times)" if count > 1 else text for text, count in counts.items()]
    return findings


def _left_out(outcome: Outcome) -> list[str]:
    if outcome.result is None:
        return [f"`{outcome.shown}`: {outcome.treated.skipped}"]
    appended = [rule for rule in outcome.treated.used if rule.action is Action.APPEND]
    return [f"`{outcome.shown}`: run with {rule.value}, {rule.reason}" for rule in appended]


def outdated(scripts: Iterable[Script]) -> list[str]:
    """Return a fault for each entry of the table that is for nothing shown."""
    shown = [command for script in scripts for command in _split(script)]
    outdated_entries = unused(shown)
    return [f"nothing that is shown matches /{entry.pattern}/ of the table of exceptions" for entry in outdated_entries]


def run_script(setting: Setting, script: Script, folder: Path) -> list[Outcome]:
    """Run the commands of a script in a folder, each whether or not those before it failed."""
    outcomes = []
    for command in _split(script):
        treated = treat(command)
        result = None if treated.skipped else setting.run("bash", "-c", treated.text, cwd=folder)
        outcomes.append(Outcome(command, treated, result))
    return outcomes


def faults_of(outcome: Outcome) -> list[str]:
    """Return at most one fault: the command failed, or was not refused as the table of exceptions says."""
    result, treated = outcome.result, outcome.treated
    if result is None:
        return []
    said = outcome.shown if treated.text == outcome.shown else f"{outcome.shown}`, run as `{treated.text}"
    if not treated.refused:
        return [f"`{said}`: exit status {result.status}\n{result.tail()}"] if result.status else []
    last = result.output.rstrip().rpartition(f"{TRACEBACK}")[2]
    if not result.status:
        return [f"`{said}` ended well, where the table of exceptions has it refused: {treated.refused}"]
    if not re.search(treated.refused, last) or (TRACEBACK in result.output and not treated.text.startswith("python ")):
        return [f"`{said}`: exit status {result.status}, without the error /{treated.refused}/\n{result.tail()}"]
    return []


def _split(script: Script) -> list[str]:
    return [command for line in script.lines for command in line.split(" && ")]


def _tell(script: Script, outcomes: list[Outcome]) -> None:
    say(f"    {script.sources[0]}{f' and {len(script.sources) - 1} more' if len(script.sources) > 1 else ''}")
    for outcome in outcomes:
        if outcome.result is None:
            say(f"      skipped  {outcome.shown}: {outcome.treated.skipped}")
            continue
        end = "FAILED" if faults_of(outcome) else "refused" if outcome.treated.refused else "ok"
        say(f"      {end:<8} {outcome.treated.text}  {outcome.result.seconds:.1f} s")
