"""A trust policy accepts the signer's bundle as signed, and no other, however well it is forged."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_bundle.packing import pack_bundle, unpack_bundle
from aot_bundle.trust.signing import sign_bundle
from aot_bundle.trust.state import SignatureState, signature_state
from aot_bundle.trust.statement import MAX_SIGNATURE_BYTES, PAYLOAD_TYPE, decode_envelope, make_statement
from aot_bundle.verification import verify_bundle
from aot_runtime import open_bundle
from aot_runtime.bundle.files import Folder
from aot_runtime.contract.records import INDEX, SIGNATURE
from aot_runtime.errors import BundleError, TrustError
from aot_runtime.trust import checking
from aot_runtime.trust.checking import read_trusted_index
from aot_runtime.trust.keys import SigningKey, generate_key, key_id
from aot_runtime.trust.policy import TrustedKey, TrustPolicy
from tests.support.command import aotbundle
from tests.support.forging import adopt_files, edit_index
from tests.support.signing import WHEN, edit_envelope, mutated, refused, sign_statement


def test_a_signed_bundle_computes(signed: Path, policy: TrustPolicy):
    bundle = open_bundle(signed, device="emulator", trust=policy)
    x = np.linspace(-2, 2, 48, dtype=np.float32).reshape(3, 16)
    np.testing.assert_allclose(bundle.affine(x, scale=2.0, shift=1), 2 * x + 1, rtol=1e-6)


def test_one_file_is_signed_as_a_folder_is(
    signed: Path, policy: TrustPolicy, key: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Packed with its signature, or signed when packed, it has the same bytes; another signer's is refused."""
    pack_bundle(signed, tmp_path / "before.aotb")
    (signed / SIGNATURE).unlink()
    pack_bundle(signed, tmp_path / "after.aotb")
    assert "is not signed" in refused(tmp_path / "after.aotb", policy, "unsigned", monkeypatch)
    sign_bundle(tmp_path / "after.aotb", key, WHEN)
    assert (tmp_path / "after.aotb").read_bytes() == (tmp_path / "before.aotb").read_bytes()
    x = np.ones((2, 16), np.float32)
    bundle = open_bundle(tmp_path / "after.aotb", device="emulator", trust=policy)
    np.testing.assert_allclose(bundle.affine(x, scale=2.0, shift=1), 3, rtol=1e-6)
    sign_bundle(tmp_path / "after.aotb", SigningKey(generate_key()[0]), WHEN)
    refused(tmp_path / "after.aotb", policy, "key", monkeypatch)
    unpack_bundle(tmp_path / "before.aotb", tmp_path / "unpacked")
    assert open_bundle(tmp_path / "unpacked", device="emulator", trust=policy).name == "small"


