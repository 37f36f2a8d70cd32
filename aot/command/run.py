"""`aotbuild run --no-compile`: runs a program and proves that it compiles no Triton kernel."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot.command.parameters import EXIT_FAILED, OneArch
from aot.command.programs import print_exports, run_program, triton_target
from aot.targets import Target
from aot_bundle.terminal import write

if TYPE_CHECKING:
    from aot_capture.report import Report

EPILOG = """\b
Examples:
  aotbuild run --no-compile -- python serve.py --model m
  aotbuild run --no-compile --cache dist/kernels-gfx942-cache --kernels kernels.jsonl -- python serve.py
  aotbuild run --no-compile --warn --json report.json -- python serve.py
  aotbuild run --no-compile --warn --arch gfx942 --kernels kernels.jsonl -- python -m serve.dry_run

Exit status: that of the program; 1 if something would have compiled, without --warn, or if Triton looked nothing up;
2 wrong usage.
"""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.option("--no-compile", is_flag=True, required=True, help="Fail where Triton would compile a kernel.")
@click.option("--warn", is_flag=True, help="Count what would compile, and let it compile.")
@click.option(
    "--cache", type=click.Path(exists=True, path_type=Path), metavar="FOLDER|ARCHIVE",
    help="Read kernels from here instead of Triton's cache. Nothing is written to it.",
)  # fmt: skip
@click.option(
    "--kernels", type=click.Path(exists=True, path_type=Path, dir_okay=False), metavar="FILE",
    help="Capture file: an error says what differs from the nearest kernel in it.",
)  # fmt: skip
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write a report to this file."
)
@click.option(
    "--arch", "target", type=OneArch(), help="Run without a GPU, as on this architecture: launches do nothing."
)
@click.option("--env", "exports", is_flag=True, help="Print the environment that does this, for a shell; run nothing.")
def run(
    program: tuple[str, ...], no_compile: bool, warn: bool, cache: Path | None, kernels: Path | None,
    json_path: Path | None, target: Target | None, exports: bool,
) -> None:  # fmt: skip
    """Run PROGRAM and fail where Triton would compile a kernel, in any of its processes.

    The error names the kernel, its file and line, the line that launches it, and with --kernels what differs from the
    captured kernel that is nearest. Results of autotuners are read from the cache, too.
    """
    from aot_capture import variables
    from aot_capture.report import read_report

    if bool(program) == exports:
        raise click.UsageError("a program, or --env, is needed" if not exports else "--env runs no program")
    if exports and cache is not None and not cache.is_dir():
        raise click.UsageError("--env needs a folder as --cache: an archive is unpacked for one run only")
    if os.environ.get("TRITON_CACHE_MANAGER", variables.MANAGER) != variables.MANAGER:
        raise click.UsageError("TRITON_CACHE_MANAGER is set: this command needs that place for its own")
    settings = {variables.GUARD: variables.WARN if warn else variables.RAISE, "TRITON_CACHE_MANAGER": variables.MANAGER}
    if kernels is not None:
        settings[variables.GUARD_KERNELS] = str(kernels.absolute())
    if target is not None:
        settings[variables.NO_GPU] = triton_target(target)
    with tempfile.TemporaryDirectory(prefix="aotbuild-run-") as scratch, _opened(cache) as folder:
        if folder is not None:
            settings[variables.GUARD_CACHE] = str(folder)
        if exports:
            print_exports(settings)
            return
        if folder is not None:  # what an earlier run left in Triton's own cache would make the proof void
            settings["TRITON_CACHE_DIR"] = str(Path(scratch, "triton"))
        log = Path(scratch, "log")
        status = run_program(program, {**settings, variables.GUARD_LOG: str(log)})
        report = read_report(str(log))
    if json_path is not None:
        json_path.write_text(
            json.dumps({"command": list(program), "status": status, **report.as_json()}, indent=1) + "\n"
        )
    _print(report)
    void = not report.events
    sys.exit(status or (EXIT_FAILED if void or (report.misses and not warn) else 0))


@contextmanager
def _opened(cache: Path | None) -> Iterator[Path | None]:
    """Yield the folder of a cache in Triton's layout: of such a folder itself, or of a shipped cache, once verified."""
    from aot.capture.shipped_cache import KERNELS, open_shipped, unpack_shipped
    from aot_capture.ingredients import MANIFEST
    from aot_runtime.errors import AotError

    if cache is None or (cache.is_dir() and not (cache / MANIFEST).exists()):
        yield cache and cache.absolute()
        return
    try:
        shipped = open_shipped(cache)
        shipped.check()
        if cache.is_dir():
            yield (cache / KERNELS).absolute()
            return
        unpacked = tempfile.TemporaryDirectory(prefix="aotbuild-cache-")
        unpack_shipped(shipped, Path(unpacked.name))
    except AotError as error:
        raise click.UsageError(str(error)) from None
    with unpacked:
        yield Path(unpacked.name, KERNELS)


def _print(report: Report) -> None:
    from aot_capture.report import AUTOTUNE, INGREDIENTS, KERNEL, MODULE

    for event in [*report.of(INGREDIENTS, False), *report.misses, *report.of(AUTOTUNE, False)]:
        write(*str(event).splitlines(), err=True)
    hits = ", ".join(f"{len(report.of(what, True))} {what}s" for what in (KERNEL, MODULE, AUTOTUNE))
    if not report.events:
        text = "Triton looked nothing up in its cache: this run proves nothing"
    else:
        text = f"{len(report.misses)} would compile; from the cache: {hits}; processes: {report.processes}"
    write(f"aotbuild run: {text}", err=True)
