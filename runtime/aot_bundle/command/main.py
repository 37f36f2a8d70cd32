"""The `aotbundle` command. Subcommands import what they need when they run, to keep `--help` fast."""

from __future__ import annotations

import logging

import click

from aot_bundle.terminal import log_to_stderr
from aot_runtime import __version__

from .bench import bench
from .diff import diff
from .doctor import doctor
from .emulate import emulate
from .explain import explain
from .failures import Commands
from .isa import isa
from .keygen import keygen
from .kpack import kpack
from .ls import ls
from .merge import merge, split
from .pack import pack, unpack
from .profile import profile
from .report import report
from .sbom import sbom
from .selftest import selftest
from .show import show
from .sign import sign
from .stubs import stubs
from .verify import verify
from .wheel import wheel


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Log what the runtime does.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@click.version_option(__version__)
@click.pass_context
def main(ctx: click.Context, verbose: bool, quiet: bool) -> None:
    """Inspect and check bundles of compiled kernels, and check this machine.

    \b
    Examples:
      aotbundle ls dist
      aotbundle -v selftest dist/rows-gfx942 --device emulator --op softmax

    Exit status: 0 success; 1 a fault was found, or a bundle or call was rejected; 2 wrong usage.
    """
    ctx.obj = quiet
    if verbose:
        log_to_stderr("aotbundle", logging.DEBUG)


for command in (
    ls, show, isa, diff, verify, sign, keygen, selftest, explain, pack, unpack, merge, split, wheel, kpack,
    stubs, profile, emulate, report, sbom, bench, doctor,
):  # fmt: skip
    main.add_command(command)
