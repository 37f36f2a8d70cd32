"""`aotbundle emulate`."""

from __future__ import annotations

import re
import sys

import click

from .failures import Unusable


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-d", "--device", "devices", multiple=True, default=("mi300x",), show_default=True, metavar="GPU",
    help="An emulated GPU: mi210, mi300x, mi325x, mi355x, rx7900xtx, …, or a partition such as mi300x-cpx. May be "
    "repeated.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Stop at faults that a GPU may not detect: races, missing waits, bounds.")
@click.option("--ignore", "ignored", multiple=True, metavar="KIND", help="With --strict, a kind of fault to ignore.")
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), help="Time limit of a launch in seconds.")
@click.option("--profile", is_flag=True, help="Print a profile of each kernel to standard error at the end.")
@click.option(
    "--time",
    "kernels",
    metavar="REGEX",
    help="Model the time of kernels whose name matches this pattern, and print it to standard error.",
)
@click.option("--time-only", is_flag=True, help="With --time, only model these kernels: they produce no results.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def emulate(
    devices: tuple[str, ...], strict: bool, ignored: tuple[str, ...], time_limit: float | None, profile: bool,
    kernels: str | None, time_only: bool, program: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a HIP program, in any language, with emulated GPUs under AMD's own runtime.

    PROGRAM uses AMD's unmodified libamdhip64 and ROCr, which must be installed. No GPU or driver is needed. The first
    run needs a C compiler. Kernels are executed by the emulator, instruction by instruction. Faults of kernels are
    printed to standard error and end the program, as on hardware.

    \b
    Examples:
      aotbundle emulate -- rocminfo
      aotbundle emulate --device mi300x --device mi300x --strict -- python program.py
      aotbundle emulate --time 'matmul.*' --time-only -- python program.py
      aotbundle emulate --device rx7900xtx --profile -- ./program --its-own option

    Exit status: that of PROGRAM, or 128 plus the number of the signal that ended it; 2 if it cannot be run.
    """
    from aot_runtime.errors import DeviceError

    if time_only and kernels is None:
        raise Unusable("--time-only has no meaning without --time")
    try:
        from aot_emulator.kfd.emulated_program import run_program
        from aot_emulator.kfd.timed import Timed

        timed = None if kernels is None else Timed(_expression(kernels), time_only)
        status = run_program(program, devices, strict, ignored, time_limit, profile, timed)
    except DeviceError as error:
        raise Unusable(str(error)) from None
    sys.exit(status)


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise Unusable(f"--time {text}: no regular expression: {error}") from None