def test_the_environment_names_a_policy(
    signed: Path, policy: TrustPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = SigningKey(generate_key()[0])
    path = tmp_path / "trust.toml"
    path.write_text(f'[keys.other]\npublic = "ed25519:{base64.b64encode(other.public).decode()}"\nbundles = ["*"]\n')
    monkeypatch.setenv("AOTBUNDLE_TRUST", str(path))
    for folder in (signed, signed.parent):
        with pytest.raises(TrustError, match=r"trust\.toml does not list; listed: key 'other' \(ed25519:"):
            open_bundle(folder, device="emulator")
    assert open_bundle(signed, device="emulator", trust=policy).name == "small", "what a call says is stronger"
    monkeypatch.setenv("AOTBUNDLE_TRUST", str(tmp_path / "none.toml"))
    with pytest.raises(TrustError, match="cannot be read"):
        open_bundle(signed, device="emulator")
    monkeypatch.setenv("AOTBUNDLE_TRUST", "")  # a variable that was not filled in turns no check off
    with pytest.raises(TrustError, match="AOTBUNDLE_TRUST is set and empty") as raised:
        open_bundle(signed, device="emulator")
    assert raised.value.reason == "policy" and aotbundle("verify", signed).exit_code == 1
    monkeypatch.delenv("AOTBUNDLE_TRUST")
    assert open_bundle(signed, device="emulator").name == "small"


def widen_grid(index: dict[str, Any]) -> None:
    for op in index["ops"]:
        for launch in op["launches"]:
            launch["grid"][0] = f"({launch['grid'][0]}) * 2"


def swap_kernargs(index: dict[str, Any]) -> None:
    """Swap the first and the last pointer of each variant."""
    for variant in index["variants"]:
        pointers = [arg for arg in variant["kernargs"] if arg["type"].startswith("*") and arg.get("value")]
        first, last = pointers[0], pointers[-1]
        first["value"], last["value"] = last["value"], first["value"]


def rename(index: dict[str, Any]) -> None:
    index["toolchain"]["compiler"] += " "


@pytest.mark.parametrize("edit", [widen_grid, swap_kernargs, rename])
def test_an_altered_index_is_refused(
    signed: Path, policy: TrustPolicy, monkeypatch: pytest.MonkeyPatch, edit: Callable[[dict[str, Any]], None]
):
    """Its hashes and id fit, so without a policy it opens."""
    edit_index(signed, edit)
    assert open_bundle(signed, device="emulator").name == "small"
    assert "was altered" in refused(signed, policy, "altered", monkeypatch)


def test_an_altered_code_object_is_refused_with_and_without_its_hash(
    signed: Path, policy: TrustPolicy, monkeypatch: pytest.MonkeyPatch
):
    for path in sorted((signed / "code").iterdir()):
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    bundle = open_bundle(signed, device="emulator", trust=policy)
    with pytest.raises(BundleError, match="was altered: its size or sha256"):
        bundle.affine(np.ones((2, 16), np.float32))
    adopt_files(signed)
    refused(signed, policy, "altered", monkeypatch)


def test_a_signature_of_another_bundle_is_refused(
    signed: Path, policy: TrustPolicy, key: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is an older signature of the same signer, over a bundle of the same name."""
    other = Path(shutil.copytree(signed, tmp_path / "other"))
    edit_index(other, rename)
    sign_bundle(other, key, WHEN)
    assert open_bundle(other, device="emulator", trust=policy).name == "small"
    shutil.copy(other / SIGNATURE, signed / SIGNATURE)
    assert "or the signature is another's" in refused(signed, policy, "altered", monkeypatch)


def test_what_is_not_signed_is_refused(small_copy: Path, policy: TrustPolicy, monkeypatch: pytest.MonkeyPatch):
    assert "is not signed: it has no bundle.json.sig" in refused(small_copy, policy, "unsigned", monkeypatch)


def test_keys_that_are_unknown_or_revoked(signed: Path, trusted: TrustedKey, monkeypatch: pytest.MonkeyPatch):
    stranger = replace(trusted, public=SigningKey(generate_key()[0]).public)
    assert key_id(trusted.public) in refused(signed, TrustPolicy((stranger,)), "key", monkeypatch)
    refused(signed, TrustPolicy(()), "key", monkeypatch)
    message = refused(signed, TrustPolicy((stranger, replace(trusted, revoked=True))), "revoked", monkeypatch)
    assert f"key 'release' ({trusted.id})" in message


def test_a_key_that_expired_signs_nothing_any_more_nor_ever_did(
    signed: Path, trusted: TrustedKey, key: SigningKey, monkeypatch: pytest.MonkeyPatch
):
    sign_bundle(signed, key, datetime(2020, 1, 1, tzinfo=UTC))
    today = datetime.now(UTC).date()
    assert read_trusted_index(signed, TrustPolicy((replace(trusted, expires=today),))).name == "small"
    for last in (date(2019, 12, 31), date(2020, 1, 2), today - timedelta(1)):
        refused(signed, TrustPolicy((replace(trusted, expires=last),)), "expired", monkeypatch)


def test_a_clock_that_is_behind_prolongs_no_key_for_what_is_signed_later(
    signed: Path, trusted: TrustedKey, key: SigningKey, monkeypatch: pytest.MonkeyPatch
):
    tomorrow = datetime.now(UTC) + timedelta(1)
    sign_bundle(signed, key, tomorrow)
    policy = TrustPolicy((replace(trusted, expires=datetime.now(UTC).date()),))
    refused(signed, policy, "expired", monkeypatch)


def test_a_key_signs_only_the_names_that_it_may(signed: Path, trusted: TrustedKey, monkeypatch: pytest.MonkeyPatch):
    for names in (("attention", "smal"), ()):
        policy = TrustPolicy((replace(trusted, bundles=names),))
        assert "signed bundle 'small', but may sign" in refused(signed, policy, "name", monkeypatch)
    assert read_trusted_index(signed, TrustPolicy((replace(trusted, bundles=("llama", "sm*")),))).name == "small"


def test_older_versions_are_refused(
    signed: Path, trusted: TrustedKey, key: SigningKey, monkeypatch: pytest.MonkeyPatch
):
    policy = TrustPolicy((trusted,), {"small": "1.10", "other": "9"})
    for pattern in ("sm*", "*", "sma??", "Small", "S*"):  # another case refuses, too
        patterns = TrustPolicy((trusted,), {"other*": "1", pattern: "1.10"})
        assert "asks for 1.10 or later" in refused(signed, patterns, "version", monkeypatch)
    assert "has no version" in refused(signed, policy, "version", monkeypatch)
    for version, accepted in {"1.9": False, "1.10rc1": False, "1.10": True, "1.10.1": True, "2.0": True}.items():
        edit_index(signed, lambda index, version=version: index.update(version=version))
        sign_bundle(signed, key, WHEN)
        if accepted:
            assert read_trusted_index(signed, policy).version == version
        else:
            assert "asks for 1.10 or later" in refused(signed, policy, "version", monkeypatch)


def test_a_statement_that_names_the_bundle_otherwise_is_refused(signed: Path, policy: TrustPolicy, key: SigningKey):
    """Otherwise a signer's mistake would circumvent the least version of the policy."""
    digests = {INDEX: hashlib.sha256((signed / INDEX).read_bytes()).hexdigest()}
    sign_statement(signed, key, make_statement("small", "99", digests, WHEN))
    with pytest.raises(TrustError, match="says it is 'small' of version '99', its index 'small' of version ''"):
        open_bundle(signed, device="emulator", trust=policy)


def flip(sig: str) -> str:
    content = bytearray(base64.b64decode(sig))
    content[40] ^= 1
    return base64.b64encode(content).decode()


def shorten(sig: str) -> str:
    return base64.b64encode(base64.b64decode(sig)[:-1]).decode()


@pytest.mark.parametrize("change", [flip, shorten, lambda sig: "", lambda sig: "AAAA" + sig])
def test_a_signature_whose_bytes_are_others_is_refused(
    signed: Path, policy: TrustPolicy, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]
):
    edit_envelope(signed, lambda file: file["signatures"][0].update(sig=change(file["signatures"][0]["sig"])))
    refused(signed, policy, "signature", monkeypatch)


def test_a_forged_statement_is_refused_before_it_is_decoded(
    signed: Path, policy: TrustPolicy, monkeypatch: pytest.MonkeyPatch
):
    """Its digest fits the altered index; the signature is that of the original statement."""
    edit_index(signed, widen_grid)
    digests = {INDEX: hashlib.sha256((signed / INDEX).read_bytes()).hexdigest()}
    forged = base64.b64encode(make_statement("small", "", digests, WHEN)).decode()
    edit_envelope(signed, lambda file: file.update(payload=forged))
    monkeypatch.setattr(checking, "decode_statement", lambda *_: pytest.fail("the statement was decoded"))
    refused(signed, policy, "signature", monkeypatch)


def test_a_signature_for_another_purpose_is_refused(
    signed: Path, policy: TrustPolicy, key: SigningKey, monkeypatch: pytest.MonkeyPatch
):
    """The same key signed the statement with no type, with another type, or with one of another meaning."""
    payload = base64.b64decode(json.loads((signed / SIGNATURE).read_text())["payload"])
    bare = base64.b64encode(key.sign(payload)).decode()
    edit_envelope(signed, lambda file: file["signatures"][0].update(sig=bare))
    refused(signed, policy, "signature", monkeypatch)
    sign_statement(signed, key, payload, "text/plain")
    refused(signed, policy, "malformed", monkeypatch)
    edit_envelope(signed, lambda file: file.update(payloadType=PAYLOAD_TYPE))
    refused(signed, policy, "signature", monkeypatch)
    sign_statement(signed, key, payload.replace(b"bundle-signature:1", b"bundle-approval:1"))
    assert "urn:aotbuild:bundle-signature:1 is allowed" in refused(signed, policy, "malformed", monkeypatch)
    sign_statement(signed, key, payload.replace(b"00Z", b"00+14:00"))
    assert "not in UTC" in refused(signed, policy, "malformed", monkeypatch)


def replaced_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def replaced_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replaced_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def two_signatures(path: Path) -> None:
    edit_envelope(path.parent, lambda file: file.update(signatures=file["signatures"] * 2))


MALFORMED = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "nested": lambda path: path.write_bytes(b'{"x":' * 10000),
    "no base64": lambda path: edit_envelope(path.parent, lambda file: file.update(payload="?")),
    "a number": lambda path: path.write_bytes(b"1"),
    "none": lambda path: edit_envelope(path.parent, lambda file: file.update(signatures=[])),
    "two": two_signatures,
    "huge": lambda path: path.write_bytes(path.read_bytes() + b" " * MAX_SIGNATURE_BYTES),
    "sparse": lambda path: os.truncate(path, 1 << 40),
    "link": replaced_by_link,
    "pipe": replaced_by_pipe,
    "folder": replaced_by_folder,
}  # fmt: skip


