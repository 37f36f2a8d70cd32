"""Holding a bundle to a policy: its signature is verified over the bytes of the index, and then these are decoded.

A bundle may have two signatures, one with a key and one of sigstore. It is accepted by either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from aot_runtime.bundle.files import Place, Source, source_of, unreadable
from aot_runtime.bundle.reading import decode_checked, read_index_bytes
from aot_runtime.contract.records import INDEX, SIGNATURE, SIGSTORE, Index
from aot_runtime.errors import TrustError
from aot_runtime.texts import shown

from .identities import claimed_payload, verify_identity
from .keys import is_signed_by
from .policy import TrustedIdentity, TrustedKey, TrustPolicy
from .statement import (
    MAX_FILE_BYTES,
    Statement,
    decode_envelope,
    decode_statement,
    read_signature_file,
    signed_bytes,
)


@dataclass(frozen=True)
class Signed:
    """What a signature file says of a bundle, and by whom; by None: nobody verified that."""

    file: str
    statement: Statement
    by: TrustedKey | TrustedIdentity | None = None


@dataclass(frozen=True)
class SignatureState:
    """What is known of a bundle's signature. `unverified`: there is one, and no policy."""

    state: Literal["unsigned", "unverified", "accepted", "refused"]
    text: str


def read_trusted_index(place: Place, policy: TrustPolicy) -> Index:
    """Read a bundle's index as `read_index` does, if its signature is accepted.

    Raises `BundleError`: `TrustError` before anything of the index is decoded.
    """
    source = source_of(place)
    data = read_index_bytes(source)
    signed = check_signature(source, data, policy)
    index = decode_checked(data, source)
    _check_names(source, index, signed)
    return index


def check_signature(source: Source, data: bytes, policy: TrustPolicy) -> Signed:
    """Hold the signatures of a bundle, and the bytes of its index, to a policy, which must accept one of them.

    Raises `TrustError`, with the reason of the first that is there.
    """
    refused: list[TrustError] = []
    for check in (_by_key, _by_identity):
        try:
            signed = check(source, policy, data)
        except TrustError as error:
            refused.append(error)
            continue
        if signed is not None:
            return signed
    if not refused:
        raise TrustError(f"bundle {source.path} is not signed: it has no {SIGNATURE}, and no {SIGSTORE}", "unsigned")
    faults = "; and ".join(map(str, refused))
    raise TrustError(f"bundle {source.path} is not trusted: {faults}", refused[0].reason)


def _by_key(source: Source, policy: TrustPolicy, data: bytes) -> Signed | None:
    """None: the bundle has no such signature."""
    content = read_signature_file(source, SIGNATURE)
    if content is None:
        return None
    envelope = decode_envelope(content, source.path / SIGNATURE)
    key = policy.find_key(envelope.signature.keyid)
    if not is_signed_by(key.public, envelope.signature.sig, signed_bytes(envelope.payload_type, envelope.payload)):
        raise TrustError(f"the signature in {SIGNATURE} is not one of {key} over this statement", "signature")
    statement = decode_statement(envelope.payload, source.path / SIGNATURE)
    _check_digest(data, statement, SIGNATURE)
    policy.accept(key, statement.predicate)
    return Signed(SIGNATURE, statement, key)


def _by_identity(source: Source, policy: TrustPolicy, data: bytes) -> Signed | None:
    """None: the bundle has no such signature."""
    content = read_signature_file(source, SIGSTORE)
    if content is None:
        return None
    found = verify_identity(content, source.path / SIGSTORE, policy)
    statement = decode_statement(found.payload, source.path / SIGSTORE)
    _check_digest(data, statement, SIGSTORE)
    policy.accept(found.identity, statement.predicate, found.issued)
    return Signed(SIGSTORE, statement, found.identity)


def _check_digest(data: bytes, statement: Statement, file: str) -> None:
    said, found = statement.digests.get(INDEX, ""), hashlib.sha256(data).hexdigest()
    if said != found:
        raise TrustError(
            f"{file} is about another {INDEX}, of sha256 {said[:12]}, while this one's is {found[:12]}: "
            "the bundle was altered, or the signature is another's",
            "altered",
        )


def _check_names(source: Source, index: Index, signed: Signed) -> None:
    said = signed.statement.predicate
    if (said.name, said.version) != (index.name, index.version):
        raise TrustError(
            f"bundle {source.path} is not trusted: {signed.file} says it is '{said.name}' of version {said.version!r}, "
            f"its index '{index.name}' of version {index.version!r}",
            "altered",
        )


def signature_state(place: Place, policy: TrustPolicy | None) -> SignatureState:
    """What is known of a bundle's signature. Raises `BundleError` where it is not accepted, or is not this bundle's.

    Without a policy it is only told whose the signature claims to be.
    """
    source = source_of(place)
    data = read_index_bytes(source)
    found = [*claims(source, data)] if policy is None else [_accepted(source, data, policy)]
    if not found:
        return SignatureState("unsigned", "not signed")
    index = decode_checked(data, source)
    for signed, _ in found:
        _check_names(source, index, signed)
        for fault in _text_faults(source, signed):
            raise TrustError(fault, "altered")
    said = found[0][0].statement.predicate
    version = f" {index.version}" if index.version else ""
    by = ", ".join(who for _, who in found)
    return SignatureState(
        "unverified" if policy is None else "accepted",
        f"{by}: {index.name}{version}, on {said.signed_on:%Y-%m-%d %H:%M %Z}",
    )


def _accepted(source: Source, data: bytes, policy: TrustPolicy) -> tuple[Signed, str]:
    signed = check_signature(source, data, policy)
    return signed, f"signed by {signed.by}"


def claims(source: Source, data: bytes) -> Iterator[tuple[Signed, str]]:
    """What each signature file says, with whose it claims to be in words. Raises `TrustError` for one that is none, or
    is about another index."""
    content = read_signature_file(source, SIGNATURE)
    if content is not None:
        envelope = decode_envelope(content, source.path / SIGNATURE)
        who = f"signature by {shown(envelope.signature.keyid)} {_OPEN}"
        yield _claim(source, data, SIGNATURE, envelope.payload), who
    content = read_signature_file(source, SIGSTORE)
    if content is not None:
        payload = claimed_payload(content, source.path / SIGSTORE)
        yield _claim(source, data, SIGSTORE, payload), f"signature of sigstore {_OPEN}"


_OPEN = "not verified, since there is no policy"


def _claim(source: Source, data: bytes, file: str, payload: bytes) -> Signed:
    statement = decode_statement(payload, source.path / file)
    _check_digest(data, statement, file)
    return Signed(file, statement)


def _text_faults(source: Source, signed: Signed) -> Iterator[str]:
    """The other files that the statement is about, which the index has no hash of."""
    for file, digest in signed.statement.digests.items():
        if file == INDEX:
            continue
        try:
            content = source.read(file, MAX_FILE_BYTES)
        except OSError as error:
            yield str(unreadable("signed file", source.path / file, error))
            continue
        if hashlib.sha256(content).hexdigest() != digest:
            yield f"{source.path / file} was altered: its sha256 is not what {signed.file} says"
