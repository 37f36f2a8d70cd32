"""`python -m tests.rocm`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from .packages import SUITES, Rocm, Unavailable, install
from .session import installed


@click.group()
def main() -> None:
    """AMD's HIP and ROCr, of Debian's archive, for tests and trials. Nothing of the machine is changed."""


@main.command("install")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--release", type=click.Choice(list(SUITES)), default="6.4.3", show_default=True)
def install_command(folder: Path, release: str) -> None:
    """Fetch a release of HIP into FOLDER: 63 MB, 260 MB unpacked."""
    try:
        found = install(folder.absolute(), release)
    except Unavailable as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"HIP {release} is in {found.folder}; run programs with: python -m tests.rocm run {folder} PROGRAM …")


@main.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run_command(folder: Path, program: tuple[str, ...]) -> None:
    """Run PROGRAM with the libraries in FOLDER, by their own loader; `python` is the one that runs this.

    To give it GPUs, too: aotbundle emulate -- python -m tests.rocm run FOLDER PROGRAM …
    """
    rocm = Rocm(folder.absolute())
    own = rocm.folder / "usr" / "bin" / program[0]
    if program[0] == "python":
        command = rocm.python(*program[1:], executable=Path(sys.executable))
    else:
        command = rocm.command([own if own.exists() else program[0], *program[1:]])
    os.execv(command[0], command)


@main.command("selftests", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def selftests_command(options: tuple[str, ...]) -> None:
    """Run every selftest case of every shipped manifest for gfx942 on each release of HIP, by pytest with OPTIONS.

    Ends with status 1 if a case fails, or if a release cannot be had.
    """
    failed = [release for release in SUITES if not _selftests_pass(release, options)]
    if failed:
        raise click.ClickException(f"selftests fail on HIP {', '.join(failed)}")
    click.echo(f"all selftests pass on HIP {', '.join(SUITES)}")


def _selftests_pass(release: str, options: tuple[str, ...]) -> bool:
    try:
        installed(release)  # pytest would skip without it
    except Unavailable as error:
        raise click.ClickException(str(error)) from None
    tests = Path(__file__).with_name("test_selftests.py")
    command = ["pytest", "--on", "rocm", "--rocm", release, "-m", "slow or not slow", *options, str(tests)]
    return subprocess.run([sys.executable, "-m", *command]).returncode == 0


if __name__ == "__main__":
    main(prog_name="python -m tests.rocm")
