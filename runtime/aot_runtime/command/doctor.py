"""`aotbundle doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

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
    import json

    from .diagnosis import diagnose

    found = diagnose(bundle)
    click.echo(json.dumps(found.data, indent=1) if as_json else found.text)
    sys.exit(0 if found.healthy else EXIT_FAILED)
