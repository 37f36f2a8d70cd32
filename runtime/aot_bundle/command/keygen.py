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
    """Make a key that signs bundles, and print what a trust policy says of it.

    The private key is written to FILE, as PEM that nobody else may read. What is printed is a policy that lets the key
    sign every bundle; put the names of yours in it. Needs the extra `trust`.

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
        raise Failure(f"{file} is there already, and is left as it is") from None
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from None
    write(f"[keys.{json.dumps(file.stem)}]", f'public = "{encode_public(public)}"', 'bundles = ["*"]')
