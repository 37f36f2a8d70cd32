"""`aotbundle doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .failures import EXIT_FAILED
from .parameters import PATHS


@click.command()
@click.argument("bundle", required=False, type=PATHS)
def doctor(bundle: Path | None) -> None:
    """Check this machine: packages, drivers, devices and settings, and whether BUNDLE fits a device here.

    \b
    Examples:
      aotbundle doctor
      aotbundle doctor dist/attention-gfx942
    """
    from .diagnosis import diagnose

    found = diagnose(bundle)
    click.echo(found.text)
    sys.exit(0 if found.healthy else EXIT_FAILED)
