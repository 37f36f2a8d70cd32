"""The command: long runs of inputs that nobody would make, each reproducible by its seed and number."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .outcomes import Outcomes, table
from .progress import Progress

SHM = Path("/dev/shm")
count_option = click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
seed_option = click.option("--seed", type=int, default=1, show_default=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Try what nobody would make, and what must not happen, many times. Exit status: 0 all is well; 1 a fault."""


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory, where there is one."""
    return tempfile.TemporaryDirectory(prefix="aotbuild-fuzz-", dir=SHM if SHM.is_dir() else None)


def report(progress: Progress, outcomes: Outcomes) -> None:
    """Print what became of the inputs, and end."""
    click.echo(progress.summary(outcomes.total))
    for line in (*table(outcomes.counts), *outcomes.failures[:20]):
        click.echo(line)
    sys.exit(1 if outcomes.failures else 0)


def run_one_by_one(what: str, count: int, run: Callable[[Path, Outcomes], Any]) -> None:
    """Run what yields how many are done, in a folder of its own, and report."""
    progress, outcomes = Progress(what, count), Outcomes()
    with scratch() as folder:
        for done in run(Path(folder), outcomes):
            progress.at(done, len(outcomes.failures))
    report(progress, outcomes)


@main.command()
@count_option
@seed_option
def kills(count: int, seed: int) -> None:
    """Kill builds at times spread over their length; then build again, and compare."""
    from .kills import kill_builds

    run_one_by_one("kills", count, lambda folder, outcomes: kill_builds(count, seed, folder, outcomes))
