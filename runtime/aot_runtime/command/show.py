"""`aotbundle show`."""

from __future__ import annotations

from pathlib import Path

import click

from .parameters import BUNDLE, OpName


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("--op", type=OpName(), metavar="OP", help="Only this op.")
@click.option("--variants", "every", is_flag=True, help="Every variant, instead of ranges by op and config.")
@click.option("--json", "as_json", is_flag=True, help="Every variant, as JSON.")
def show(bundle: Path, op: str | None, every: bool, as_json: bool) -> None:
    """Show what a bundle's kernels take: registers, spills, LDS, waves per SIMD and code size, by op and config.

    In SPILLS, VGPRs, and SGPRs after a plus; in WAVES, waves per SIMD, of variants with what limits them; FILE is the
    code object. A terminal of 110 columns, and a pipe, get more columns of --variants.

    \b
    Examples:
      aotbundle show dist/rows-gfx942
      aotbundle show dist/rows-gfx942 --op softmax --variants
      aotbundle show dist/attention-gfx942 --op flash_attention --json
    """
    import json

    from aot_runtime.bundle.reading import read_index
    from aot_runtime.text_table import terminal_width

    from .tables import summary_text, variants_text
    from .variants import bundle_data, only, variant_rows

    index = only(read_index(bundle), op)
    rows = variant_rows(index)
    if as_json:
        click.echo(json.dumps(bundle_data(index, rows), indent=1))
    else:
        click.echo((variants_text if every else summary_text)(index, rows, terminal_width()))
