"""`aotbundle diff`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from aot_bundle.terminal import error_lines, write_json, write_lines

from .failures import Unusable
from .parameters import BUNDLE

EXIT_DIFFERENT = 1


@click.command()
@click.argument("old", type=BUNDLE)
@click.argument("new", type=BUNDLE)
@click.option("--variants", "every", is_flag=True, help="List every variant that differs, with its resources.")
@click.option("--isa", "code", is_flag=True, help="Compare the instructions of code objects that differ, too.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def diff(old: Path, new: Path, every: bool, code: bool, as_json: bool) -> None:
    """Compare bundle NEW with bundle OLD: ops and contracts, variants, code, resources, and provenance.

    Reads the indexes, which have the hashes of all code, and with --isa also the code objects (AMD GPUs only, needs the
    extra `emulator`). Variants are matched by op, kernel, axes, specialisation and config. Variants with an axis value
    that the other bundle lacks are counted together. Given folders or files of several bundles, those of the same name
    and architecture are compared.

    Exit status: 0 no differences; 1 differences; 2 a bundle cannot be read, or wrong usage.

    \b
    Examples:
      aotbundle pack dist/first-gfx942 -o first.aotb
      aotbundle diff dist/first-gfx942 first.aotb
      aotbuild --arch gfx942 --filter 'op=softmax,dtype=half' manifests/rows.yaml -o half
      aotbundle diff dist/rows-gfx942 half/rows-gfx942 --variants
    """
    from aot_runtime.errors import AotError

    from .comparing.bundles import compare, find_pairs
    from .comparing.text import is_same, pairs_data, pairs_lines

    try:
        pairs = find_pairs(old, new)
        found = [compare(*pair, code) for pair in pairs.both]
    except (AotError, PermissionError) as error:
        raise Unusable(*error_lines(error)) from None
    if as_json:
        write_json(pairs_data(pairs, found))
    else:
        write_lines(pairs_lines(pairs, found, every))
    sys.exit(0 if is_same(pairs, found) else EXIT_DIFFERENT)
