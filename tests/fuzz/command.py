"""The command `python -m tests.fuzz`: long runs of unusual inputs, each reproducible by its seed and number."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from .outcomes import Outcomes, table

SHM = Path("/dev/shm")
count_option = click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
seed_option = click.option("--seed", type=int, default=1, show_default=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Try what nobody would make, and what must not happen, many times. Exit status: 0 all is well; 1 a fault."""


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory, where there is one."""
    return tempfile.TemporaryDirectory(prefix="aotbuild-fuzz-", dir=SHM if SHM.is_dir() else None)


def report(what: str, outcomes: Outcomes) -> None:
    """Print the outcomes, and exit."""
    click.echo(f"{outcomes.total:,} {what}")
    for line in (*table(outcomes.counts), *outcomes.failures[:20]):
        click.echo(line)
    sys.exit(1 if outcomes.failures else 0)


def run_one_by_one(what: str, count: int, run: Callable[[Path, Outcomes], Iterable[int]]) -> None:
    """Run each of `count` steps in a folder of its own, and report."""
    outcomes = Outcomes()
    with (
        scratch() as folder,
        suppress(KeyboardInterrupt),  # Ctrl-C: report what was done until then
        click.progressbar(run(Path(folder), outcomes), count, what, file=sys.stderr) as steps,
    ):
        for _ in steps:
            pass
    report(what, outcomes)


@main.command()
@count_option
@seed_option
def kills(count: int, seed: int) -> None:
    """Kill builds at times spread over their length; then build again, and compare."""
    from .kills import kill_builds

    run_one_by_one("kills", count, lambda folder, outcomes: kill_builds(count, seed, folder, outcomes))


keep_option = click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
    help="Keep inputs that fail there. [default: the corpus, tests/fuzz/corpus]",
)  # fmt: skip


def run_campaign(what: str, count: int, keep: Path | None, make: Callable[[Path], Any]) -> None:
    """Run inputs; keep those that fail, as small as they can be."""
    from .campaign import CHUNK, Failure, run_inputs
    from .corpus import CORPUS
    from .corpus import keep as keep_input
    from .watch import Watch

    failures: list[Failure] = []
    outcomes = Outcomes()
    with scratch() as name:
        folder = Path(name)
        with suppress(KeyboardInterrupt), click.progressbar(length=count, label=what, file=sys.stderr) as bar:
            for chunk in run_inputs(make, count, folder, failures.append):
                outcomes.counts += chunk.counts
                outcomes.failures += chunk.failures
                bar.update(CHUNK)
        (folder / "again").mkdir()
        handler, watch = make(folder / "again"), Watch()
        handler.warm_up()
        for failure in failures:
            given = _smaller(failure, handler, watch)
            click.echo(f"input {failure.number} failed: {failure.signature}\n{failure.text}", err=True)
            click.echo(f"kept {keep_input(keep or CORPUS / what, failure.signature, given, failure.text)}")
    report(what, outcomes)


def _smaller(failure: Any, handler: Any, watch: Any) -> Any:
    """Reduce an input that failed. One that ended its process is kept whole, for it would end this one."""
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
    @seed_option
    @keep_option
    def command(count: int, seed: int, keep: Path | None) -> None:
        handler = getattr(import_module(f".{name}", __package__), name.title().replace("_", ""))
        run_campaign(name, count, keep, partial(handler, seed=seed))

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
def sharing(count: int) -> None:
    """Build side by side, eight at once, with one cache; compare with builds on their own."""
    from .sharing import share_cache

    run_one_by_one("rounds", count, lambda folder, outcomes: share_cache(count, folder, outcomes))


def run_drawn(what: str, count: int, seed: int, make: Callable[[Path], Any]) -> None:
    """Check what hypothesis draws, in a folder in memory, and report."""
    from .drawn import try_drawn

    with scratch() as folder, click.progressbar(length=count, label=what, file=sys.stderr) as bar:
        handler = make(Path(folder))
        outcomes = try_drawn(handler.strategy(), handler.check, count, seed, lambda: bar.update(1))
    report(what, Outcomes(outcomes))


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