@pytest.mark.parametrize("damage", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_signature_file_is_refused(
    signed: Path, policy: TrustPolicy, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], Any]
):
    damage(signed / SIGNATURE)
    refused(signed, policy, "malformed", monkeypatch)
    with pytest.raises(TrustError):  # also where nobody asked whose it is
        signature_state(signed, None)
    assert verify_bundle(signed) == [], "the bundle itself is as it was"


def test_mutated_signature_files_are_refused_unless_they_sign_the_same(signed: Path, policy: TrustPolicy):
    path = signed / SIGNATURE
    content = path.read_bytes()
    original = decode_envelope(content, path)
    reasons = set()
    for seed in range(200):
        path.write_bytes(mutated(content, random.Random(seed)))
        try:
            checking.check_signature(Folder(signed), (signed / INDEX).read_bytes(), policy)
            assert decode_envelope(path.read_bytes(), path) == original, seed
        except TrustError as error:
            reasons.add(error.reason)
    assert reasons == {"malformed", "signature", "key"}


def test_the_state_of_a_signature(signed: Path, policy: TrustPolicy, trusted: TrustedKey, small_bundle: Path):
    assert signature_state(small_bundle, None) == SignatureState("unsigned", "not signed")
    what = "small, on 2026-11-22 12:00 UTC"
    accepted = SignatureState("accepted", f"signed by key 'release' ({trusted.id}): {what}")
    assert signature_state(signed, policy) == accepted
    assert signature_state(signed, None).text.endswith(f"not verified, since no policy is set: {what}")
    header = signed / "include/small.h"
    header.write_text(header.read_text().replace("#define", "#undef", 1))
    for known in (policy, None):
        with pytest.raises(TrustError, match=r"include/small\.h was altered"):
            signature_state(signed, known)
