"""Check a bundle against a trust policy: verify its signature over the index's bytes, then decode them.

A bundle may have a signature by a key and one by sigstore. Either suffices.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.reading import decode_checked, read_index_bytes
from aot_runtime.bundle.source import Place, Source
from aot_runtime.bundle.statement import (
    Statement,
    decode_envelope,
    decode_statement,
    read_signature_file,
    signed_bytes,
)
from aot_runtime.contract.records import INDEX, Index, signature_names
from aot_runtime.errors import TrustError

from .identities import verify_identity
from .keys import is_signed_by
from .policy import TrustedIdentity, TrustedKey, TrustPolicy


@dataclass(frozen=True)
class Signed:
    """A signature file's statement about a bundle, and its signer, or None if not verified."""

    file: str
    statement: Statement
    by: TrustedKey | TrustedIdentity | None = None


def read_trusted_index(place: Place, policy: TrustPolicy) -> Index:
    """Read a bundle's index as `read_index` does, if its signature is accepted.

    Raises `TrustError` before the index is decoded, `BundleError` after.
    """
    source = source_of(place)
    data = read_index_bytes(source)
    signed = check_signature(source, data, policy)
    index = decode_checked(data, source)
    check_names(source, index, signed)
    return index


def check_signature(source: Source, data: bytes, policy: TrustPolicy, file: str = INDEX) -> Signed:
    """Return the first signature that a policy accepts.

    Args:
        data: content of the signed file.
        file: its name, with which those of its signatures begin.

    Raises `TrustError` if none is accepted, with the reason of the first one.
    """
    refused: list[TrustError] = []
    for check in (_by_key, _by_identity):
        try:
            signed = check(source, policy, data, file)
        except TrustError as error:
            refused.append(error)
            continue
        if signed is not None:
            return signed
    if not refused:
        names = " and no ".join(signature_names(file))
        raise TrustError(f"{source.path} is not signed: it has no {names}", "unsigned")
    faults = "; and ".join(map(str, refused))
    raise TrustError(f"{source.path} is not trusted: {faults}", refused[0].reason)


def _by_key(source: Source, policy: TrustPolicy, data: bytes, file: str) -> Signed | None:
    name, _ = signature_names(file)
    content = read_signature_file(source, name)
    if content is None:
        return None
    envelope = decode_envelope(content, source.path / name)
    key = policy.find_key(envelope.signature.keyid)
    if not is_signed_by(key.public, envelope.signature.sig, signed_bytes(envelope.payload_type, envelope.payload)):
        raise TrustError(f"the signature in {name} is not one of {key} over this statement", "signature")
    statement = decode_statement(envelope.payload, source.path / name)
    check_digest(data, statement, name, file)
    policy.accept(key, statement.predicate)
    return Signed(name, statement, key)


def _by_identity(source: Source, policy: TrustPolicy, data: bytes, file: str) -> Signed | None:
    _, name = signature_names(file)
    content = read_signature_file(source, name)
    if content is None:
        return None
    found = verify_identity(content, source.path / name, policy)
    statement = decode_statement(found.payload, source.path / name)
    check_digest(data, statement, name, file)
    policy.accept(found.identity, statement.predicate, found.issued)
    return Signed(name, statement, found.identity)


def check_digest(data: bytes, statement: Statement, signature: str, file: str = INDEX) -> None:
    """Check that a statement has the digest of a file's content, by default the index's. Raises `TrustError`."""
    said, found = statement.digests.get(file, ""), hashlib.sha256(data).hexdigest()
    if said != found:
        raise TrustError(
            f"{signature} is about another {file}, of sha256 {said[:12]}, while this one's is {found[:12]}: "
            f"{'the bundle' if file == INDEX else file} was altered, or the signature is another's",
            "altered",
        )


def check_names(source: Source, index: Index, signed: Signed) -> None:
    """Check that a statement agrees with the index's name and version. Raises `TrustError`."""
    said = signed.statement.predicate
    if (said.name, said.version) != (index.name, index.version):
        raise TrustError(
            f"bundle {source.path} is not trusted: {signed.file} says it is '{said.name}' of version {said.version!r}, "
            f"its index '{index.name}' of version {index.version!r}",
            "altered",
        )
