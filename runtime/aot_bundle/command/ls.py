"""`aotbundle ls`."""

from __future__ import annotations

from pathlib import Path

import click

from aot_bundle.terminal import write_json, write_lines
from aot_runtime.errors import AotError

from .parameters import BUNDLE


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, type=BUNDLE)
@click.option("--installed", is_flag=True, help="Also list the bundles installed by pip.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, sizes in bytes.")
def ls(paths: tuple[Path, ...], installed: bool, as_json: bool) -> None:
    """List bundles: their architecture, ops, variants, code objects and the size of their code.

    \b
    Examples:
      aotbundle ls dist
      aotbundle ls dist/attention-gfx942 dist/rows-gfx942 --json
      aotbundle ls --installed
    """
    from aot_bundle.text_table import terminal_width
    from aot_runtime.installed import installed_bundles

    from .listing import find_bundles, list_bundle, listing_data, listing_lines

    if not paths and not installed:
        raise click.UsageError("Missing argument 'BUNDLE|FOLDER…', or option '--installed'.")
    wheels = dict.fromkeys(Path(item.path) for item in installed_bundles()) if installed else {}
    found = [list_bundle(folder) for folder in find_bundles([*paths, *wheels])]
    if as_json:
        write_json(listing_data(found))
    else:
        write_lines(listing_lines(found, terminal_width()))
    if faults := [bundle.fault for bundle in found if bundle.fault]:
        raise AotError(*faults)
