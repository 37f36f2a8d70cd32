"""Signature files, and the statement that one is over, as in-toto defines them: nothing is verified here.

The statement names the files that it is about by their SHA-256, and the bundle by its name and version. It is in a DSSE
envelope, which is the file of a signature with a key, and a part of the file of a signature of sigstore. What is signed
is not the statement alone, but with its type before it, so that it is taken for nothing else (`signed_bytes`).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from aot_runtime.contract.records import SIGNATURE
from aot_runtime.errors import TrustError
from aot_runtime.texts import shown

from .files import Source

MAX_SIGNATURE_BYTES = 64 << 10
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:aotbuild:bundle-signature:1"

_T = TypeVar("_T")


class Subject(msgspec.Struct, frozen=True):
    """A file that a statement is about; `digest` has its SHA-256 as `sha256`."""

    name: str
    digest: dict[str, str]


class Predicate(msgspec.Struct, frozen=True, rename="camel"):
    """The name of a bundle, its version (empty: none), and when that was signed."""

    name: str
    version: str
    signed_on: Annotated[datetime, msgspec.Meta(tz=True)]


class Statement(msgspec.Struct, frozen=True, rename="camel"):
    """The content that is signed: of which files somebody says what."""

    type: str = msgspec.field(name="_type")
    subject: tuple[Subject, ...]
    predicate_type: str
    predicate: Predicate

    @property
    def digests(self) -> dict[str, str]:
        """File → its SHA-256."""
        return {subject.name: subject.digest.get("sha256", "") for subject in self.subject}


class Signature(msgspec.Struct, frozen=True):
    """A signature, and the id of the key that made it."""

    keyid: str
    sig: bytes


class Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """A signature file: the statement as bytes, of what type it is, and who signed it."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @property
    def signature(self) -> Signature:
        """The one signature."""
        return self.signatures[0]


def signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """The bytes that a signature is over: a payload with its type, in DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])


class _SigstoreEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    payload: bytes


class _SigstoreFile(msgspec.Struct, frozen=True, rename="camel"):
    dsse_envelope: _SigstoreEnvelope | None = None


class Claim(NamedTuple):
    """The statement in a signature file, and whose signature it claims to be, in words."""

    statement: Statement
    signer: str


def read_claim(source: Source, file: str) -> Claim | None:
    """Read what a signature file of a bundle says, of which nothing is verified; None: it is not there.

    Raises `TrustError` for a file that is none.
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
    """The content of a signature file of a bundle; None: it is not there. Raises `TrustError`."""
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
    """Read what a signature file says, of which nothing was verified. Raises `TrustError`."""
    envelope = decoded(data, Envelope, f"{path} is no signature file")
    if envelope.payload_type != PAYLOAD_TYPE:
        raise TrustError(
            f"{path} is over a payload of type {shown(envelope.payload_type)}; {PAYLOAD_TYPE} is allowed",
            "malformed",
        )
    if len(envelope.signatures) != 1:
        raise TrustError(f"{path} has {len(envelope.signatures)} signatures; it must have one", "malformed")
    return envelope


def claimed_payload(data: bytes, path: Path) -> bytes:
    """The statement that a sigstore file is over, of which nothing was verified. Raises `TrustError`."""
    found = decoded(data, _SigstoreFile, f"{path} is no file of sigstore").dsse_envelope
    if found is None:
        raise TrustError(
            f"{path} is over a file alone; `aotbundle sign --sigstore` makes one over a statement about the bundle",
            "malformed",
        )
    return found.payload


def decode_statement(payload: bytes, path: Path) -> Statement:
    """The statement of a signature file. Raises `TrustError` where it is not one about a bundle."""
    statement = decoded(payload, Statement, f"{path} holds no statement about a bundle")
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise TrustError(
            f"{path} holds a statement of type {shown(statement.predicate_type)}; {PREDICATE_TYPE} is allowed",
            "malformed",
        )
    if statement.predicate.signed_on.utcoffset():
        raise TrustError(f"{path} has a time of signing that is not in UTC", "malformed")
    return statement


def decoded(data: bytes, kind: type[_T], fault: str) -> _T:
    """JSON as a record. Raises `TrustError` that begins with `fault`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise TrustError(f"{fault}: {error}", "malformed") from None
