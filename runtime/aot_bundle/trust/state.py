"""The signature state of a bundle, for reports: unsigned, unverified, accepted or refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from aot_bundle.coverage import uncovered
from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.reading import decode_checked, read_index_bytes
from aot_runtime.bundle.source import Place, Source
from aot_runtime.bundle.statement import read_claim
from aot_runtime.contract.records import SIGNATURES, Index
from aot_runtime.errors import TrustError
from aot_runtime.trust.checking import Signed, check_digest, check_names, check_signature
from aot_runtime.trust.policy import TrustPolicy

MAX_TOLD = 20
"""Most uncovered files to list in an error."""


@dataclass(frozen=True)
class SignatureState:
    """A signature state and its explanation. `unverified` means signed, but no policy was given."""

    state: Literal["unsigned", "unverified", "accepted", "refused"]
    text: str


def signature_state(place: Place, policy: TrustPolicy | None) -> SignatureState:
    """Check a bundle's signature and every file that it covers. Without a policy, the signer is reported unverified.

    Raises `BundleError` if the policy accepts no signature, or a signature is another bundle's.
    """
    source = source_of(place)
    data = read_index_bytes(source)
    found = [*claims(source, data)] if policy is None else [_accepted(source, data, policy)]
    if not found:
        return SignatureState("unsigned", "not signed")
    index = decode_checked(data, source)
    for signed, _ in found:
        check_names(source, index, signed)
        _check_coverage(source, index, signed)
    said = found[0][0].statement.predicate
    version = f" {index.version}" if index.version else ""
    by = ", ".join(who for _, who in found)
    return SignatureState(
        "unverified" if policy is None else "accepted",
        f"{by}: {index.name}{version}, on {said.signed_on:%Y-%m-%d %H:%M %Z}",
    )


def _accepted(source: Source, data: bytes, policy: TrustPolicy) -> tuple[Signed, str]:
    signed = check_signature(source, data, policy)
    return signed, f"signed by {signed.by}"


def claims(source: Source, data: bytes) -> Iterator[tuple[Signed, str]]:
    """Yield each signature file's statement and its claimed, unverified signer.

    Raises `TrustError` for a malformed signature file, and for one about another index.
    """
    for file in SIGNATURES:
        if claim := read_claim(source, file):
            check_digest(data, claim.statement, file)
            yield Signed(file, claim.statement), f"{claim.signer} not verified, since no policy is set"


def _check_coverage(source: Source, index: Index, signed: Signed) -> None:
    faults = list(uncovered(source, index, signed.statement.digests, signed.file))
    if faults:
        more = [f"and {len(faults) - MAX_TOLD} more"] if len(faults) > MAX_TOLD else []
        raise TrustError(
            f"bundle {source.path} differs from what was signed: {'; '.join([*faults[:MAX_TOLD], *more])}", "altered"
        )
