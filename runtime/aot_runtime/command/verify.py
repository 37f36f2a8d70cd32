"""`aotbundle verify`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .failures import EXIT_FAILED
from .parameters import PATHS


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=PATHS)
@click.option("--json", "as_json", is_flag=True, help="The faults of each bundle, as JSON.")
def verify(paths: tuple[Path, ...], as_json: bool) -> None:
    """Check bundles: index, files and hashes, and each variant against its code object. Needs no device.

    \b
    Examples:
      aotbundle verify dist/rows-gfx942
      aotbundle verify dist --json
    """
    import json

    from aot_runtime.bundle.verification import verify_bundle

    from .listing import find_bundles

    faults: dict[str, list[str]] = {}
    for folder in find_bundles(paths):
        found = faults[str(folder)] = verify_bundle(folder)
        if not as_json:
            for fault in found:
                click.echo(f"{folder}: {fault}")
            click.echo(f"{folder}: {f'{len(found)} fault(s)' if found else 'ok'}")
    if as_json:
        click.echo(json.dumps(faults, indent=1))
    sys.exit(EXIT_FAILED if any(faults.values()) else 0)
