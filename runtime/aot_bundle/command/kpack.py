"""`aotbundle kpack`."""

from __future__ import annotations

from pathlib import Path

import click

from aot_bundle import terminal

from .failures import Failure
from .parameters import PATHS


@click.group()
def kpack() -> None:
    """Write and read AMD's kpack archives.

    \b
    Examples:
      aotbundle kpack write dist/rows-gfx942 -o rows_gfx942.kpack
      aotbundle kpack ls rows_gfx942.kpack
    """


@kpack.command()
@click.argument("bundle", type=PATHS)
@click.option("-o", "--output", required=True, type=PATHS, help="The archive.")
@click.option("--uncompressed", is_flag=True, help="Store the code objects as they are.")
def write(bundle: Path, output: Path, uncompressed: bool) -> None:
    """Write the code objects of BUNDLE to a kpack archive.

    Code objects are listed under the names of their variants in the bundle's C header, with the kernel's symbol,
    threads, LDS and kernarg bytes, and the SHA-256 of the code object. The format has no place for grids and kernarg
    layouts. A bundle with faults (see `verify`) is not written. Compression needs the extra `zstd`.

    \b
    Examples:
      aotbundle kpack write dist/rows-gfx942 -o rows_gfx942.kpack
      aotbundle kpack write dist/rows-gfx942 -o rows_gfx942.kpack --uncompressed
    """
    from aot_bundle.kpack_writer import write_kpack
    from aot_runtime.formats import size_text

    try:
        size = write_kpack(bundle, output, not uncompressed)
    except OSError as error:
        raise Failure(f"{error.filename or output}: {error.strerror or error}") from None
    terminal.write(f"{output}: {size_text(size)}")


@kpack.command()
@click.argument("archive", type=PATHS)
@click.option("--json", "as_json", is_flag=True, help="As JSON, sizes in bytes.")
def ls(archive: Path, as_json: bool) -> None:
    """List the contents of a kpack archive: names, architectures, sizes of code objects, and symbols if recorded.

    Reads the table of contents only.

    \b
    Examples:
      aotbundle kpack write dist/rows-gfx942 -o rows_gfx942.kpack
      aotbundle kpack ls rows_gfx942.kpack --json
    """
    from aot_bundle.kpack import open_kpack
    from aot_bundle.text_table import terminal_width

    from .kpack_tables import kpack_data, kpack_lines

    with open_kpack(archive) as opened:
        if as_json:
            terminal.write_json(kpack_data(opened))
        else:
            terminal.write_lines(kpack_lines(opened, terminal_width()))


@kpack.command()
@click.argument("archive", type=PATHS)
@click.argument("name")
@click.option("-o", "--output", required=True, type=PATHS, help="The file.")
@click.option("--arch", default="", help="The architecture, if the name is available for several.")
def extract(archive: Path, name: str, output: Path, arch: str) -> None:
    """Write the code object NAME of ARCHIVE to a file.

    Its size, and its SHA-256 if recorded, are checked against the table of contents.

    \b
    Examples:
      aotbundle kpack write dist/rows-gfx942 -o a.kpack
      aotbundle kpack extract a.kpack rows_gfx942_softmax_softmax_rows_f16_block512_onepass_aligned_several -o a.hsaco
    """
    from aot_bundle.kpack import open_kpack
    from aot_bundle.packing import write_aside
    from aot_runtime.formats import size_text

    with open_kpack(archive) as opened:
        code = opened.read(name, arch)
    try:
        size = write_aside(output, [code])
    except OSError as error:
        raise Failure(f"{error.filename or output}: {error.strerror or error}") from None
    terminal.write(f"{output}: {size_text(size)}")
