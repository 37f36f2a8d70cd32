"""`aotbundle emulate`."""

from __future__ import annotations

import re
import sys

import click

from .failures import Unusable


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-d", "--device", "devices", multiple=True, default=("mi300x",), show_default=True, metavar="GPU",
    help="A GPU of the machine, or one for each time that this is given: mi210, mi300x, mi325x, mi355x, rx7900xtx, …; "
    "mi300x-cpx is a partition of one.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Stop at what a GPU would let pass: races, missing waits, bounds.")
@click.option("--ignore", "ignored", multiple=True, metavar="KIND", help="With --strict, a kind of fault to pass over.")
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), help="Seconds that a launch may take.")
@click.option("--profile", is_flag=True, help="At the end, what each kernel did, on standard error.")
@click.option(
    "--time",
    "kernels",
    metavar="REGEX",
    help="Model the time of dispatches of kernels whose name has this, and say it on standard error.",
)
@click.option("--time-only", is_flag=True, help="With --time, do not run them as well: they leave no results.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def emulate(
    devices: tuple[str, ...], strict: bool, ignored: tuple[str, ...], time_limit: float | None, profile: bool,
    kernels: str | None, time_only: bool, program: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a HIP program, in any language, with emulated GPUs under AMD's own runtime.

    PROGRAM has AMD's unmodified libamdhip64 and ROCr below it, which have to be installed; no GPU and no driver are
    needed, but a C compiler is when this is first used. Its kernels are executed by the emulator, instruction by
    instruction. What a kernel does wrong is said on standard error, and ends the program as on hardware.

    \b
    Examples:
      aotbundle emulate -- rocminfo
      aotbundle emulate --device mi300x --device mi300x --strict -- python program.py
      aotbundle emulate --time 'matmul.*' --time-only -- python program.py
      aotbundle emulate --device rx7900xtx --profile -- ./program --its-own option

    Exit status: that of PROGRAM, or 128 and the number of the signal that ended it; 2 where it cannot be run.
    """
    from aot_runtime.errors import DeviceError

    if time_only and kernels is None:
        raise Unusable("--time-only has no meaning without --time")
    try:
        from aot_emulator.kfd.running import run_program
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
