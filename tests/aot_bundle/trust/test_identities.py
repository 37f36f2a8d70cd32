"""Bundles signed with sigstore open offline if an identity of the policy signed them, and are refused otherwise."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aot_bundle.packing import pack_bundle
from aot_bundle.trust import state
from aot_bundle.trust.signing import bundle_statement, sign_bundle
from aot_bundle.trust.state import SignatureState, signature_state
from aot_bundle.trust.statement import MAX_SIGNATURE_BYTES, make_statement
from aot_runtime import open_bundle
from aot_runtime.bundle.archive import parts
from aot_runtime.bundle.files import Folder
from aot_runtime.contract.records import INDEX, SIGNATURE, SIGSTORE
from aot_runtime.errors import BundleError, TrustError
from aot_runtime.trust import checking, policy
from aot_runtime.trust.checking import read_trusted_index
from aot_runtime.trust.identities import verify_identity
from aot_runtime.trust.keys import SigningKey
from aot_runtime.trust.policy import TrustedIdentity, TrustedKey, TrustPolicy, read_policy
from tests.support.forging import edit_index
from tests.support.signing import ISSUER, SUBJECT, WHEN, mutated, refused

pytest.importorskip("cryptography", reason="certificates need the extra `sigstore`")

from tests.support.sigstore_instance import LIFETIME, Instance, b64, new_key

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was asked"))


def edit_file(folder: Path, edit: Edit) -> None:
    path = folder / SIGSTORE
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def sign(folder: Path, instance: Instance, payload: bytes, **options: Any) -> None:
    (folder / SIGSTORE).write_text(json.dumps(instance.signed(payload, **options)))


def sign_again(folder: Path, instance: Instance, **options: Any) -> None:
    sign(folder, instance, bundle_statement(Folder(folder), WHEN), **options)


DATA = b"the bytes of an index"
PAYLOAD = make_statement("small", "", {INDEX: hashlib.sha256(DATA).hexdigest()}, WHEN)


@pytest.fixture
def only_signature(instance: Instance, tmp_path: Path) -> Path:
    """Return a folder that has nothing but the identity's signature over `DATA`."""
    (tmp_path / "small").mkdir()
    sign(tmp_path / "small", instance, PAYLOAD)
    return tmp_path / "small"


def rejected(folder: Path, policy: TrustPolicy, reason: str) -> str:
    """Assert that a signature over `DATA` is refused for a reason; return the message."""
    with pytest.raises(TrustError) as raised:
        checking.check_signature(Folder(folder), DATA, policy)
    assert raised.value.reason == reason, raised.value
    return str(raised.value)


def entry(file: dict[str, Any]) -> dict[str, Any]:
    return file["verificationMaterial"]["tlogEntries"][0]


