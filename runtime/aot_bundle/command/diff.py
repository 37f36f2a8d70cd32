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
@click.option("--variants", "every", is_flag=True, help="Every variant that differs by its name, and what it takes.")
@click.option("--isa", "code", is_flag=True, help="Compare the instructions of code objects that differ, too.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def diff(old: Path, new: Path, every: bool, code: bool, as_json: bool) -> None:
    """Tell how bundle NEW differs from bundle OLD: ops and contracts, variants, code, resources, and how it was built.

    It reads the indexes, which have the hash of all code, and with --isa the code objects (for AMD GPUs, with the extra
    `emulator`). Variants are told apart by op, kernel, axes, specialisation and config; those with a value that the
    other bundle has nothing of are counted together. Of two folders or files of several bundles, those of one name and
    architecture are compared.

    Exit status: 0 they are the same; 1 they differ; 2 one cannot be read, or wrong usage.

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
