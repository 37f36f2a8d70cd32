"""Policy files: what they say, and that nothing is opened by one that is wrong."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from aot_runtime import open_bundle
from aot_runtime.errors import TrustError
from aot_runtime.trust.policy import MAX_POLICY_BYTES, TrustedIdentity, TrustedKey, read_policy
from tests.docs.markdown import blocks

PUBLIC = "ed25519:" + "A" * 43 + "="
IDENTITY = '[identities.ci]\nissuer = "https://i"\nsubject = "a@b.c"\nbundles = ["x"]\n'
KEY = f'[keys.a]\npublic = "{PUBLIC}"\nbundles = ["x"]\n'


def test_a_policy_file(tmp_path: Path):
    path = tmp_path / "trust.toml"
    path.write_text(f'{KEY}expires = 2028-01-31\nrevoked = true\n[least_versions]\nx = "1.2rc1"\n')
    policy = read_policy(path)
    assert policy.keys == (TrustedKey("a", bytes(32), ("x",), date(2028, 1, 31), True),)
    assert policy.least_versions == {"x": "1.2rc1"} and str(path) in policy.source


def test_a_policy_file_of_identities(tmp_path: Path):
    path = tmp_path / "trust.toml"
    path.write_text(f'trusted_root = "root.json"\n{IDENTITY}expires = 2028-01-31\nrevoked = true\n')
    policy = read_policy(path)
    assert policy.identities == (TrustedIdentity("ci", "https://i", "a@b.c", ("x",), date(2028, 1, 31), True),)
    assert policy.trusted_root == tmp_path / "root.json" and policy.keys == ()


def test_the_policies_of_the_page(tmp_path: Path):
    page = (Path(__file__).parents[3] / "docs/howto/trust.md").read_text(encoding="utf-8")
    policies = []
    for block in blocks(page, "toml"):
        (tmp_path / "trust.toml").write_text(block.text)
        policies.append(read_policy(tmp_path / "trust.toml"))
    by_key, by_identity = policies
    assert [key.revoked for key in by_key.keys] == [False, True]
    assert [item.label for item in by_identity.identities] == ["release"]


FAULTS = {
    "[keys.a": "Expected",
    "keys = 1": r"\$\.keys",
    "": "it has neither `keys` nor `identities`",
    KEY.replace("public", "publik"): "publik|missing required field `public`",
    KEY + "expires = 'soon'": r"expires",
    KEY + "revoke = true": "unknown field `revoke`",
    KEY.replace("ed25519:", "rsa:"): r"keys\.a\.public: 'rsa:A+=' is no public key",
    KEY.replace("AAAA", ""): "is no public key",
    KEY.replace("AAAA", "?AAA", 1): "is no public key",
    KEY.replace('["x"]', '"x"'): "bundles",
    KEY + KEY.replace("keys.a", "keys.b"): "a key is there twice",
    KEY + "[least_versions]\nx = '1.2-beta'": r"least_versions\.x: '1.2-beta' is no version",
    KEY + "[least_versions]\nx = 1.2": "least_versions",
    KEY + "# " + "x" * MAX_POLICY_BYTES: "is over",
    IDENTITY.replace("issuer", "isuer"): "isuer|missing required field `issuer`",
    IDENTITY.replace("a@b.c", "*"): r"identities\.ci: it needs an issuer, and a subject that is not only a pattern",
    IDENTITY.replace("https://i", ""): r"identities\.ci: it needs an issuer",
    IDENTITY + IDENTITY.replace("ci", "other"): "an identity is there twice",
    'trusted_root = "root.json"\n' + KEY: "trusted_root is for `identities`",
    "a = " + "[" * 5000: "trust policy",
}


@pytest.mark.parametrize(("text", "message"), FAULTS.items(), ids=range(len(FAULTS)))
def test_a_policy_that_is_wrong_opens_nothing(tmp_path: Path, text: str, message: str):
    path = tmp_path / "trust.toml"
    path.write_text(text)
    with pytest.raises(TrustError, match=message) as raised:
        open_bundle(tmp_path, device="emulator", trust=path)
    assert raised.value.reason == "policy" and str(path) in str(raised.value)


@pytest.mark.parametrize("path", ["", "none.toml", "."])
def test_a_policy_that_cannot_be_read_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrustError, match="cannot be read"):
        open_bundle(tmp_path, device="emulator", trust=path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TrustError, match="utf-8"):
        read_policy(tmp_path / "binary.toml")
