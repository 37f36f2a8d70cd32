"""`aotbundle show`."""

from __future__ import annotations

from pathlib import Path

import click

from .parameters import PATHS


@click.command()
@click.argument("bundle", type=PATHS)
@click.option("--op", help="Only the variants of this op.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def show(bundle: Path, op: str | None, as_json: bool) -> None:
    """Show every variant of a bundle: its axis values, config, registers, spills, LDS, waves per SIMD and code size.

    In SPILLS, VGPRs and SGPRs; in WAVES, waves per SIMD and what limits them; FILE is the code object.

    \b
    Examples:
      aotbundle show dist/rows-gfx942
      aotbundle show dist/attention-gfx942 --op flash_attention --json
    """
    import json

    from aot_runtime.bundle.reading import read_index

    from .tables import bundle_data, bundle_text, variant_rows

    index = read_index(bundle)
    rows = variant_rows(index, op)
    click.echo(json.dumps(bundle_data(index, rows), indent=1) if as_json else bundle_text(index, rows))
