"""The `aotbundle` command. Subcommands import what they need when they run, to keep `--help` fast."""

from __future__ import annotations

import logging
from typing import Any

import click

from aot_bundle.terminal import error_lines, log_to_stderr
from aot_runtime import __version__
from aot_runtime.errors import AotError

from .failures import Failure
from .lazy_group import LazyGroup

COMMANDS = {
    "ls": ("ls", "List bundles with their ops, variants and the size of their code."),
    "show": ("show", "Show registers, spills, LDS, occupancy and code size of kernels."),
    "isa": ("isa", "Count the instructions of kernels, or check requirements on them."),
    "diff": ("diff", "Compare two bundles."),
    "verify": ("verify", "Check files, hashes, code objects and signatures of bundles."),
    "sign": ("sign", "Sign bundles."),
    "keygen": ("keygen", "Make a key that signs bundles."),
    "selftest": ("selftest", "Make the calls whose results a bundle has, and compare."),
    "explain": ("explain", "Explain which variants a call gets, or why it is refused."),
    "pack": ("pack", "Put a bundle into one file."),
    "unpack": ("pack", "Write the bundle in a file to a folder."),
    "merge": ("merge", "Put bundles for several architectures into one file."),
    "split": ("merge", "Split a file for several architectures into one file each."),
    "wheel": ("wheel", "Make a wheel of bundles."),
    "kpack": ("kpack", "Write and read AMD's kpack archives."),
    "stubs": ("stubs", "Write type stubs of bundles for editors and type checkers."),
    "profile": ("profile", "Count what a call's kernels do, on the emulator."),
    "emulate": ("emulate", "Run a HIP program with emulated GPUs under AMD's runtime."),
    "report": ("report", "Write the contents of a bundle as one HTML page."),
    "sbom": ("sbom", "Write a bundle's bill of materials (CycloneDX)."),
    "bench": ("bench", "Measure this device."),
    "doctor": ("doctor", "Check packages, drivers, devices and settings of this machine."),
}


class BundleCommands(LazyGroup):
    """Commands whose typed errors are printed as one line."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Drop a final option without a value while a shell completes the value, as click's parser refuses it."""
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and command is not None and rest and _takes_value(command, rest[-1]):
            rest = rest[:-1]
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (AotError, PermissionError) as error:
            raise Failure(*error_lines(error)) from error


def _takes_value(command: click.Command, word: str) -> bool:
    options = [item for item in command.params if isinstance(item, click.Option) and word in item.opts]
    return any(not (option.is_flag or option.count) for option in options)


@click.group(
    cls=BundleCommands,
    package="aot_bundle.command",
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
