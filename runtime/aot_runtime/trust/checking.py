"""Holding a bundle to a policy: its signature is verified over the bytes of the index, and then these are decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from aot_runtime.bundle.files import Place, Source, source_of, unreadable
from aot_runtime.bundle.reading import decode_checked, read_index_bytes
from aot_runtime.contract.records import INDEX, SIGNATURE, Index
from aot_runtime.errors import TrustError
from aot_runtime.texts import shown

from .keys import is_signed_by
from .policy import TrustedKey, TrustPolicy
from .statement import MAX_FILE_BYTES, Envelope, Statement, decode_statement, read_envelope, signed_bytes


@dataclass(frozen=True)
class Signed:
    """A signature that a policy accepts: by which key, and what it says."""

    key: TrustedKey
    statement: Statement


def read_trusted_index(place: Place, policy: TrustPolicy) -> Index:
    """Read a bundle's index as `read_index` does, if its signature is accepted.

    Raises `BundleError`: `TrustError` before anything of the index is decoded.
    """
    source = source_of(place)
    data = read_index_bytes(source)
    signed = check_signature(source, data, policy)
    index = decode_checked(data, source)
    _check_names(source, index, signed.statement)
    return index


def check_signature(source: Source, data: bytes, policy: TrustPolicy) -> Signed:
    """Hold the signature of a bundle, and the bytes of its index, to a policy. Raises `TrustError`."""
    envelope = read_envelope(source)
    try:
        key = policy.find_key(envelope.signature.keyid)
        _check_key(envelope, key)
        statement = decode_statement(envelope.payload, source.path / SIGNATURE)
        _check_digest(data, statement)
        policy.accept(key, statement.predicate)
    except TrustError as error:
        raise TrustError(f"bundle {source.path} is not trusted: {error}", error.reason) from None
    return Signed(key, statement)


def _check_key(envelope: Envelope, key: TrustedKey) -> None:
    signature = envelope.signature.sig
    if not is_signed_by(key.public, signature, signed_bytes(envelope.payload_type, envelope.payload)):
        raise TrustError(f"the signature in {SIGNATURE} is not one of {key} over this statement", "signature")


def _check_digest(data: bytes, statement: Statement) -> None:
    said, found = statement.digests.get(INDEX, ""), hashlib.sha256(data).hexdigest()
    if said != found:
        raise TrustError(
            f"{SIGNATURE} is about another {INDEX}, of sha256 {said[:12]}, while this one's is {found[:12]}: "
            "the bundle was altered, or the signature is another's",
            "altered",
        )


def _check_names(source: Source, index: Index, statement: Statement) -> None:
    said = statement.predicate
    if (said.name, said.version) != (index.name, index.version):
        raise TrustError(
            f"bundle {source.path} is not trusted: {SIGNATURE} says it is '{said.name}' of version {said.version!r}, "
            f"its index '{index.name}' of version {index.version!r}",
            "altered",
        )


def signature_state(place: Place, policy: TrustPolicy | None) -> str:
    """A bundle's signature in words. Raises `BundleError` where it is not accepted, or is not this bundle's.

    Without a policy it is only told whose the signature claims to be.
    """
    source = source_of(place)
    data = read_index_bytes(source)
    if policy is not None:
        signed = check_signature(source, data, policy)
        statement, by = signed.statement, f"signed by {signed.key}"
    else:
        try:
            envelope = read_envelope(source)
        except TrustError as error:
            if error.reason == "unsigned":
                return "not signed"
            raise
        statement = decode_statement(envelope.payload, source.path / SIGNATURE)
        _check_digest(data, statement)
        by = f"signature by {shown(envelope.signature.keyid)} not verified, since there is no policy"
    index = decode_checked(data, source)
    _check_names(source, index, statement)
    for fault in _text_faults(source, statement):
        raise TrustError(fault, "altered")
    version = f" {index.version}" if index.version else ""
    return f"{by}: {index.name}{version}, on {statement.predicate.signed_on:%Y-%m-%d %H:%M %Z}"


def _text_faults(source: Source, statement: Statement) -> Iterator[str]:
    """The other files that the statement is about, which the index has no hash of."""
    for file, digest in statement.digests.items():
        if file == INDEX:
            continue
        try:
            content = source.read(file, MAX_FILE_BYTES)
        except OSError as error:
            yield str(unreadable("signed file", source.path / file, error))
            continue
        if hashlib.sha256(content).hexdigest() != digest:
            yield f"{source.path / file} was altered: its sha256 is not what {SIGNATURE} says"
