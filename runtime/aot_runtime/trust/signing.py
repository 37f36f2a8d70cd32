"""Signing a bundle that is whole."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aot_runtime.bundle.files import read_file
from aot_runtime.bundle.reading import decode_checked, read_index_bytes
from aot_runtime.bundle.verification import verify_bundle
from aot_runtime.contract.records import INDEX, SIGNATURE, TEXT_FILES
from aot_runtime.errors import BundleError

from .keys import KeyFormatError, SigningKey, key_id
from .statement import (
    MAX_FILE_BYTES,
    PAYLOAD_TYPE,
    Envelope,
    Signature,
    encode_envelope,
    make_statement,
    signed_bytes,
)

_MAX_KEY_BYTES = 64 << 10


@dataclass(frozen=True)
class Signer:
    """A key, and the time that its signatures say."""

    key: SigningKey
    signed_on: datetime

    def sign(self, folder: Path) -> Path:
        """Sign the bundle in a folder: see `sign_bundle`."""
        return sign_bundle(folder, self.key, self.signed_on)


def read_signer(path: Path) -> Signer:
    """A key by its file, with the time of now, or of SOURCE_DATE_EPOCH. Raises ValueError, and `TrustError` where the
    library for keys is missing.
    """
    try:
        with path.open("rb") as file:
            return Signer(SigningKey(file.read(_MAX_KEY_BYTES)), _time())
    except OSError as error:
        raise ValueError(f"key {path} cannot be read: {error.strerror}") from None
    except KeyFormatError as error:
        raise ValueError(f"key {path}: {error}") from None


def _time() -> datetime:
    said = os.environ.get("SOURCE_DATE_EPOCH") or str(int(time.time()))
    try:
        return datetime.fromtimestamp(int(said), UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"SOURCE_DATE_EPOCH is '{said}'; seconds since 1970 are allowed") from None


def sign_bundle(folder: Path, key: SigningKey, signed_on: datetime) -> Path:
    """Write the signature of a bundle into its folder, in place of an older one; returns the file.

    Raises `BundleError` for a bundle that is not whole, `OSError` where it cannot be written.
    """
    data = read_index_bytes(folder)
    if faults := verify_bundle(folder):
        raise BundleError("\n".join([f"bundle {folder} is not signed, since it is not whole:", *faults]))
    index = decode_checked(data, folder / INDEX)
    texts = {file: read_file(folder, file, MAX_FILE_BYTES) for file in (f.format(name=index.name) for f in TEXT_FILES)}
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in {INDEX: data, **texts}.items()}
    payload = make_statement(index.name, index.version, digests, signed_on)
    signature = Signature(key_id(key.public), key.sign(signed_bytes(PAYLOAD_TYPE, payload)))
    _replace(folder / SIGNATURE, encode_envelope(Envelope(PAYLOAD_TYPE, payload, (signature,))))
    return folder / SIGNATURE


def _replace(path: Path, content: bytes) -> None:
    """Write a file at once: a reader finds the older one, or the new one as a whole."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    aside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        aside.chmod(0o644)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
