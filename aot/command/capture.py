"""`aotbuild capture`: notes the Triton kernels that a program compiles."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot.command.parameters import EXIT_FAILED, OneArch
from aot.command.programs import print_exports, run_program, triton_target
from aot.targets import Target
from aot_bundle.terminal import write, write_error
from aot_runtime.contract.arch import HIP

if TYPE_CHECKING:
    from aot_capture.records import Capture

EPILOG = """\b
Examples:
  aotbuild capture -o kernels.jsonl -- python serve.py --model m
  aotbuild capture -o kernels.jsonl --append -- python train.py
  eval "$(aotbuild capture -o /data/kernels.jsonl --env)"

The file holds the source of the kernels, unless --no-source is given. Exit status: that of the program; 1 if the
file cannot be read afterwards; 2 wrong usage.
"""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="File to write.")
@click.option("--append", is_flag=True, help="Add to a file that exists.")
@click.option(
    "--no-source", is_flag=True, help="Keep hashes of the kernels' source only: the builder needs the sources."
)
@click.option(
    "--arch", "target", type=OneArch(), help="Run without a GPU, as on this architecture: launches do nothing."
)
@click.option("--env", "exports", is_flag=True, help="Print the environment that captures, for a shell; run nothing.")
def capture(
    program: tuple[str, ...], output: Path, append: bool, no_source: bool, target: Target | None, exports: bool
) -> None:
    """Run PROGRAM and note every Triton kernel that it compiles or loads, in all of its processes.

    Only programs under a Python of 3.9 or later with Triton 3.4 to 3.9 are seen. A launch costs nothing more, and a
    kernel that is compiled less than a millisecond.
    """
    from aot_capture import inductor, variables

    settings = {variables.CAPTURE: str(output.absolute())}
    if no_source:
        settings[variables.NO_SOURCE] = "1"
    if target is not None:
        settings[variables.NO_GPU] = triton_target(target)
    if bool(program) == exports:
        raise click.UsageError("a program, or --env, is needed" if not exports else "--env runs no program")
    if exports:
        print_exports(settings)
        return
    if output.exists() and not append:
        raise click.UsageError(f"{output} exists; --append adds to it")
    try:
        os.close(os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))  # it holds the program's source
    except OSError as error:
        raise click.UsageError(f"{output}: {error.strerror}") from None
    if inductor.inductor_is_warm(os.environ):
        write(
            f"aotbuild capture: Inductor's cache in {inductor.inductor_cache(os.environ)} is warm: kernels in it "
            "are not seen. Set TORCHINDUCTOR_CACHE_DIR to an empty folder to see them.",
            err=True,
        )
    status = run_program(program, settings)
    sys.exit(_summarise(output) or status)


def _summarise(path: Path) -> int:
    from aot_capture.records import CaptureError, read_capture

    try:
        found = read_capture(path)
    except CaptureError as error:
        write_error("aotbuild", str(error))
        return EXIT_FAILED
    hits = sum(kernel.cache_hit for kernel in found.kernels)
    text = f"{len(found.kernels)} kernels{f', {hits} of them from a cache' if hits else ''}"
    write(f"aotbuild capture: {text}, {len(found.autotunes)} autotuners' results in {path}", err=True)
    write(*(f"  {line}" for line in _remarks(found)), err=True)
    return 0


def _remarks(found: Capture) -> list[str]:
    lines = [*found.notes, *(f"not recorded: {each.name}: {each.reason}" for each in found.unrecorded)]
    if not found.kernels:
        lines.append("No kernel was compiled. Was the program run by a Python with Triton, and without -I, -E or -S?")
    unknown = [kernel.name for kernel in found.kernels if not kernel.rederived]
    if unknown:
        lines.append(f"Triton's key cannot be derived for {', '.join(sorted(set(unknown)))}")
    if any(kernel.target[0] == HIP.name for kernel in found.kernels):
        for installed in found.installations:
            if installed.triton.startswith(("3.4.", "3.5.", "3.6.", "3.7.", "3.8.")):
                lines.append(
                    f"Triton {installed.triton} hashes the path of its folder for AMD GPUs: what is built fits only "
                    f"where Triton is in {installed.root}"
                )
                break
    return lines
