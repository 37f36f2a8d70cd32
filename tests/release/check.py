"""The command: runs the parts of the check in order, and prints what they found and how long they took."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from .bundles import build, selftest, verify
from .commands import commands
from .packages import packages
from .running import Findings
from .setting import Setting, say
from .targets import plan, targets

CHECKOUT = Path(__file__).parents[2]
PARTS: Mapping[str, Callable[[Setting], Findings]] = {
    "plan": plan, "build": build, "verify": verify, "selftest": selftest, "targets": targets, "commands": commands,
    "packages": packages,
}  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=click.Choice(list(PARTS)), multiple=True, metavar="PART", help="May be repeated.")
@click.option(
    "-j", "--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default="cores", help="At a time."
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    metavar="FOLDER",
    help="Keep bundles and what was compiled there, and use what is there already. [default: a folder that is removed]",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    metavar="FOLDER",
    help="Keep what was compiled there instead. It is found by what it was compiled of.",
)
def main(only: tuple[str, ...], jobs: int, keep: Path | None, cache: Path | None) -> None:
    """Check what is shipped.

    \b
    plan      every manifest, for every architecture
    build     every manifest whole, for gfx942
    verify    the bundles
    selftest  the bundles, on the emulator
    targets   a little of each manifest, for the other architectures that are more than experimental
    commands  every command line that documents, help texts, docstrings and manifests show
    packages  from an empty environment: attention is built, signed, packed, installed by pip and called by its name

    `verify`, `selftest` and `commands` work on the bundles of `build`, which --keep can have kept. Nothing is written
    into the checkout. Exit status: 0 all is well; 1 a fault was found.
    """
    with tempfile.TemporaryDirectory(prefix="aotbuild-release-") as temporary:
        work = keep or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        setting = Setting(CHECKOUT, work, jobs, cache or work / "cache")
        found = check(setting, {name: PARTS[name] for name in PARTS if name in only or not only})
    sys.exit(1 if any(findings.failures for _, findings, _ in found) else 0)


def check(setting: Setting, parts: Mapping[str, Callable[[Setting], Findings]]) -> list[tuple[str, Findings, float]]:
    """Run parts; return (name, findings, seconds) of each. Prints progress, then a summary."""
    found = []
    for name, part in parts.items():
        say(f"== {name}")
        started = time.monotonic()
        try:
            findings = part(setting)
        except Exception as error:  # a part that cannot go on is a failure; the others still have something to say
            findings = Findings("stopped", [f"{type(error).__name__}: {error}"])
        found.append((name, findings, time.monotonic() - started))
    _summary(found, [name for name in PARTS if name not in parts])
    return found


def _summary(found: list[tuple[str, Findings, float]], left_out: list[str]) -> None:
    say("")
    for title, kind in (("Skipped", "skipped"), ("Failures", "failures")):
        listed = [f"  {name}: {text}" for name, findings, _ in found for text in getattr(findings, kind)]
        listed += [f"  {name}: the whole part" for name in left_out if kind == "skipped"]
        if listed:
            say("\n".join([f"{title}:", *listed, ""]))
    for name, findings, seconds in found:
        result = f"{len(findings.failures)} FAILED" if findings.failures else "ok"
        say(f"{name:<10}{result:<12}{seconds:>8.1f} s  {findings.done}")
    total = sum(seconds for *_, seconds in found)
    failures = sum(len(findings.failures) for _, findings, _ in found)
    say(f"{'all':<10}{f'{failures} FAILED' if failures else 'ok':<12}{total:>8.1f} s")
