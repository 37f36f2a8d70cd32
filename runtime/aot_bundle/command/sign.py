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
@click.option("--key", type=PATHS, help="A private Ed25519 key in PEM, as written by keygen.")
@click.option("--sigstore", is_flag=True, help="Sign as the identity of this CI job, or of the user in a browser.")
@click.option(
    "--sigstore-config", type=PATHS, metavar="FILE.json",
    help="With --sigstore, a client trust configuration. [default: the public instance]",
)  # fmt: skip
def sign(paths: tuple[Path, ...], key: Path | None, sigstore: bool, sigstore_config: Path | None) -> None:
    """Sign bundles: their index, and with it all files that it has the hashes of, plus name, version and time.

    A bundle with faults (see `verify`) is not signed. The signature is stored in the bundle, in a folder or an archive,
    and replaces an older one. SOURCE_DATE_EPOCH overrides its time.

    With --key, the signature is bundle.json.sig, and the extra `trust` is needed. With --sigstore, it is
    bundle.json.sigstore.json, the extra `sigstore` and a network are needed, and a public log records signer and time.

    \b
    Examples:
      aotbundle keygen release.key > trust.toml
      aotbundle sign dist/rows-gfx942 --key release.key
      aotbundle verify dist/rows-gfx942 --trust trust.toml
    """
    from .listing import find_bundles

    if (key is not None) == sigstore:
        raise click.UsageError("pass either --key or --sigstore")
    if sigstore_config and not sigstore:
        raise click.UsageError("--sigstore-config needs --sigstore")
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
