"""`aotbundle merge` and `aotbundle split`."""

from __future__ import annotations

from pathlib import Path

import click

from aot_bundle.terminal import write

from .failures import Failure
from .parameters import PATHS


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=PATHS)
@click.option("-o", "--output", required=True, type=PATHS, help="The archive.")
@click.option("--compress", is_flag=True, help="Compress the code objects, as pack does. Needs the extra zstd.")
def merge(paths: tuple[Path, ...], output: Path, compress: bool) -> None:
    """Merge bundles of one name and version, for different architectures, into one file that opens like a bundle.

    Opening the file opens the bundle for the device's architecture, and reads nothing of the others. Commands for a
    single bundle take the path OUTPUT/ARCH. Signatures stay valid. The result is reproducible. A bundle with faults
    (see `verify`) is not merged. An older archive is replaced.

    \b
    Examples:
      aotbuild --arch gfx942,gfx1201 manifests/first.yaml
      aotbundle merge dist/first-gfx942 dist/first-gfx1201 -o first.aotb
      aotbundle show first.aotb/gfx942
    """
    from aot_bundle.packing import merge_bundles
    from aot_runtime.formats import size_text

    from .listing import find_bundles

    try:
        taken = merge_bundles(find_bundles(paths), output, compress)
        size = output.stat().st_size
    except OSError as error:
        raise Failure(f"{error.filename or output}: {error.strerror or error}") from None
    write(f"{output}: {', '.join(taken)}, {size_text(size)}")


@click.command()
@click.argument("archive", type=PATHS)
@click.option("-o", "--output", type=PATHS, help="The folder. [default: named like the archive, next to it]")
def split(archive: Path, output: Path | None) -> None:
    """Write each bundle of ARCHIVE, for several architectures, to its own archive in a new folder.

    The archives are identical to those that `aotbundle pack` makes of the merged bundles. `unpack` writes folders
    instead.

    \b
    Examples:
      aotbuild --arch gfx942,gfx1201 --pack manifests/first.yaml
      aotbundle split dist/first.aotb -o first-split
      aotbundle merge first-split -o first.aotb
    """
    from aot_bundle.packing import split_bundles

    folder = output or archive.absolute().with_suffix("")
    try:
        written = split_bundles(archive, folder)
    except OSError as error:
        raise Failure(f"{error.filename or folder}: {error.strerror or error}") from None
    write(*map(str, written))
