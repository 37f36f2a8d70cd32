"""A sigstore instance for tests, without a network: its authority, its two logs, and its bundles for signatures.

Tests can falsify each part, as a thief, another instance or a wrong clock would.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aot_bundle.trust.statement import PAYLOAD_TYPE, signed_bytes
from aot_runtime.trust.identities import ISSUER_EXTENSION

from .signing import ISSUER, SUBJECT, WHEN

START = datetime(2020, 1, 1, tzinfo=UTC)
LIFETIME = timedelta(minutes=10)
"""Lifetime of a certificate."""
_TIMESTAMPS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _sign(key: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    return key.sign(content, ec.ECDSA(hashes.SHA256()))


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_public(key)).digest()


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Instance:
    """An instance of Fulcio with its log of certificates, and of Rekor."""

    authority_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    certificates_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    log_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    def authority(self) -> x509.Certificate:
        public = self.authority_key.public_key()
        return (
            self._certificate(_NAME, public, START, START + timedelta(days=36500))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(keys=True), critical=True)
            .sign(self.authority_key, hashes.SHA256())
        )

    def _certificate(
        self, name: x509.Name, public: ec.EllipticCurvePublicKey, start: datetime, end: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(issuer_name=_NAME, subject_name=name, public_key=public, serial_number=7)
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )

    def certificate(
        self,
        public: ec.EllipticCurvePublicKey,
        subject: str = SUBJECT,
        issuer: str = ISSUER,
        issued: datetime = WHEN,
        logged_by: ec.EllipticCurvePrivateKey | None = None,
    ) -> x509.Certificate:
        """Issue a certificate for a token as Fulcio does: valid for minutes, with a signed certificate timestamp."""
        name = x509.RFC822Name(subject) if "://" not in subject else x509.UniformResourceIdentifier(subject)
        builder = (
            self._certificate(x509.Name([]), public, issued, issued + LIFETIME)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority_key.public_key()), critical=False
            )
            .add_extension(_usage(keys=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectAlternativeName([name]), critical=True)
            .add_extension(
                x509.UnrecognizedExtension(x509.ObjectIdentifier(ISSUER_EXTENSION), issuer.encode()), critical=False
            )
        )
        before = builder.sign(self.authority_key, hashes.SHA256())
        promise = self._promise(before.tbs_certificate_bytes, issued, logged_by or self.certificates_key)
        listed = struct.pack("!HH", len(promise) + 2, len(promise)) + promise
        octets = b"\x04" + (bytes([len(listed)]) if len(listed) < 128 else b"\x81" + bytes([len(listed)])) + listed
        return builder.add_extension(x509.UnrecognizedExtension(_TIMESTAMPS, octets), critical=False).sign(
            self.authority_key, hashes.SHA256()
        )

    def _promise(self, certificate: bytes, issued: datetime, key: ec.EllipticCurvePrivateKey) -> bytes:
        millis = int(issued.timestamp() * 1000)
        length = struct.pack("!I", len(certificate))[1:]
        entry = struct.pack("!BBQH", 0, 0, millis, 1) + _key_id(self.authority_key) + length + certificate + b"\0\0"
        signature = _sign(key, entry)
        head = struct.pack("!B32sQHBBH", 0, _key_id(key), millis, 0, 4, 3, len(signature))
        return head + signature

    def entry(self, body: bytes, logged: datetime = WHEN) -> dict[str, Any]:
        """Return Rekor's response for an entry: it is the second of two in the log, with its time."""
        other, mine = (hashlib.sha256(b"\0" + leaf).digest() for leaf in (b"another entry", body))
        root = hashlib.sha256(b"\1" + other + mine).digest()
        note = f"test log\n2\n{b64(root)}\n"
        signature = b64(_key_id(self.log_key)[:4] + _sign(self.log_key, note.encode()))
        time = int(logged.timestamp())
        said = {"body": b64(body), "integratedTime": time, "logID": _key_id(self.log_key).hex(), "logIndex": 1}
        return {
            "logIndex": "1",
            "logId": {"keyId": b64(_key_id(self.log_key))},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(time),
            "inclusionPromise": {"signedEntryTimestamp": b64(_sign(self.log_key, _canonical(said)))},
            "inclusionProof": {
                "logIndex": "1", "rootHash": b64(root), "treeSize": "2", "hashes": [b64(other)],
                "checkpoint": {"envelope": f"{note}\n\N{EM DASH} test {signature}\n"},
            },
            "canonicalizedBody": b64(body),
        }  # fmt: skip

    def trusted_root(self, start: datetime = START) -> dict[str, Any]:
        """Return the trusted root of this instance, valid from a time on."""
        valid = {"start": start.strftime("%Y-%m-%dT%H:%M:%SZ")}

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            public = {"rawBytes": b64(_public(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": valid}
            return {
                "baseUrl": "https://log.invalid", "hashAlgorithm": "SHA2_256", "publicKey": public,
                "logId": {"keyId": b64(_key_id(key))},
            }  # fmt: skip

        authority = {
            "subject": {"organization": "test", "commonName": "test authority"},
            "uri": "https://authority.invalid",
            "certChain": {"certificates": [{"rawBytes": b64(self.authority().public_bytes(Encoding.DER))}]},
            "validFor": valid,
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.log_key)], "certificateAuthorities": [authority],
            "ctlogs": [log(self.certificates_key)], "timestampAuthorities": [],
        }  # fmt: skip

    def signed(
        self,
        payload: bytes,
        *,
        logged: datetime = WHEN,
        payload_type: str = PAYLOAD_TYPE,
        **certificate: Any,
    ) -> dict[str, Any]:
        """Return a sigstore file: a statement signed by whom `certificate` says, see the method of that name."""
        key = new_key()
        made = self.certificate(key.public_key(), **certificate)
        signature = _sign(key, signed_bytes(payload_type, payload))
        envelope = {"payload": b64(payload), "payloadType": payload_type, "signatures": [{"sig": b64(signature)}]}
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": b64(made.public_bytes(Encoding.DER))},
                "tlogEntries": [self.entry(entry_body(envelope, made), logged)],
            },
            "dsseEnvelope": envelope,
        }


def entry_body(envelope: dict[str, Any], certificate: x509.Certificate) -> bytes:
    """Return Rekor's log entry of an envelope."""

    def digest(content: bytes) -> dict[str, str]:
        return {"algorithm": "sha256", "value": hashlib.sha256(content).hexdigest()}

    verifier = b64(certificate.public_bytes(Encoding.PEM))
    signatures = [{"signature": item["sig"], "verifier": verifier} for item in envelope["signatures"]]
    spec = {
        "envelopeHash": digest(_canonical(envelope)),
        "payloadHash": digest(base64.b64decode(envelope["payload"])),
        "signatures": signatures,
    }
    return _canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})


def _usage(*, keys: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not keys, key_cert_sign=keys, crl_sign=keys, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
