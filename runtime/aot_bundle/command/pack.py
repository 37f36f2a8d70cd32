"""`aotbundle pack` and `aotbundle unpack`."""

from __future__ import annotations

from pathlib import Path

import click

from aot_bundle.terminal import write

from .failures import Failure
from .parameters import PATHS


@click.command()
@click.argument("bundle", type=PATHS)
@click.option("-o", "--output", type=PATHS, help="The archive. [default: BUNDLE.aotb]")
@click.option("--compress", is_flag=True, help="Compress the code objects with zstd. Needs the extra zstd.")
def pack(bundle: Path, output: Path | None, compress: bool) -> None:
    """Pack the bundle in folder BUNDLE into one file that opens like the folder.

    The file is a zip with stored entries, aligned to 4096 bytes. The result is reproducible. A bundle with faults (see
    `verify`) is not packed. An older archive is replaced.

    With --compress, code objects that get shorter by 4096 bytes or more are stored as zstd frames and decompressed when
    loaded. The index, the bundle's id and signatures do not change.

    \b
    Examples:
      aotbundle pack dist/rows-gfx942
      aotbundle ls dist/rows-gfx942.aotb
      aotbundle pack dist/rows-gfx942 --compress -o rows.aotb
    """
    from aot_bundle.packing import pack_bundle
    from aot_runtime.bundle.files import SUFFIX
    from aot_runtime.formats import size_text

    folder = bundle.absolute()
    archive = output or folder.with_name(folder.name + SUFFIX)
    try:
        size = pack_bundle(bundle, archive, compress)
    except OSError as error:
        raise Failure(f"{error.filename or archive}: {error.strerror or error}") from None
    write(f"{archive}: {size_text(size)}")


@click.command()
@click.argument("archive", type=PATHS)
@click.option("-o", "--output", type=PATHS, help="The folder. [default: named like the archive, next to it]")
def unpack(archive: Path, output: Path | None) -> None:
    """Write the bundle in file ARCHIVE to a new folder.

    An archive with faults (see `verify`) is not unpacked. Bundles for several architectures become subfolders, named as
    by `aotbuild`. Programs in C and C++ need folders.

    \b
    Examples:
      aotbundle pack dist/rows-gfx942 -o rows.aotb
      aotbundle unpack rows.aotb -o rows
    """
    from aot_bundle.packing import unpack_bundle

    folder = output or archive.absolute().with_suffix("")
    try:
        unpack_bundle(archive, folder)
    except OSError as error:
        raise Failure(f"{error.filename or folder}: {error.strerror or error}") from None
    write(str(folder))
