"""Sign bundles by key."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aot_bundle.coverage import MAX_TEXT_BYTES, generated_files, stray_files
from aot_bundle.packing import put_file
from aot_bundle.verification import MAX_FAULTS, verify_bundle
from aot_runtime.bundle.files import named, source_of
from aot_runtime.bundle.reading import decode_checked, read_index_bytes
from aot_runtime.bundle.source import Source
from aot_runtime.contract.records import INDEX, SIGNATURE
from aot_runtime.errors import BundleError
from aot_runtime.regular_files import read_regular
from aot_runtime.trust.keys import KeyFormatError, SigningKey, key_id

from .statement import PAYLOAD_TYPE, Envelope, Signature, encode_envelope, make_statement, signed_bytes

_MAX_KEY_BYTES = 64 << 10


@dataclass(frozen=True)
class Signer:
    """A key, and the time to record in signatures."""

    key: SigningKey
    signed_on: datetime

    def sign(self, place: Path) -> None:
        """Sign a bundle, see `sign_bundle`."""
        sign_bundle(place, self.key, self.signed_on)


def read_signer(path: Path) -> Signer:
    """Read a key file, with the current time or SOURCE_DATE_EPOCH as the time of signing.

    Raises ValueError for a malformed key, and `TrustError` if the library is missing.
    """
    try:
        return Signer(SigningKey(read_regular(path, _MAX_KEY_BYTES)), signing_time())
    except OSError as error:
        raise ValueError(f"key {path} cannot be read: {error.strerror}") from None
    except KeyFormatError as error:
        raise ValueError(f"key {path}: {error}") from None


def signing_time() -> datetime:
    """Return the current time, or SOURCE_DATE_EPOCH. Raises ValueError if that is malformed."""
    said = os.environ.get("SOURCE_DATE_EPOCH") or str(int(time.time()))
    try:
        return datetime.fromtimestamp(int(said), UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"SOURCE_DATE_EPOCH is '{said}'; expected seconds since 1970") from None


def bundle_statement(source: Source, signed_on: datetime) -> bytes:
    """Return the statement to sign about a bundle. Raises `BundleError` if the bundle has faults."""
    data = read_index_bytes(source)
    if faults := verify_bundle(source):
        raise BundleError(f"bundle {source.path} was not signed, because it is damaged:", *faults)
    index = decode_checked(data, source)
    if strays := [*stray_files(source, index)]:
        told = ", ".join(map(named, strays[:MAX_FAULTS]))
        raise BundleError(f"bundle {source.path} was not signed: its signature would not cover {told}")
    texts = {file: source.read(file, MAX_TEXT_BYTES) for file in generated_files(index)}
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in {INDEX: data, **texts}.items()}
    return make_statement(index.name, index.version, digests, signed_on)


def sign_bundle(place: Path, key: SigningKey, signed_on: datetime) -> None:
    """Sign a bundle and write the signature into its folder or archive, replacing an older one.

    Raises `BundleError` if the bundle has faults, `OSError` if the signature cannot be written.
    """
    source = source_of(place)
    put_file(source, SIGNATURE, signature_file(bundle_statement(source, signed_on), key))


def signature_file(statement: bytes, key: SigningKey) -> bytes:
    """Return the content of the file with a key's signature over a statement."""
    signature = Signature(key_id(key.public), key.sign(signed_bytes(PAYLOAD_TYPE, statement)))
    return encode_envelope(Envelope(PAYLOAD_TYPE, statement, (signature,)))
