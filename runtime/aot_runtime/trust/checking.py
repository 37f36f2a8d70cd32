"""Holding a bundle to a policy: its signature is verified over the bytes of the index, and then these are decoded.

A bundle may have two signatures, one with a key and one of sigstore. It is accepted by either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from aot_runtime.bundle.files import Place, Source, source_of
from aot_runtime.bundle.reading import decode_checked, read_index_bytes
from aot_runtime.bundle.statement import (
    Statement,
    decode_envelope,
    decode_statement,
    read_claim,
    read_signature_file,
    signed_bytes,
)
from aot_runtime.contract.records import INDEX, SIGNATURE, SIGNATURES, SIGSTORE, Index
from aot_runtime.errors import TrustError

from .identities import verify_identity
from .keys import is_signed_by
from .policy import TrustedIdentity, TrustedKey, TrustPolicy

MAX_TOLD = 20
"""Files that a signature does not cover which are told; where there are more, their number is."""


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
        _check_coverage(source, index, signed)
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
    for file in SIGNATURES:
        if claim := read_claim(source, file):
            _check_digest(data, claim.statement, file)
            yield Signed(file, claim.statement), f"{claim.signer} not verified, since there is no policy"


def _check_coverage(source: Source, index: Index, signed: Signed) -> None:
    """Raise `TrustError` where a file of a bundle is not what was signed, or was not signed."""
    from aot_runtime.bundle.coverage import uncovered  # which nothing needs that opens a bundle

    faults = list(uncovered(source, index, signed.statement.digests, signed.file))
    if faults:
        more = [f"and {len(faults) - MAX_TOLD} more"] if len(faults) > MAX_TOLD else []
        raise TrustError(
            f"bundle {source.path} is not what was signed: {'; '.join([*faults[:MAX_TOLD], *more])}", "altered"
        )
