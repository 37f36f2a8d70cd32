"""A sigstore instance for tests over HTTP, like the public one, with a token that it accepts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from .signing import ISSUER, SUBJECT
from .sigstore_instance import START, Instance, entry_body


def token() -> str:
    """Return an unsigned token of GitHub's form for the audience sigstore. Checks are up to the authority."""
    now = int(datetime.now(UTC).timestamp())
    claims = {"aud": "sigstore", "iss": ISSUER, "sub": "repo:example/kernels", "iat": now, "exp": now + 600}
    parts = ({"alg": "none", "typ": "JWT"}, claims)
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), ""])


class _Handler(BaseHTTPRequestHandler):
    instance: Instance
    status = 200

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answers = {"/api/v2/signingCert": self._certificate, "/api/v1/log/entries": self._entry}
        answer = json.dumps(answers[self.path](asked)).encode()
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(answer)

    def _certificate(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self.headers["Authorization"].startswith("Bearer ey")
        request = x509.load_pem_x509_csr(base64.b64decode(asked["certificateSigningRequest"]))
        public = request.public_key()
        assert request.is_signature_valid and isinstance(public, ec.EllipticCurvePublicKey)
        made = self.instance.certificate(public, SUBJECT, issued=datetime.now(UTC).replace(microsecond=0))
        chain = [item.public_bytes(Encoding.PEM).decode() for item in (made, self.instance.authority())]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}

    def _entry(self, asked: dict[str, Any]) -> dict[str, Any]:
        proposed = asked["spec"]["proposedContent"]
        made = x509.load_pem_x509_certificate(base64.b64decode(proposed["verifiers"][0]))
        said = self.instance.entry(entry_body(json.loads(proposed["envelope"]), made), datetime.now(UTC))
        proof = said["inclusionProof"]
        return {
            "uuid": {
                "body": said["canonicalizedBody"],
                "integratedTime": int(said["integratedTime"]),
                "logID": base64.b64decode(said["logId"]["keyId"]).hex(),
                "logIndex": int(said["logIndex"]),
                "verification": {
                    "signedEntryTimestamp": said["inclusionPromise"]["signedEntryTimestamp"],
                    "inclusionProof": {
                        "checkpoint": proof["checkpoint"]["envelope"],
                        "hashes": [base64.b64decode(item).hex() for item in proof["hashes"]],
                        "rootHash": base64.b64decode(proof["rootHash"]).hex(),
                        "logIndex": 1,
                        "treeSize": 2,
                    },
                },
            }
        }


@contextmanager
def serve(instance: Instance, status: int = 200) -> Iterator[dict[str, Any]]:
    """Answer while the block runs; yield what configures clients."""
    handler = type("Handler", (_Handler,), {"instance": instance, "status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield _config(instance, f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


def _config(instance: Instance, url: str) -> dict[str, Any]:
    start = START.strftime("%Y-%m-%dT%H:%M:%SZ")
    service = {"url": url, "majorApiVersion": 1, "validFor": {"start": start}, "operator": "test"}
    return {
        "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
        "trustedRoot": instance.trusted_root(),
        "signingConfig": {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service], "oidcUrls": [service], "rekorTlogUrls": [service], "tsaUrls": [],
            "rekorTlogConfig": {"selector": "ANY"}, "tsaConfig": {"selector": "ANY"},
        },
    }  # fmt: skip
