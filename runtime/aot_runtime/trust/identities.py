"""Verify sigstore signatures, made by identities instead of keys, with the library `sigstore`.

A sigstore file holds a statement, its signature, a certificate of the signer's identity, and the entry of a public log
with the time of signing. Verification is offline, against trusted keys and certificates on this machine. The library is
imported when a policy with identities first meets a sigstore file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aot_runtime.bundle.statement import PAYLOAD_TYPE, claimed_payload
from aot_runtime.errors import TrustError
from aot_runtime.regular_files import open_regular
from aot_runtime.texts import shown

from .policy import TrustedIdentity, TrustPolicy

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.models import Bundle
    from sigstore.verify import Verifier

ISSUER_EXTENSION = "1.3.6.1.4.1.57264.1.1"
"""OID of the certificate extension with the issuer's URL, from Fulcio's certificate profile."""


@dataclass(frozen=True)
class IdentitySignature:
    """A verified sigstore signature, made no earlier than `issued`, the start of its certificate's validity."""

    identity: TrustedIdentity
    payload: bytes
    issued: datetime


def verify_identity(data: bytes, path: Path, policy: TrustPolicy) -> IdentitySignature:
    """Verify a sigstore file against a policy's identities and trusted root. Raises `TrustError`.

    Verifies the signature, the certificate and its inclusion in the certificate log, and the signature log's entry,
    following sigstore's client specification.
    """
    if not policy.identities:
        raise TrustError(f"it is signed with sigstore, and {policy.source} names no identities", "identity")
    need_sigstore()
    claimed_payload(data, path)
    bundle = _parsed(data, path)
    issuer, subject = claimed_identity(bundle.signing_certificate, path)
    identity = policy.find_identity(issuer, subject)
    payload = _verified(_verifier(policy), bundle, issuer, subject)
    return IdentitySignature(identity, payload, bundle.signing_certificate.not_valid_before_utc)


def _parsed(data: bytes, path: Path) -> Bundle:
    from sigstore.models import Bundle

    try:
        return Bundle.from_json(data)
    except Exception as error:  # the library does not specify its errors for malformed files
        raise TrustError(f"{path} is not a sigstore file: {_text(error)}", "malformed") from None


def claimed_identity(certificate: Certificate, path: Path) -> tuple[str, str]:
    """Return (issuer, subject) of a certificate that is not yet verified."""
    from cryptography import x509

    try:
        extensions = certificate.extensions
        found = extensions.get_extension_for_oid(x509.ObjectIdentifier(ISSUER_EXTENSION)).value
        (name,) = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if not isinstance(found, x509.UnrecognizedExtension):
            raise ValueError("its issuer is not as sigstore has it")
        if not isinstance(name, x509.RFC822Name | x509.UniformResourceIdentifier):
            raise ValueError("its subject is neither an e-mail address nor a URL")
        return found.value.decode(), name.value
    except (ValueError, x509.ExtensionNotFound, x509.UnsupportedGeneralNameType, x509.DuplicateExtension) as error:
        raise TrustError(f"the certificate in {path} does not say whose it is: {_text(error)}", "malformed") from None


def _verifier(policy: TrustPolicy) -> Verifier:
    from sigstore.models import ClientTrustConfig, TrustedRoot
    from sigstore.verify import Verifier

    root = policy.trusted_root
    try:
        if root is not None:
            os.close(open_regular(root))  # the library would block on a named pipe
            return Verifier(trusted_root=TrustedRoot.from_file(str(root)))
        return Verifier(trusted_root=ClientTrustConfig.production(offline=True).trusted_root)
    except Exception as error:  # as above
        place = f"trusted root {root}" if root else "sigstore's public trusted root"
        text = error.strerror if isinstance(error, OSError) else _text(error)
        raise TrustError(f"{place}, by {policy.source}, cannot be used at {_now()}: {text}", "policy") from None


def _verified(verifier: Verifier, bundle: Bundle, issuer: str, subject: str) -> bytes:
    from sigstore.errors import CertValidationError, MetadataError
    from sigstore.verify.policy import Identity

    try:
        kind, payload = verifier.verify_dsse(bundle, Identity(identity=subject, issuer=issuer))
    except MetadataError as error:
        raise TrustError(f"the trusted root cannot be used at {_now()}: {_text(error)}", "policy") from None
    except CertValidationError as error:
        raise TrustError(
            f"its certificate is of no authority of the trusted root, or was not valid at that time: {_text(error)}",
            "certificate",
        ) from None
    except Exception as error:  # as above: any exception means that verification failed
        raise TrustError(f"sigstore does not verify it: {_text(error)}", "signature") from None
    if kind != PAYLOAD_TYPE:
        raise TrustError(f"it is over a payload of type {shown(kind)}; {PAYLOAD_TYPE} is allowed", "malformed")
    return payload


def _now() -> str:
    """Return this machine's time, for errors: a wrong clock makes keys of a trusted root invalid."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def need_sigstore() -> None:
    """Raise `TrustError` if the library is missing."""
    try:
        import sigstore  # noqa: F401
    except ImportError:
        raise TrustError(
            "signatures of sigstore need the package sigstore: pip install 'aot-runtime[sigstore]'", "library"
        ) from None
