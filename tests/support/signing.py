"""Change signature files as a forger would, or as a signer who also signs other things."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aot_bundle.trust.statement import PAYLOAD_TYPE, Envelope, Signature, encode_envelope, signed_bytes
from aot_runtime import open_bundle
from aot_runtime.contract.records import SIGNATURE
from aot_runtime.errors import TrustError
from aot_runtime.trust import checking
from aot_runtime.trust.keys import SigningKey, key_id
from aot_runtime.trust.policy import TrustPolicy

WHEN = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
"""The time at which bundles are signed in tests."""
ISSUER = "https://token.actions.githubusercontent.com"
SUBJECT = "https://github.com/example/kernels/.github/workflows/release.yml@refs/tags/v1.0"
"""The identity that signs with sigstore in tests."""


def refused(folder: Path, policy: TrustPolicy, reason: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Assert that a bundle is refused for a reason, and that its index was not decoded; return the message."""
    with monkeypatch.context() as patch:
        patch.setattr(checking, "decode_checked", lambda *_: pytest.fail("the index was decoded"))
        with pytest.raises(TrustError) as raised:
            open_bundle(folder, device="emulator", trust=policy)
    assert raised.value.reason == reason, raised.value
    assert pickle.loads(pickle.dumps(raised.value)).reason == reason
    return str(raised.value)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return a signature file with some bytes flipped, taken out, put in or repeated."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        start, length = rng.randrange(len(data)), rng.randrange(1, 200)
        match rng.randrange(4):
            case 0:
                data[start] ^= 1 << rng.randrange(8)
            case 1:
                del data[start : start + length]
            case 2:
                data[start:start] = rng.choice((b"{", b"]", b'"', b"\\u0000", b"\xff", b"null", b"1e999", b"A" * 100))
            case _:
                data[start:start] = data[length : 2 * length]
    return bytes(data)


def edit_envelope(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / SIGNATURE
    envelope = json.loads(path.read_text())
    edit(envelope)
    path.write_text(json.dumps(envelope))


def sign_statement(folder: Path, key: SigningKey, payload: bytes, payload_type: str = PAYLOAD_TYPE) -> None:
    """Sign any bytes at all as the statement of a bundle."""
    signature = Signature(key_id(key.public), key.sign(signed_bytes(payload_type, payload)))
    (folder / SIGNATURE).write_bytes(encode_envelope(Envelope(payload_type, payload, (signature,))))
