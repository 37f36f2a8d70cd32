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
    help="Where it is written. [default: printed]",
)  # fmt: skip
def sbom(bundle: Path, output: Path | None) -> None:
    """Write a bundle's bill of materials (SBOM), as JSON of CycloneDX 1.6.

    It has the code objects and the other files with their SHA-256, the sources and kernels that they were made of, and
    the compilers, as far as the bundle's provenance says. The same bundle gives the same text.

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
