"""`aotbundle lock`."""

from __future__ import annotations

from pathlib import Path

import click

from aot_runtime.terminal import write

from .failures import Failure
from .parameters import PATHS


@click.command()
@click.argument("bundles", metavar="BUNDLE|FOLDER|NAME…", nargs=-1)
@click.option("-o", "--output", type=PATHS, default=Path("aotbundle.lock"), show_default=True, help="The lock file.")
@click.option("--check", is_flag=True, help="Write nothing: fail where the file does not have what is there.")
def lock(bundles: tuple[str, ...], output: Path, check: bool) -> None:
    """Write which bundles there are to a lock file: their names, versions, architectures and ids.

    Bundles are given by their paths, or by the names of installed ones. `open_bundle(..., lock=…)`, and all that opens
    bundles where AOTBUNDLE_LOCK names the file, then open no others.

    With --check, what the file has is looked for where it was found, and compared; where bundles are given, these, too,
    have to be in the file.

    \b
    Examples:
      aotbundle lock dist/rows-gfx942 dist/memory-gfx942
      aotbundle lock --check
      AOTBUNDLE_LOCK=aotbundle.lock aotbundle selftest dist/memory-gfx942 --device emulator
    """
    from aot_runtime.bundle.packing import write_aside
    from aot_runtime.trust.lock import lock_text, read_lock

    from .locking import find_locked, lock_faults

    if not check:
        if not bundles:
            raise click.UsageError("Missing argument 'BUNDLE|FOLDER|NAME…', or option '--check'.")
        found = list(find_locked(bundles, output.absolute().parent))
        try:
            write_aside(output.absolute(), [lock_text(found).encode()])
        except OSError as error:
            raise Failure(f"{output}: {error.strerror}") from None
    else:
        locked = read_lock(output)
        if faults := list(lock_faults(locked, bundles, output.absolute().parent)):
            raise Failure(*faults)
        found = list(locked.bundles)
    write(f"{output}: {len(found)} {'bundle' if len(found) == 1 else 'bundles'}{', as locked' if check else ''}")
