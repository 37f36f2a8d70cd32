"""`aotbundle pack` and `aotbundle unpack`."""

from __future__ import annotations

from pathlib import Path

import click

from aot_bundle.terminal import write

from .failures import Failure
from .parameters import PATHS


@click.command()
@click.argument("bundle", type=PATHS)
@click.option("-o", "--output", type=PATHS, help="The archive. [default: beside the folder, with its name and .aotb]")
@click.option("--compress", is_flag=True, help="Compress the code objects with zstd. Needs the extra zstd.")
def pack(bundle: Path, output: Path | None, compress: bool) -> None:
    """Put the bundle in folder BUNDLE into one file, which is opened like the folder.

    The file is a zip that stores its entries at multiples of 4096 bytes. The same bundle gives the same bytes. A bundle
    that `verify` finds faults in is not packed; an older archive is replaced.

    With --compress, each code object that gets shorter by such a multiple is stored as a frame of zstd, and
    decompressed when it is loaded. The index and the bundle's id stay the same, and a signature stays valid.

    \b
    Examples:
      aotbundle pack dist/rows-gfx942
      aotbundle ls dist/rows-gfx942.aotb
      aotbundle pack dist/rows-gfx942 --compress -o rows.aotb
    """
    from aot_bundle.packing import pack_bundle
    from aot_runtime.installed import SUFFIX
    from aot_runtime.texts import size_text

    folder = bundle.absolute()
    archive = output or folder.with_name(folder.name + SUFFIX)
    try:
        size = pack_bundle(bundle, archive, compress)
    except OSError as error:
        raise Failure(f"{error.filename or archive}: {error.strerror or error}") from None
    write(f"{archive}: {size_text(size)}")


@click.command()
@click.argument("archive", type=PATHS)
@click.option("-o", "--output", type=PATHS, help="The folder. [default: beside the archive, with its name]")
def unpack(archive: Path, output: Path | None) -> None:
    """Write the bundle in file ARCHIVE to a folder, which must not be there yet.

    An archive that `verify` finds faults in is not unpacked. Of one for several architectures each bundle gets a folder
    within, called as `aotbuild` calls it. Programs in C and C++ open folders.

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
