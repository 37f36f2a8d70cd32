"""`aotbundle keygen`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aot_bundle.terminal import write

from .failures import Failure
from .parameters import PATHS


@click.command()
@click.argument("file", type=PATHS)
def keygen(file: Path) -> None:
    """Generate a key for signing bundles, and print a trust policy for it.

    The private key is written to FILE as PEM, readable by its owner only. The printed policy lets the key sign every
    bundle; restrict it to the names of yours. Needs the extra `trust`.

    \b
    Example:
      aotbundle keygen team.key > trust.toml
    """
    import json

    from aot_runtime.trust.keys import encode_public, generate_key

    pem, public = generate_key()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(pem)
    except FileExistsError:
        raise Failure(f"{file} exists already and is left unchanged") from None
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from None
    write(f"[keys.{json.dumps(file.stem)}]", f'public = "{encode_public(public)}"', 'bundles = ["*"]')
