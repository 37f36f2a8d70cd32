"""`aotbundle sign`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from aot_bundle.terminal import write

from .failures import Failure
from .parameters import PATHS


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=PATHS)
@click.option("--key", type=PATHS, help="A private Ed25519 key in PEM, as keygen writes it.")
@click.option("--sigstore", is_flag=True, help="Sign as the identity of this CI job, or of who answers in a browser.")
@click.option(
    "--sigstore-config", type=PATHS, metavar="FILE.json",
    help="With --sigstore: the client trust configuration of another instance than the public one.",
)  # fmt: skip
def sign(paths: tuple[Path, ...], key: Path | None, sigstore: bool, sigstore_config: Path | None) -> None:
    """Sign bundles: their index, and so all that it has the hash of, with the name, the version and the time.

    A bundle that `verify` finds faults in is not signed. The signature is a file in the bundle, be that a folder or one
    file; an older one is replaced. It says the time of SOURCE_DATE_EPOCH where that is set.

    With --key, the file is bundle.json.sig, and the extra `trust` is needed. With --sigstore, it is
    bundle.json.sigstore.json, the extra `sigstore` and a network are needed, and a public log keeps who signed when.

    \b
    Examples:
      aotbundle keygen release.key > trust.toml
      aotbundle sign dist/rows-gfx942 --key release.key
      aotbundle verify dist/rows-gfx942 --trust trust.toml
    """
    from .listing import find_bundles

    if (key is not None) == sigstore:
        raise click.UsageError("one of --key and --sigstore says how to sign")
    if sigstore_config and not sigstore:
        raise click.UsageError("--sigstore-config is for --sigstore")
    bundles = find_bundles(paths)
    try:
        with _by_key(key) if key else _by_identity(sigstore_config) as sign_one:
            for bundle in bundles:
                try:
                    write(f"{bundle}: signed {sign_one(bundle)}")
                except OSError as error:
                    raise Failure(f"{bundle}: {error.strerror}") from None
    except ValueError as error:
        raise Failure(str(error)) from None


@contextmanager
def _by_key(path: Path) -> Iterator[Callable[[Path], str]]:
    from aot_bundle.trust.signing import read_signer
    from aot_runtime.trust.keys import key_id

    signer = read_signer(path)

    def sign_one(bundle: Path) -> str:
        signer.sign(bundle)
        return f"with {key_id(signer.key.public)}"

    yield sign_one


@contextmanager
def _by_identity(config: Path | None) -> Iterator[Callable[[Path], str]]:
    from aot_bundle.trust.keyless import identity_signer

    with identity_signer(config) as signer:

        def sign_one(bundle: Path) -> str:
            issuer, subject = signer.sign(bundle)
            return f"by {subject} of {issuer}"

        yield sign_one
