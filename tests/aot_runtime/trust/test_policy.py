"""Policy files: their meaning, and refusal of invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from aot_bundle.trust.statement import Predicate
from aot_runtime import open_bundle
from aot_runtime.errors import TrustError
from aot_runtime.trust.policy import (
    MAX_POLICY_BYTES,
    TrustedIdentity,
    TrustedKey,
    TrustPolicy,
    find_policy,
    matches,
    read_policy,
)
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
    KEY.replace("ed25519:", "rsa:"): r"keys\.a\.public: 'rsa:A+=' is not a public key",
    KEY.replace("AAAA", ""): "is not a public key",
    KEY.replace("AAAA", "?AAA", 1): "is not a public key",
    KEY.replace('["x"]', '"x"'): "bundles",
    KEY + KEY.replace("keys.a", "keys.b"): "a key is listed twice",
    KEY + "[least_versions]\nx = '1.2-beta'": r"least_versions\.x: '1.2-beta' is not a valid bundle version",
    KEY + "[least_versions]\nx = 1.2": "least_versions",
    KEY + "# " + "x" * MAX_POLICY_BYTES: "is over",
    IDENTITY.replace("issuer", "isuer"): "isuer|missing required field `issuer`",
    IDENTITY.replace("a@b.c", "*"): r"identities\.ci: it needs an issuer, and a subject that is not only a pattern",
    IDENTITY.replace("https://i", ""): r"identities\.ci: it needs an issuer",
    IDENTITY.replace("a@b.c", ""): r"identities\.ci: it needs an issuer, and a subject",
    IDENTITY.replace("a@b.c", "*@*.?"): "that is not only a pattern",
    IDENTITY.replace("a@b.c", "[!\\n]*"): "that is not only a pattern",
    IDENTITY.replace("a@b.c", "a@b\\n*"): "has a character that cannot be printed",
    IDENTITY.replace("https://i", "https://*"): r"identities\.ci\.issuer is 'https://\*'; it is compared exactly",
    IDENTITY + IDENTITY.replace("ci", "other"): "an identity is listed twice",
    KEY.replace('["x"]', '[""]'): r"keys\.a\.bundles is \(''\,\)",
    KEY + "expires = 2040-01-01T00:00:00": "expires",
    KEY + "[least_versions]\n'x[yz]*' = '1'": r"least_versions has 'x\[yz\]\*', which is neither",
    KEY + "[least_versions]\nx-gfx942 = '1'": "least_versions has 'x-gfx942', which is neither",
    KEY + "[least_versions]\n'*' = ''": r"least_versions\.\*: '' is not a valid bundle version",
    'trusted_root = "root.json"\n' + KEY: "trusted_root is set, but the policy has no `identities`",
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


# Policies of programs

HUB = "https://i"
BOT = "1+bot[bot]@b.c"


def identity(subject: str, **fields: object) -> TrustedIdentity:
    return replace(TrustedIdentity("ci", HUB, subject, ("*",)), **fields)


KEYS: dict[str, Callable[[], TrustPolicy]] = {
    "a key is listed twice": lambda: TrustPolicy((key(revoked=True), key())),
    r"keys\.a\.public is b'short'; 32 bytes are allowed": lambda: TrustPolicy((key(public=b"short"),)),
    r"keys\.a\.bundles is 'x'; a tuple of names": lambda: TrustPolicy((key(bundles="x"),)),
    r"keys\.a\.bundles is \(1,\); a tuple of names": lambda: TrustPolicy((key(bundles=(1,)),)),
    r"keys\.a\.expires is datetime.*; a date without": lambda: TrustPolicy((key(expires=datetime(2040, 1, 1)),)),
    r"keys\.a\.expires is '2040-01-01'; a date": lambda: TrustPolicy((key(expires="2040-01-01"),)),
    r"keys\.a\.revoked is 'false'; True and False": lambda: TrustPolicy((key(revoked="false"),)),
    r"keys is 'ab'; a tuple of TrustedKey": lambda: TrustPolicy("ab"),  # type: ignore[arg-type]
    r"identities is \(TrustedKey.*; a tuple of": lambda: TrustPolicy(identities=(key(),)),  # type: ignore[arg-type]
    r"issuer None and subject 'a@b.c'; texts": lambda: TrustPolicy(identities=(identity("a@b.c", issuer=None),)),
    "it needs an issuer, and a subject": lambda: TrustPolicy(identities=(identity(""),)),
    "a subject that is not only a pattern": lambda: TrustPolicy(identities=(identity("*?*"),)),
    "an identity is listed twice": lambda: TrustPolicy(identities=(identity("a"), identity("a", revoked=True))),
    "trusted_root is 5; the path": lambda: TrustPolicy(
        identities=(identity("a"),),
        trusted_root=5,  # type: ignore[arg-type]
    ),
    r"trusted_root is set, but the policy has no `identities`": lambda: TrustPolicy(
        (key(),), trusted_root=Path("root.json")
    ),
    r"least_versions is \['x'\]; a mapping": lambda: TrustPolicy((key(),), ["x"]),  # type: ignore[arg-type]
    r"least_versions\.x: 'new' is not a valid bundle version": lambda: TrustPolicy((key(),), {"x": "new"}),
    r"least_versions\.x: 1.2 is not a valid bundle version": lambda: TrustPolicy((key(),), {"x": 1.2}),  # type: ignore[dict-item]
}


def key(**fields: object) -> TrustedKey:
    return replace(TrustedKey("a", bytes(32), ("x",)), **fields)


@pytest.mark.parametrize(("message", "make"), KEYS.items(), ids=range(len(KEYS)))
def test_a_policy_of_a_program_is_held_to_what_files_are(message: str, make: Callable[[], TrustPolicy]):
    with pytest.raises(TrustError, match=f"the policy: .*{message}") as raised:
        make()
    assert raised.value.reason == "policy"


@pytest.mark.parametrize("trust", [b"trust.toml", 5, False, TrustPolicy])
def test_what_is_neither_a_policy_nor_a_path(tmp_path: Path, trust: object):
    with pytest.raises(TrustError, match=r"trust is .*; a TrustPolicy or the path of a policy file is allowed"):
        find_policy(trust)  # type: ignore[arg-type]
    with pytest.raises(TrustError):
        open_bundle(tmp_path, device="emulator", trust=trust)  # type: ignore[arg-type]


def test_a_policy_does_not_change_with_what_it_was_made_of():
    least = {"x": "1"}
    policy = TrustPolicy((key(),), least)
    least["x"] = "none"
    assert policy.least_versions == {"x": "1"}


@pytest.mark.parametrize(
    ("text", "pattern", "is_match"),
    [
        (BOT, BOT, True),
        ("1+botb@b.c", BOT, False),
        ("1+boto@b.c", "1+bot[!x]@b.c", False),
        ("a]", "a]", True),
        ("[", "[", True),
        ("[[]", "[[]", True),
        ("[", "[[]", False),
        ("a\nb", "a?b", True),
        ("abc", "a*c", True),
        ("ac", "a*c", True),
        ("ac", "a?c", False),
        ("A", "a", False),
        ("a.c", "abc", False),
        ("abc", "a.c", False),
        ("{a}", "{a}", True),
        ("a\\", "a\\", True),
        ("", "*", True),
        ("a" * 5000 + "c", "a*" * 50 + "b", False),
    ],
)
def test_patterns(text: str, pattern: str, is_match: bool):
    assert matches(text, pattern) is is_match


def test_the_patterns_of_subjects_and_bundles():
    """A bracket means itself: the account with brackets in its name may sign, and one that only resembles it may
    not."""
    policy = TrustPolicy((key(bundles=("x_[0-9]",)),), identities=(identity(BOT),))
    assert policy.find_identity(HUB, BOT).subject == BOT
    for subject in ("1+botb@b.c", "1+boto@b.c", "1+bot@b.c", BOT.upper()):
        with pytest.raises(TrustError, match="not listed in the policy"):
            policy.find_identity(HUB, subject)
    with pytest.raises(TrustError, match=r"may sign x_\[0-9\] only"):
        policy.accept(policy.keys[0], Predicate("x_7", "", datetime.now(UTC)))


@pytest.mark.parametrize("others", [(identity("*@b.c"),), ()])
@pytest.mark.parametrize("revoked", [BOT, BOT.upper(), "*[bot]@B.c"])
def test_a_revoked_identity_refuses_whatever_else_fits(others: tuple[TrustedIdentity, ...], revoked: str):
    policy = TrustPolicy(identities=(*others, identity(revoked, revoked=True)))
    with pytest.raises(TrustError, match="says is revoked") as raised:
        policy.find_identity(HUB, BOT)
    assert raised.value.reason == "revoked"
