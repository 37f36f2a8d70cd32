"""Ed25519 keys, by the library `cryptography`, which is imported when a key is first used."""

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
    """A public key as policies have it: `ed25519:` and its 32 bytes in base64."""
    return f"{ALGORITHM}:{base64.b64encode(public).decode()}"


def decode_public(text: str) -> bytes:
    """The bytes of a public key. Raises ValueError for what is no such text."""
    algorithm, _, encoded = text.partition(":")
    try:
        public = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        public = b""
    if algorithm != ALGORITHM or len(public) != PUBLIC_BYTES:
        raise ValueError(f"{text!r} is no public key; '{ALGORITHM}:' and {PUBLIC_BYTES} bytes in base64 are allowed")
    return public


def key_id(public: bytes) -> str:
    """The name of a key in signature files: its algorithm, and the start of the SHA-256 of its bytes."""
    return f"{ALGORITHM}:{hashlib.sha256(public).hexdigest()[:32]}"


def generate_key() -> tuple[bytes, bytes]:
    """(a new private key as PEM, its public key). Raises `TrustError` where the library is missing."""
    _need_library()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, key.public_key().public_bytes_raw()


class KeyFormatError(ValueError):
    """A file is not a private key that can sign."""


class SigningKey:
    """A private key. It is read from PEM (PKCS #8), as `aotbundle keygen` and openssl write it.

    Raises `KeyFormatError`.
    """

    def __init__(self, pem: bytes):
        self._key = _private_key(pem)
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, content: bytes) -> bytes:
        """The signature over some bytes; the same each time."""
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
        raise KeyFormatError("it is no private key in PEM") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFormatError("it is a key of another algorithm; one of Ed25519 is needed")
    return key


def is_signed_by(public: bytes, signature: bytes, content: bytes) -> bool:
    """Whether a signature over some bytes was made with the private key of a public one."""
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
