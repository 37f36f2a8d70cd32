"""`aotbundle sign`."""

from __future__ import annotations

from pathlib import Path

import click

from .failures import Failure
from .parameters import PATHS


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=PATHS)
@click.option("--key", required=True, type=PATHS, help="A private Ed25519 key in PEM, as keygen writes it.")
def sign(paths: tuple[Path, ...], key: Path) -> None:
    """Sign bundles: their index, and so all that it has the hash of, with the name, the version and the time.

    A bundle that `verify` finds faults in is not signed. The signature is the file bundle.json.sig in the bundle,
    be that a folder or one file; an older signature is replaced. Its time is that of SOURCE_DATE_EPOCH where that is
    set. Needs the extra `trust`.

    \b
    Examples:
      aotbundle keygen release.key > trust.toml
      aotbundle sign dist/rows-gfx942 --key release.key
      aotbundle verify dist/rows-gfx942 --trust trust.toml
    """
    from aot_runtime.trust.keys import key_id
    from aot_runtime.trust.signing import read_signer

    from .listing import find_bundles

    try:
        signer = read_signer(key)
    except ValueError as error:
        raise Failure(str(error)) from None
    for folder in find_bundles(paths):
        try:
            signer.sign(folder)
        except OSError as error:
            raise Failure(f"{folder}: {error.strerror}") from None
        click.echo(f"{folder}: signed with {key_id(signer.key.public)}")
