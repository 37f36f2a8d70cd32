"""The command: long runs of inputs that nobody would make, each reproducible by its seed and number."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from .outcomes import Outcomes, table
from .progress import Progress

SHM = Path("/dev/shm")
count_option = click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
minutes_option = click.option("--minutes", type=float, help="End after so many minutes, if it is not done by then.")
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


def run_one_by_one(what: str, count: int, minutes: float | None, run: Callable[[Path, Outcomes], Any]) -> None:
    """Run what yields how many are done, in a folder of its own, and report."""
    progress, outcomes = Progress(what, count, minutes), Outcomes()
    with scratch() as folder, suppress(KeyboardInterrupt):  # Ctrl-C: what was done so far is reported
        for done in run(Path(folder), outcomes):
            if progress.at(done, len(outcomes.failures)):
                break
    report(progress, outcomes)


@main.command()
@count_option
@minutes_option
@seed_option
def kills(count: int, minutes: float | None, seed: int) -> None:
    """Kill builds at times spread over their length; then build again, and compare."""
    from .kills import kill_builds

    run_one_by_one("kills", count, minutes, lambda folder, outcomes: kill_builds(count, seed, folder, outcomes))


jobs_option = click.option(
    "-j", "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Worker processes."
)
keep_option = click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
    help="Keep inputs that fail there. [default: the corpus, tests/fuzz/corpus]",
)  # fmt: skip


def run_campaign(
    what: str, count: int, minutes: float | None, jobs: int, keep: Path | None, make: Callable[[Path], Any]
) -> None:
    """Run inputs in workers; keep those that fail, as small as they can be."""
    from .campaign import Campaign, Failure
    from .corpus import CORPUS
    from .corpus import keep as keep_input
    from .watch import Watch

    failures: list[Failure] = []

    def failed(failure: Failure) -> None:
        failures.append(failure)
        click.echo(f"input {failure.number} failed: {failure.signature}\n{failure.text}", err=True)

    progress = Progress(what, count, minutes)
    with scratch() as name:
        folder = Path(name)
        campaign = Campaign(make, count, jobs, folder, failed)
        with suppress(KeyboardInterrupt):  # Ctrl-C: what was done so far is reported
            for done in campaign.run():
                if progress.at(done, len(campaign.outcomes.failures)):
                    break
        (folder / "again").mkdir()
        handler, watch = make(folder / "again"), Watch()
        handler.warm_up()
        for failure in failures:
            given = _smaller(failure, handler, watch)
            click.echo(f"kept {keep_input(keep or CORPUS / what, failure.signature, given, failure.text)}")
    report(progress, campaign.outcomes)


def _smaller(failure: Any, handler: Any, watch: Any) -> Any:
    """What failed, as small as it can be; one that ended its process as it is, for it would end this one."""
    from .campaign import attempt
    from .corpus import smaller

    if failure.given is None:
        return handler.draw(failure.number)
    return smaller(failure.given, lambda tried: attempt(handler, watch, tried)[2] == failure.signature)


CAMPAIGNS = {
    "bundles": "Open, verify and show mutated bundles, plan calls of them, and run the self-tests of some.",
    "archives": "Open, verify and run mutated archives, of one bundle and of several; pack anew those that are whole.",
    "names": "Open and make archives whose files' names collide.",
    "policies": "Make trust policies in a file and in a program, and compare what is taken, and what it decides.",
    "manifests": "Read and plan mutated manifests, as --dry-run does.",
    "calls_files": "Read mutated calls files, and add a call to those that are taken.",
    "terminals": "Run the commands on texts that a terminal would obey, in bundles, names, manifests and failures.",
}
"""Modules that make inputs, each with a class of the same name in capitals, and what is done with the inputs."""


def _campaign(name: str, doc: str) -> click.Command:
    @click.command(name.replace("_", "-"), help=doc)
    @count_option
    @minutes_option
    @seed_option
    @jobs_option
    @keep_option
    def command(count: int, minutes: float | None, seed: int, jobs: int, keep: Path | None) -> None:
        handler = getattr(import_module(f".{name}", __package__), name.title().replace("_", ""))
        run_campaign(name, count, minutes, jobs, keep, lambda folder: handler(folder, seed))

    return command


for _name, _doc in CAMPAIGNS.items():
    main.add_command(_campaign(_name, _doc))


@main.command()
def seeds() -> None:
    """Build the bundles that `bundles` begins with, and put them into tests/fuzz/seeds."""
    from .seeding import make_seeds

    with scratch() as folder:
        make_seeds(Path(folder))


@main.command()
@count_option
def calls(count: int) -> None:
    """Make calls over the double of libamdhip64, which needs a C compiler, and see that nothing grows."""
    from .calls import run_over_double

    with scratch() as folder:
        growth = run_over_double(Path(folder), count)
    for line in (*growth.lines(), *growth.faults()):
        click.echo(line)
    sys.exit(1 if growth.faults() else 0)


@main.command()
@count_option
@seed_option
@click.option("--threads", type=click.IntRange(1), default=12, show_default=True)
@click.option("--seconds", type=float, default=30.0, show_default=True, help="End after so many seconds.")
def threads(count: int, seed: int, threads: int, seconds: float) -> None:
    """Random steps of many threads on one device over the double of libamdhip64, which leave nothing behind."""
    from .threads import run_over_double

    with scratch() as folder:
        end(run_over_double(Path(folder), "run_threads", threads, seconds, seed, count))


@main.command()
@count_option
@seed_option
def interrupts(count: int, seed: int) -> None:
    """Random steps over the double of libamdhip64 that are interrupted so many times, and leave nothing behind."""
    from .threads import run_over_double

    with scratch() as folder:
        end(run_over_double(Path(folder), "run_interrupted", count, seed))


def end(done: Any) -> None:
    """Print what was done and its faults, and end."""
    for line in (*done.lines(), *done.faults()):
        click.echo(line)
    sys.exit(1 if done.faults() else 0)


@main.command()
@count_option
@minutes_option
def sharing(count: int, minutes: float | None) -> None:
    """Build side by side, eight at once, with one cache; compare with builds on their own."""
    from .sharing import share_cache

    run_one_by_one("rounds", count, minutes, lambda folder, outcomes: share_cache(count, folder, outcomes))


def run_drawn(what: str, count: int, seed: int, make: Callable[[Path], Any]) -> None:
    """Check what hypothesis draws, in a folder in memory, and report."""
    from .drawn import try_drawn

    progress = Progress(what, count)
    with scratch() as folder:
        handler = make(Path(folder))
        outcomes = try_drawn(handler.strategy(), handler.check, count, seed, lambda done: progress.at(done, 0))
    report(progress, Outcomes(outcomes))


@main.command()
@count_option
@seed_option
def folders(count: int, seed: int) -> None:
    """Use caches and outputs with links, pipes and folders in them, which come and go: nothing outside may change."""
    from .folders import Folders

    run_drawn("folders", count, seed, Folders)


@main.command()
@count_option
@seed_option
def entries(count: int, seed: int) -> None:
    """Read forged entries of a cache, of kernels and of vectors; what is taken has to make a bundle without faults."""
    from .entries import Entries

    run_drawn("entries", count, seed, Entries)
