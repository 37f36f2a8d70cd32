"""Signature files changed as a forger would, or as a signer who signs other things, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aot_runtime.contract.records import SIGNATURE
from aot_runtime.trust.keys import SigningKey, key_id
from aot_runtime.trust.statement import PAYLOAD_TYPE, Envelope, Signature, encode_envelope, signed_bytes

WHEN = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
"""The time at which bundles are signed in tests."""


def edit_envelope(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / SIGNATURE
    envelope = json.loads(path.read_text())
    edit(envelope)
    path.write_text(json.dumps(envelope))


def sign_statement(folder: Path, key: SigningKey, payload: bytes, payload_type: str = PAYLOAD_TYPE) -> None:
    """Sign any bytes at all as the statement of a bundle."""
    signature = Signature(key_id(key.public), key.sign(signed_bytes(payload_type, payload)))
    (folder / SIGNATURE).write_bytes(encode_envelope(Envelope(payload_type, payload, (signature,))))
