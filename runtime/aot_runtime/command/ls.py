"""`aotbundle ls`."""

from __future__ import annotations

from pathlib import Path

import click

from aot_runtime.errors import AotError

from .parameters import PATHS


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=PATHS)
def ls(paths: tuple[Path, ...]) -> None:
    """List bundles: their architecture, ops, variants and sizes.

    \b
    Examples:
      aotbundle ls dist
      aotbundle ls dist/attention-gfx942 dist/rows-gfx942
    """
    from .tables import find_bundles, list_bundles

    text, faults = list_bundles(find_bundles(paths))
    click.echo(text)
    if faults:
        raise AotError("\n".join(faults))
