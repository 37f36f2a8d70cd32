"""Sign bundles with sigstore, by identity instead of a long-lived key.

An identity provider attests the signer: the CI service, or one that is visited in a browser. Sigstore's authority
issues a certificate for an ephemeral key, and its public log records the signature and its time. This needs a network
and discloses the bundle's name, version and hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot_bundle.packing import put_file
from aot_runtime.bundle.files import source_of
from aot_runtime.contract.records import SIGSTORE
from aot_runtime.regular_files import read_regular
from aot_runtime.trust.identities import claimed_identity, need_sigstore

from .signing import bundle_statement, signing_time

if TYPE_CHECKING:
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken
    from sigstore.sign import Signer


_MAX_CONFIG_BYTES = 16 << 20


class SigstoreError(ValueError):
    """Sigstore refused to sign or cannot be reached."""


class IdentitySigner:
    """Signs bundles as one identity, for the few minutes that its certificate is valid."""

    def __init__(self, signer: Signer, signed_on: datetime):
        self._signer = signer
        self._signed_on = signed_on

    def sign(self, place: Path) -> tuple[str, str]:
        """Sign a bundle and write the signature into its folder or archive, replacing an older one.

        Returns:
            (issuer, subject) of the signer.

        Raises:
            BundleError: the bundle has faults.
            OSError: the signature cannot be written.
            SigstoreError: sigstore refused or cannot be reached.
        """
        from sigstore.dsse import Statement

        source = source_of(place)
        statement = Statement(bundle_statement(source, self._signed_on))
        made = _asked(lambda: self._signer.sign_dsse(statement))
        put_file(source, SIGSTORE, made.to_json().encode())
        return claimed_identity(made.signing_certificate, source.path / SIGSTORE)


@contextmanager
def identity_signer(config: Path | None) -> Iterator[IdentitySigner]:
    """Open a signer for the OIDC identity of this process or its user.

    Args:
        config: a client trust configuration of sigstore. Defaults to the public instance.

    Raises:
        SigstoreError: sigstore refused or cannot be reached.
        ValueError: SOURCE_DATE_EPOCH is malformed.
        TrustError: the library is missing.
    """
    need_sigstore()
    from sigstore.sign import SigningContext

    signed_on = signing_time()
    instance = _asked(lambda: _instance(config))
    token = _asked(lambda: _token(instance))
    context = _asked(lambda: SigningContext.from_trust_config(instance))
    with ExitStack() as stack:
        yield IdentitySigner(_asked(lambda: stack.enter_context(context.signer(token))), signed_on)


def _instance(config: Path | None) -> ClientTrustConfig:
    from sigstore.models import ClientTrustConfig

    if config is None:
        return ClientTrustConfig.production()
    return ClientTrustConfig.from_json(read_regular(config, _MAX_CONFIG_BYTES).decode())


def _token(instance: ClientTrustConfig) -> IdentityToken:
    from sigstore.oidc import IdentityToken, Issuer, detect_credential

    ambient = detect_credential()
    return IdentityToken(ambient) if ambient else Issuer(instance.signing_config.get_oidc_url()).identity_token()


def _asked(ask: Callable[[], Any]) -> Any:
    """Call sigstore and convert any exception, since the library does not specify its errors."""
    try:
        return ask()
    except Exception as error:
        causes = [error, error.__cause__] if error.__cause__ else [error]
        text = ": ".join(f"{type(cause).__name__} {cause}".strip() for cause in causes)
        raise SigstoreError(f"signing with sigstore failed: {' '.join(text.split())[:500]}") from error
