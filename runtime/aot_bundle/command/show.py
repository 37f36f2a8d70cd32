"""`aotbundle show`."""

from __future__ import annotations

from pathlib import Path

import click

from aot_bundle.terminal import write, write_json, write_lines

from .parameters import BUNDLE, OpName, policy_of, trust_option


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("--op", type=OpName(), metavar="OP", help="Only this op.")
@click.option("--variants", "every", is_flag=True, help="List every variant instead of ranges by op and config.")
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print variants, provenance and signature as JSON.")
def show(bundle: Path, op: str | None, every: bool, trust: Path | None, as_json: bool) -> None:
    """Show the resources of a bundle's kernels: registers, spills, LDS, waves per SIMD and code size.

    Resources are grouped by op and config, after the bundle's provenance and signature.

    SPILLS lists VGPRs, and SGPRs after a plus. WAVES is waves per SIMD, for single variants with the limiting resource.
    FILE is the code object. With --variants, a pipe or a terminal of 110 columns gets more columns.

    \b
    Examples:
      aotbundle show dist/rows-gfx942
      aotbundle show dist/rows-gfx942 --op softmax --variants
      aotbundle show dist/attention-gfx942 --op flash_attention --json
    """
    from dataclasses import asdict

    from aot_bundle.text_table import terminal_width
    from aot_runtime.bundle.reading import read_index

    from .origin import origin_lines, signature_of
    from .tables import head_text, summary_lines, variants_lines
    from .variants import bundle_data, only, variant_rows

    index = only(read_index(bundle), op)
    rows = variant_rows(index)
    signature = signature_of(bundle, policy_of(trust))
    if as_json:
        write_json({**bundle_data(index, rows), "signature": asdict(signature)})
    else:
        write(head_text(index), *origin_lines(index, signature))
        write_lines((variants_lines if every else summary_lines)(index, rows, terminal_width()))