def test_a_signed_bundle_opens_in_a_folder_and_as_one_file(
    sigstore_signed: Path, identity_policy: TrustPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pack_bundle(sigstore_signed, tmp_path / "small.aotb")
    for place in (sigstore_signed, tmp_path / "small.aotb"):
        assert open_bundle(place, device="emulator", trust=identity_policy).name == "small"
    edit_index(sigstore_signed, lambda index: index["toolchain"].update(note="forged"))
    with pytest.raises(BundleError, match=r"is not packed: bundle\.json was altered: .*\.sigstore\.json says"):
        pack_bundle(sigstore_signed, tmp_path / "forged.aotb")
    files = {name: (sigstore_signed / name).read_bytes() for name in Folder(sigstore_signed).names()}
    (tmp_path / "forged.aotb").write_bytes(b"".join(parts(files)))
    for place in (sigstore_signed, tmp_path / "forged.aotb"):
        assert "was altered" in refused(place, identity_policy, "altered", monkeypatch)


def test_a_policy_file_names_identities_and_the_root(
    sigstore_signed: Path, instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The root lies beside the policy. The subject is a pattern, as each tag has another workflow's URL."""
    pattern = SUBJECT.replace("v1.0", "*")
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy/root.json").write_text(json.dumps(instance.trusted_root()))
    path = tmp_path / "policy/trust.toml"
    text = (
        f'trusted_root = "root.json"\n[identities.ci]\nissuer = "{ISSUER}"\nsubject = "{pattern}"\nbundles = ["sm*"]\n'
    )
    path.write_text(text)
    monkeypatch.setenv("AOTBUNDLE_TRUST", str(path))
    assert open_bundle(sigstore_signed, device="emulator").name == "small"
    who = f"signed by identity 'ci' ({pattern} of {ISSUER}): small, on 2026-11-22 12:00 UTC"
    assert signature_state(sigstore_signed, read_policy(path)) == SignatureState("accepted", who)
    unverified = signature_state(sigstore_signed, None)
    assert unverified.state == "unverified" and unverified.text.startswith("signature of sigstore not verified")
    sign_again(sigstore_signed, instance, subject=pattern.replace("kernels", "kernel5"))
    with pytest.raises(TrustError, match=r"kernel5.*: not listed in trust policy .*trust\.toml; listed: identity 'ci'"):
        open_bundle(sigstore_signed, device="emulator")


SIGNERS: dict[str, tuple[dict[str, Any], str]] = {
    "another issuer": ({"issuer": "https://gitlab.com"}, "identity"),
    "another workflow": ({"subject": SUBJECT.replace("release", "test")}, "identity"),
    "the start of the subject": ({"subject": SUBJECT[:-1]}, "identity"),
    "a person": ({"subject": "someone@example.com"}, "identity"),
    "after the certificate": ({"logged": WHEN + LIFETIME + timedelta(seconds=1)}, "certificate"),
    "before the certificate": ({"logged": WHEN - timedelta(seconds=1)}, "certificate"),
    "an authority that was not there yet": (
        {"issued": datetime(2019, 1, 1, tzinfo=UTC), "logged": datetime(2019, 1, 1, tzinfo=UTC)}, "certificate"
    ),
    "a certificate that is in no log": ({"logged_by": "another key"}, "signature"),
    "another purpose": ({"payload_type": "text/plain"}, "malformed"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "reason"), SIGNERS.values(), ids=SIGNERS)
def test_signatures_that_are_not_the_identitys(
    only_signature: Path,
    instance: Instance,
    identity_policy: TrustPolicy,
    options: dict[str, Any],
    reason: str,
):
    if "logged_by" in options:
        options = {"logged_by": new_key()}
    sign(only_signature, instance, PAYLOAD, **options)
    rejected(only_signature, identity_policy, reason)


def test_another_instance_is_not_believed(only_signature: Path, identity_policy: TrustPolicy):
    sign(only_signature, Instance(), PAYLOAD)
    rejected(only_signature, identity_policy, "certificate")


@pytest.mark.parametrize("key", ["authority_key", "certificates_key", "log_key"])
def test_each_key_of_the_instance_is_asked(
    only_signature: Path,
    instance: Instance,
    identity_policy: TrustPolicy,
    key: str,
):
    sign(only_signature, replace(instance, **{key: new_key()}), PAYLOAD)
    rejected(only_signature, identity_policy, "certificate" if key == "authority_key" else "signature")


def other_payload(file: dict[str, Any]) -> None:
    payload = base64.b64decode(file["dsseEnvelope"]["payload"])
    file["dsseEnvelope"]["payload"] = b64(payload.replace(b"2026", b"2027"))


def other_signature(file: dict[str, Any]) -> None:
    signature = bytearray(base64.b64decode(file["dsseEnvelope"]["signatures"][0]["sig"]))
    signature[-1] ^= 1
    file["dsseEnvelope"]["signatures"][0]["sig"] = b64(bytes(signature))


def certificate_of_bytes(file: dict[str, Any]) -> None:
    file["verificationMaterial"]["certificate"]["rawBytes"] = b64(bytes(range(200)))


FORGED: dict[str, tuple[Edit, str]] = {
    "another payload": (other_payload, "signature"),
    "another signature": (other_signature, "signature"),
    "a later entry": (lambda file: entry(file).update(integratedTime=str(int(WHEN.timestamp()) + 60)), "signature"),
    "no promise": (lambda file: entry(file).pop("inclusionPromise"), "malformed"),
    "no proof": (lambda file: entry(file).pop("inclusionProof"), "malformed"),
    "no entry": (lambda file: file["verificationMaterial"].update(tlogEntries=[]), "malformed"),
    "no time": (lambda file: entry(file).pop("integratedTime"), "signature"),
    "another place": (lambda file: entry(file)["inclusionProof"].update(logIndex="0"), "signature"),
    "another root": (lambda file: entry(file)["inclusionProof"].update(rootHash=b64(bytes(32))), "signature"),
    "another checkpoint": (lambda file: entry(file)["inclusionProof"]["checkpoint"].update(envelope="x"), "signature"),
    "no certificate": (lambda file: file["verificationMaterial"].pop("certificate"), "malformed"),
    "no certificate's bytes": (certificate_of_bytes, "malformed"),
    "no statement": (lambda file: file.pop("dsseEnvelope"), "malformed"),
    "another format": (lambda file: file.update(mediaType="application/vnd.dev.sigstore.bundle.v9+json"), "malformed"),
}


@pytest.mark.parametrize(("edit", "reason"), FORGED.values(), ids=FORGED)
def test_files_that_were_altered(only_signature: Path, identity_policy: TrustPolicy, edit: Edit, reason: str):
    edit_file(only_signature, edit)
    rejected(only_signature, identity_policy, reason)


def test_entries_and_statements_of_another_signature(
    only_signature: Path, instance: Instance, identity_policy: TrustPolicy
):
    """All are the identity's own and in the log, but of another signature or another bundle."""
    other = instance.signed(PAYLOAD)
    edit_file(only_signature, lambda file: file["verificationMaterial"].update(tlogEntries=[entry(other)]))
    assert "do not match bundle" in rejected(only_signature, identity_policy, "signature")
    replayed = instance.signed(make_statement("small", "", {INDEX: "0" * 64}, WHEN))
    (only_signature / SIGSTORE).write_text(json.dumps(replayed))
    assert "or the signature is another's" in rejected(only_signature, identity_policy, "altered")
    sign(only_signature, instance, PAYLOAD.replace(b"bundle-signature:1", b"bundle-approval:1"))
    assert "urn:aotbuild:bundle-signature:1 is allowed" in rejected(only_signature, identity_policy, "malformed")


MALFORMED: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "padded": lambda path: path.write_bytes(path.read_bytes() + b"{}"),
    "huge": lambda path: path.write_bytes(path.read_bytes() + b" " * MAX_SIGNATURE_BYTES),
    "nested": lambda path: path.write_bytes(b'{"x":' * 10000),
    "garbage": lambda path: path.write_bytes(bytes(range(256))),
    "link": lambda path: path.symlink_to(path.rename(path.with_name("elsewhere"))),
}


@pytest.mark.parametrize("damage", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_file_of_sigstore(
    only_signature: Path,
    identity_policy: TrustPolicy,
    damage: Callable[[Path], Any],
):
    damage(only_signature / SIGSTORE)
    rejected(only_signature, identity_policy, "malformed")
    with pytest.raises(TrustError):
        [*state.claims(Folder(only_signature), DATA)]


def test_mutated_files_are_refused_unless_they_sign_the_same(only_signature: Path, identity_policy: TrustPolicy):
    path = only_signature / SIGSTORE
    content = path.read_bytes()
    signed = verify_identity(content, path, identity_policy)
    reasons = set()
    for seed in range(200):
        try:
            assert verify_identity(mutated(content, random.Random(seed)), path, identity_policy) == signed, seed
        except TrustError as error:
            reasons.add(error.reason)
    assert reasons <= {"malformed", "signature", "identity", "certificate"} and len(reasons) > 2


def test_what_an_identity_may_sign(
    sigstore_signed: Path,
    instance: Instance,
    identity: TrustedIdentity,
    identity_policy: TrustPolicy,
    monkeypatch: pytest.MonkeyPatch,
):
    def by(*identities: TrustedIdentity, **other: Any) -> TrustPolicy:
        return replace(identity_policy, identities=identities, **other)

    refused(sigstore_signed, by(replace(identity, revoked=True)), "revoked", monkeypatch)
    anyone = TrustedIdentity("all", ISSUER, "https://github.com/example/*", ("*",))
    refused(sigstore_signed, by(anyone, replace(identity, revoked=True)), "revoked", monkeypatch)
    refused(sigstore_signed, by(replace(identity, bundles=("attention",)), anyone), "name", monkeypatch)
    assert read_trusted_index(sigstore_signed, by(anyone)).name == "small"
    least = by(identity, least_versions={"small": "1.2"})
    refused(sigstore_signed, least, "version", monkeypatch)
    edit_index(sigstore_signed, lambda index: index.update(version="1.10"))
    sign_again(sigstore_signed, instance)
    assert read_trusted_index(sigstore_signed, least).version == "1.10"
    assert "names no identities" in refused(sigstore_signed, TrustPolicy(), "identity", monkeypatch)


def test_a_clock_that_is_wrong(
    sigstore_signed: Path,
    instance: Instance,
    identity: TrustedIdentity,
    identity_policy: TrustPolicy,
    monkeypatch: pytest.MonkeyPatch,
):
    """A clock that is behind prolongs no identity: when a certificate was issued is proven, whatever the signer says. A
    root that is not valid yet is refused, too."""
    early = datetime(2021, 1, 1, tzinfo=UTC)
    sign(sigstore_signed, instance, bundle_statement(Folder(sigstore_signed), early))
    expired = replace(identity_policy, identities=(replace(identity, expires=date(2026, 11, 21)),))

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return early

    monkeypatch.setattr(policy, "datetime", Clock)
    assert "is used on 2026-11-22" in refused(sigstore_signed, expired, "expired", monkeypatch)
    last = replace(identity_policy, identities=(replace(identity, expires=WHEN.date()),))
    assert read_trusted_index(sigstore_signed, last).name == "small"
    root = identity_policy.trusted_root
    assert root is not None
    root.write_text(json.dumps(instance.trusted_root(start=datetime(2150, 1, 1, tzinfo=UTC))))
    assert "cannot be used at 20" in refused(sigstore_signed, identity_policy, "policy", monkeypatch)


@pytest.mark.parametrize("content", [None, "", "{}", "[1]"])
def test_a_root_that_cannot_be_used(
    sigstore_signed: Path, identity_policy: TrustPolicy, monkeypatch: pytest.MonkeyPatch, content: str | None
):
    root = identity_policy.trusted_root
    assert root is not None
    root.unlink()
    if content is not None:
        root.write_text(content)
    assert str(root) in refused(sigstore_signed, identity_policy, "policy", monkeypatch)


def test_the_public_root_is_the_librarys(
    sigstore_signed: Path, identity_policy: TrustPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The library brings the public root, so it refuses this instance with no network."""
    for variable in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    refused(sigstore_signed, replace(identity_policy, trusted_root=None), "certificate", monkeypatch)


def test_either_of_two_signatures_is_enough(
    sigstore_signed: Path, identity_policy: TrustPolicy, key: SigningKey, trusted: TrustedKey
):
    sign_bundle(sigstore_signed, key, WHEN)
    by_key, both = TrustPolicy((trusted,)), replace(identity_policy, keys=(trusted,))
    for known in (by_key, identity_policy, both, replace(both, keys=(replace(trusted, revoked=True),))):
        assert read_trusted_index(sigstore_signed, known).name == "small"
    assert signature_state(sigstore_signed, None).text.count("not verified") == 2
    with pytest.raises(TrustError, match=r"revoked; and it is signed with sigstore, and .* names no identities"):
        read_trusted_index(sigstore_signed, TrustPolicy((replace(trusted, revoked=True),)))
    (sigstore_signed / SIGNATURE).unlink()
    with pytest.raises(TrustError, match="names no identities"):
        read_trusted_index(sigstore_signed, by_key)


def test_the_library_is_needed_by_identities_only(
    sigstore_signed: Path,
    identity_policy: TrustPolicy,
    key: SigningKey,
    trusted: TrustedKey,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "sigstore", None)
    message = refused(sigstore_signed, identity_policy, "library", monkeypatch)
    assert "pip install 'aot-runtime[sigstore]'" in message
    sign_bundle(sigstore_signed, key, WHEN)
    assert read_trusted_index(sigstore_signed, replace(identity_policy, keys=(trusted,))).name == "small"
    assert state.signature_state(sigstore_signed, None).state == "unverified"
