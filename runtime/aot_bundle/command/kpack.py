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

    Each is there under the names that its variants have in the C header of the bundle, with the kernel's symbol, its
    threads, LDS and bytes of kernargs, and the SHA-256 of the code object. What the archive has no place for, such as
    grids and the layouts of kernargs, stays in the bundle. A bundle that `verify` finds faults in is not written.
    Compressing needs the extra `zstd`.

    \b
    Examples:
      aotbundle kpack write dist/rows-gfx942 -o rows_gfx942.kpack
      aotbundle kpack write dist/rows-gfx942 -o rows_gfx942.kpack --uncompressed
    """
    from aot_bundle.kpack_writing import write_kpack
    from aot_runtime.texts import size_text

    try:
        size = write_kpack(bundle, output, not uncompressed)
    except OSError as error:
        raise Failure(f"{error.filename or output}: {error.strerror or error}") from None
    terminal.write(f"{output}: {size_text(size)}")


@kpack.command()
@click.argument("archive", type=PATHS)
@click.option("--json", "as_json", is_flag=True, help="As JSON, sizes in bytes.")
def ls(archive: Path, as_json: bool) -> None:
    """List what a kpack archive has: names, architectures, sizes of the code objects, and symbols where it says them.

    The table of contents is read, and no code object.

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
@click.option("--arch", default="", help="The architecture, where the name is there for several.")
def extract(archive: Path, name: str, output: Path, arch: str) -> None:
    """Write the code object that ARCHIVE has under NAME to a file.

    It is held to the size, and the SHA-256 where there is one, that the table of contents says.

    \b
    Examples:
      aotbundle kpack write dist/rows-gfx942 -o a.kpack
      aotbundle kpack extract a.kpack rows_gfx942_softmax_softmax_rows_f16_block512_onepass_aligned_several -o a.hsaco
    """
    from aot_bundle.kpack import open_kpack
    from aot_bundle.packing import write_aside
    from aot_runtime.texts import size_text

    with open_kpack(archive) as opened:
        code = opened.read(name, arch)
    try:
        size = write_aside(output, [code])
    except OSError as error:
        raise Failure(f"{error.filename or output}: {error.strerror or error}") from None
    terminal.write(f"{output}: {size_text(size)}")
