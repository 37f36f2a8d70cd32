"""Signing a bundle that is whole."""

from __future__ import annotations

import hashlib
import os
import tempfile
from datetime import datetime
from pathlib import Path

from aot_runtime.bundle.files import read_file
from aot_runtime.bundle.reading import decode_checked, read_index_bytes
from aot_runtime.bundle.verification import verify_bundle
from aot_runtime.contract.records import INDEX, SIGNATURE, TEXT_FILES
from aot_runtime.errors import BundleError

from .keys import SigningKey, key_id
from .statement import (
    MAX_FILE_BYTES,
    PAYLOAD_TYPE,
    Envelope,
    Signature,
    encode_envelope,
    make_statement,
    signed_bytes,
)


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
