"""`aotbundle doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from aot_bundle.terminal import write, write_json

from .failures import EXIT_FAILED
from .parameters import BUNDLE


@click.command()
@click.argument("bundle", required=False, type=BUNDLE)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(bundle: Path | None, as_json: bool) -> None:
    """Check this machine: packages, drivers, devices and settings, and whether BUNDLE fits a device here.

    \b
    Examples:
      aotbundle doctor
      aotbundle doctor dist/attention-gfx942 --json
    """
    from .diagnosis import diagnose

    found = diagnose(bundle)
    if as_json:
        write_json(found.data)
    else:
        write(*found.lines)
    sys.exit(0 if found.healthy else EXIT_FAILED)
