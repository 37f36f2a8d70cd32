"""Signing bundles with sigstore: by who one is, with no key to keep.

An identity provider says who signs: the CI service that this runs in, or one that is asked in a browser. Sigstore's
authority makes a certificate of that for a key that is forgotten after it signed, and its log keeps when. The network
is needed, and what is signed is public: the log has the bundle's name, its version and hashes.
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
    """Sigstore does not sign, or cannot be reached."""


class IdentitySigner:
    """Signs bundles as one identity, while its certificate is valid: for some minutes."""

    def __init__(self, signer: Signer, signed_on: datetime):
        self._signer = signer
        self._signed_on = signed_on

    def sign(self, place: Path) -> tuple[str, str]:
        """Write the signature of a bundle into its folder or archive, in place of an older one.

        Returns the (issuer, subject) that signed. Raises `BundleError` for a bundle that is not whole, `OSError` where
        it cannot be written, `SigstoreError`.
        """
        from sigstore.dsse import Statement

        source = source_of(place)
        statement = Statement(bundle_statement(source, self._signed_on))
        made = _asked(lambda: self._signer.sign_dsse(statement))
        put_file(source, SIGSTORE, made.to_json().encode())
        return claimed_identity(made.signing_certificate, source.path / SIGSTORE)


@contextmanager
def identity_signer(config: Path | None) -> Iterator[IdentitySigner]:
    """Who this process, or who sits before it, is.

    config: a client trust configuration of sigstore, for another instance than the public one.

    Raises `SigstoreError`, ValueError for a SOURCE_DATE_EPOCH that is no time, and `TrustError` where the library is
    missing.
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
    """What sigstore answers. The library names no set of errors: those of its own, of HTTP and of decoding occur."""
    try:
        return ask()
    except Exception as error:
        causes = [error, error.__cause__] if error.__cause__ else [error]
        text = ": ".join(f"{type(cause).__name__} {cause}".strip() for cause in causes)
        raise SigstoreError(f"sigstore does not sign: {' '.join(text.split())[:500]}") from error
