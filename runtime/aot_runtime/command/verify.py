"""`aotbundle verify`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .failures import EXIT_FAILED
from .parameters import PATHS


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=PATHS)
def verify(paths: tuple[Path, ...]) -> None:
    """Check bundles: index, files and hashes, and each variant against its code object. Needs no device.

    \b
    Examples:
      aotbundle verify dist/rows-gfx942
      aotbundle verify dist
    """
    from aot_runtime.bundle.verification import verify_bundle

    from .tables import find_bundles

    faulty = False
    for folder in find_bundles(paths):
        faults = verify_bundle(folder)
        faulty |= bool(faults)
        for fault in faults:
            click.echo(f"{folder}: {fault}")
        click.echo(f"{folder}: {f'{len(faults)} fault(s)' if faults else 'ok'}")
    sys.exit(EXIT_FAILED if faulty else 0)
