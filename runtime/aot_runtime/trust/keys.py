"""Ed25519 keys. The library `cryptography` is imported on first use."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING

from aot_runtime.errors import TrustError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "ed25519"
PUBLIC_BYTES = 32


def encode_public(public: bytes) -> str:
    """Encode a public key for a policy: `ed25519:` and its 32 bytes in base64."""
    return f"{ALGORITHM}:{base64.b64encode(public).decode()}"


def decode_public(text: str) -> bytes:
    """Decode a public key of a policy. Raises ValueError for malformed text."""
    algorithm, _, encoded = text.partition(":")
    try:
        public = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        public = b""
    if algorithm != ALGORITHM or len(public) != PUBLIC_BYTES:
        raise ValueError(f"{text!r} is not a public key: '{ALGORITHM}:' and {PUBLIC_BYTES} bytes in base64")
    return public


def key_id(public: bytes) -> str:
    """Return a key's id in signature files: its algorithm and the start of the SHA-256 of its bytes."""
    return f"{ALGORITHM}:{hashlib.sha256(public).hexdigest()[:32]}"


def generate_key() -> tuple[bytes, bytes]:
    """Generate a key. Returns (private key as PEM, public key). Raises `TrustError` if the library is missing."""
    _need_library()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, key.public_key().public_bytes_raw()


class KeyFormatError(ValueError):
    """A file is not a usable private key."""


class SigningKey:
    """A private key in PEM (PKCS #8), as written by `aotbundle keygen` or openssl. Raises `KeyFormatError`."""

    def __init__(self, pem: bytes):
        self._key = _private_key(pem)
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, content: bytes) -> bytes:
        """Return the signature over some bytes. It is deterministic."""
        return self._key.sign(content)


def _private_key(pem: bytes) -> Ed25519PrivateKey:
    _need_library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError:
        raise KeyFormatError("it is encrypted; a private key without a password is needed") from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFormatError("it is not a private key in PEM") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFormatError("it is a key of another algorithm; an Ed25519 key is needed")
    return key


def is_signed_by(public: bytes, signature: bytes, content: bytes) -> bool:
    """Return True if a signature over `content` verifies with a public key."""
    _need_library()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _need_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise TrustError(
            "keys and signatures need the package cryptography: pip install 'aot-runtime[trust]'", "library"
        ) from None
