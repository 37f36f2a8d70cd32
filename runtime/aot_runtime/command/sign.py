"""`aotbundle sign`."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .failures import Failure
from .parameters import PATHS

if TYPE_CHECKING:
    from aot_runtime.trust.keys import SigningKey

_MAX_KEY_BYTES = 64 << 10


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=PATHS)
@click.option("--key", required=True, type=PATHS, help="A private Ed25519 key in PEM, as keygen writes it.")
def sign(paths: tuple[Path, ...], key: Path) -> None:
    """Sign bundles: their index, and so all that it has the hash of, with the name, the version and the time.

    A bundle that `verify` finds faults in is not signed. The signature is the file bundle.json.sig; an older one is
    replaced. The time is that of SOURCE_DATE_EPOCH where that is set. Needs the extra `trust`.

    \b
    Examples:
      aotbundle keygen release.key > trust.toml
      aotbundle sign dist/rows-gfx942 --key release.key
      aotbundle verify dist/rows-gfx942 --trust trust.toml
    """
    from aot_runtime.trust.keys import key_id
    from aot_runtime.trust.signing import sign_bundle

    from .listing import find_bundles

    signing_key, now = _read_key(key), _now()
    for folder in find_bundles(paths):
        try:
            file = sign_bundle(folder, signing_key, now)
        except OSError as error:
            raise Failure(f"{folder}: {error.strerror}") from None
        click.echo(f"{file}: signed with {key_id(signing_key.public)}")


def _read_key(path: Path) -> SigningKey:
    from aot_runtime.trust.keys import SigningKey

    try:
        with path.open("rb") as file:
            return SigningKey(file.read(_MAX_KEY_BYTES))
    except OSError as error:
        raise Failure(f"key {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Failure(f"key {path}: {error}") from None


def _now() -> datetime:
    """The time of signing, to the second."""
    said = os.environ.get("SOURCE_DATE_EPOCH") or str(int(time.time()))
    try:
        return datetime.fromtimestamp(int(said), UTC)
    except (ValueError, OverflowError, OSError):
        raise Failure(f"SOURCE_DATE_EPOCH is '{said}'; seconds since 1970 are allowed") from None
