"""Parse signature files and their in-toto statements. Nothing is verified here.

A statement lists files with their SHA-256, and the bundle's name and version. It is wrapped in a DSSE envelope: alone
in a file for signatures by key, or within a sigstore file. The signature covers the payload type, too, so a statement
cannot be mistaken for anything else (`signed_bytes`).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from aot_runtime.contract.records import SIGNATURE
from aot_runtime.errors import TrustError
from aot_runtime.texts import shown

from .source import Source

MAX_SIGNATURE_BYTES = 64 << 10
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:aotbuild:bundle-signature:1"

_T = TypeVar("_T")


class Subject(msgspec.Struct, frozen=True):
    """A file covered by a statement. `digest` has its SHA-256 under `sha256`."""

    name: str
    digest: dict[str, str]


class Predicate(msgspec.Struct, frozen=True, rename="camel"):
    """A bundle's name, its version (empty if none), and the time of signing."""

    name: str
    version: str
    signed_on: Annotated[datetime, msgspec.Meta(tz=True)]


class Statement(msgspec.Struct, frozen=True, rename="camel"):
    """The signed content: the covered files and a predicate about them."""

    type: str = msgspec.field(name="_type")
    subject: tuple[Subject, ...]
    predicate_type: str
    predicate: Predicate

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 by file."""
        return {subject.name: subject.digest.get("sha256", "") for subject in self.subject}


class Signature(msgspec.Struct, frozen=True):
    """A signature and the id of its key."""

    keyid: str
    sig: bytes


class Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """A signature file: the encoded statement, its type, and signatures."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @property
    def signature(self) -> Signature:
        """The only signature."""
        return self.signatures[0]


def signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes to sign: payload type and payload in DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])


class _SigstoreEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    payload: bytes


class _SigstoreFile(msgspec.Struct, frozen=True, rename="camel"):
    dsse_envelope: _SigstoreEnvelope | None = None


class Claim(NamedTuple):
    """The statement in a signature file, and a description of the claimed signer."""

    statement: Statement
    signer: str


def read_claim(source: Source, file: str) -> Claim | None:
    """Read a bundle's signature file without verifying it. Returns None if it does not exist.

    Raises `TrustError` if it is malformed.
    """
    content = read_signature_file(source, file)
    if content is None:
        return None
    path = source.path / file
    if file != SIGNATURE:
        return Claim(decode_statement(claimed_payload(content, path), path), "signature of sigstore")
    envelope = decode_envelope(content, path)
    return Claim(decode_statement(envelope.payload, path), f"signature by {shown(envelope.signature.keyid)}")


def read_signature_file(source: Source, name: str) -> bytes | None:
    """Read the bytes of a bundle's signature file, or None if it does not exist. Raises `TrustError`."""
    path = source.path / name
    try:
        data = source.read(name, MAX_SIGNATURE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TrustError(f"signature {path} cannot be read: {error.strerror}", "malformed") from None
    if len(data) > MAX_SIGNATURE_BYTES:
        raise TrustError(f"{path} is over {MAX_SIGNATURE_BYTES} bytes: not a signature file", "malformed")
    return data


def decode_envelope(data: bytes, path: Path) -> Envelope:
    """Decode a signature file without verifying it. Raises `TrustError`."""
    envelope = decoded(data, Envelope, f"{path} is not a signature file")
    if envelope.payload_type != PAYLOAD_TYPE:
        raise TrustError(
            f"{path} is over a payload of type {shown(envelope.payload_type)}; {PAYLOAD_TYPE} is allowed",
            "malformed",
        )
    if len(envelope.signatures) != 1:
        raise TrustError(f"{path} has {len(envelope.signatures)} signatures; it must have one", "malformed")
    return envelope


def claimed_payload(data: bytes, path: Path) -> bytes:
    """Return the encoded statement of a sigstore file, without verifying it. Raises `TrustError`."""
    found = decoded(data, _SigstoreFile, f"{path} is not a sigstore file").dsse_envelope
    if found is None:
        raise TrustError(
            f"{path} is over a file alone; `aotbundle sign --sigstore` makes one over a statement about the bundle",
            "malformed",
        )
    return found.payload


def decode_statement(payload: bytes, path: Path) -> Statement:
    """Decode the statement of a signature file. Raises `TrustError` if it is not about a bundle."""
    statement = decoded(payload, Statement, f"{path} has no statement about a bundle")
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise TrustError(
            f"{path} holds a statement of type {shown(statement.predicate_type)}; {PREDICATE_TYPE} is allowed",
            "malformed",
        )
    if statement.predicate.signed_on.utcoffset():
        raise TrustError(f"{path} has a time of signing that is not in UTC", "malformed")
    return statement


def decoded(data: bytes, kind: type[_T], fault: str) -> _T:
    """Decode JSON to a record. Raises a `TrustError` that begins with `fault`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise TrustError(f"{fault}: {error}", "malformed") from None
