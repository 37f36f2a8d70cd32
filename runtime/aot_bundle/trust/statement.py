"""Write statements and signature files. `aot_runtime.bundle.statement` reads them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from aot_runtime.bundle.statement import (
    MAX_SIGNATURE_BYTES,
    PAYLOAD_TYPE,
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    Envelope,
    Predicate,
    Signature,
    Statement,
    Subject,
    decode_envelope,
    decode_statement,
    signed_bytes,
)

__all__ = [
    "MAX_SIGNATURE_BYTES",
    "PAYLOAD_TYPE",
    "Envelope",
    "Predicate",
    "Signature",
    "Statement",
    "decode_envelope",
    "decode_statement",
    "encode_envelope",
    "make_statement",
    "signed_bytes",
]


def make_statement(name: str, version: str, digests: dict[str, str], signed_on: datetime) -> bytes:
    """Encode the statement about a bundle, deterministically.

    Args:
        digests: SHA-256 by file.
        signed_on: time of signing, with a time zone.
    """
    subject = tuple(Subject(file, {"sha256": digest}) for file, digest in sorted(digests.items()))
    predicate = Predicate(name, version, signed_on)
    return msgspec.json.encode(Statement(STATEMENT_TYPE, subject, PREDICATE_TYPE, predicate), order="deterministic")


def encode_envelope(envelope: Envelope) -> bytes:
    """Encode a signature file."""
    return msgspec.json.format(msgspec.json.encode(envelope, order="deterministic"), indent=1) + b"\n"
