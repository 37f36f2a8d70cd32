"""`aotbundle sbom`."""

from __future__ import annotations

from pathlib import Path

import click

from aot_bundle.terminal import write

from .output import write_whole
from .parameters import BUNDLE


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.json",
    help="The file to write. [default: standard output]",
)  # fmt: skip
def sbom(bundle: Path, output: Path | None) -> None:
    """Write a bundle's bill of materials (SBOM) in CycloneDX 1.6 JSON.

    It lists code objects and other files with their SHA-256 and, from the bundle's provenance, sources, kernels and
    compilers. The result is reproducible.

    \b
    Example:
      aotbundle sbom dist/rows-gfx942 -o bom.json
    """
    from aot_runtime.bundle.files import source_of
    from aot_runtime.bundle.reading import read_index

    from .cyclonedx import bill_of

    source = source_of(bundle)
    text = bill_of(source, read_index(source))
    if output is None:
        write(*text.splitlines())
    else:
        write_whole(output, text)
