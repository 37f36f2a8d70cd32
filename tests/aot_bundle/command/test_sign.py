"""`aotbundle keygen` and `sign`, and `verify` on signatures."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aot_runtime.contract.records import SIGNATURE
from tests.support.command import aotbundle
from tests.support.forging import edit_index


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return a private key, and the policy that `keygen` printed."""
    pytest.importorskip("cryptography", reason="signatures need the extra `trust`")
    key, policy = tmp_path / "team.key", tmp_path / "trust.toml"
    made = aotbundle("keygen", key)
    assert made.exit_code == 0, made.output
    policy.write_text(made.stdout)
    return key, policy


def test_keys_are_the_owners_and_are_never_written_over(files: tuple[Path, Path]):
    key, policy = files
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and key.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert "PRIVATE" not in policy.read_text()
    before = key.read_bytes()
    again = aotbundle("keygen", key)
    assert again.exit_code == 1 and "exists already" in again.stderr and key.read_bytes() == before


def test_from_a_key_to_a_verified_bundle(files: tuple[Path, Path], small_copy: Path, monkeypatch: pytest.MonkeyPatch):
    key, policy = files
    refused = aotbundle("verify", small_copy, "--trust", policy)
    assert refused.exit_code == 1 and "is not signed: it has no bundle.json.sig" in refused.output
    assert aotbundle("verify", small_copy).stdout == f"{small_copy}: ok, not signed\n"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert aotbundle("sign", small_copy.parent, "--key", key).exit_code == 0
    first = (small_copy / SIGNATURE).read_bytes()
    assert aotbundle("sign", small_copy, "--key", key).exit_code == 0
    assert (small_copy / SIGNATURE).read_bytes() == first, "the same each time"
    assert [path.name for path in small_copy.iterdir() if path.name.startswith(".")] == []
    monkeypatch.setenv("AOTBUNDLE_TRUST", str(policy))
    verified = aotbundle("verify", small_copy)
    assert verified.exit_code == 0 and "ok, signed by key 'team' (ed25519:" in verified.stdout
    assert "on 2023-11-14 22:13 UTC" in verified.stdout
    edit_index(small_copy, lambda index: index["toolchain"].update(note="forged"))
    forged = aotbundle("verify", small_copy, "--json")
    (faults,) = json.loads(forged.stdout).values()
    assert forged.exit_code == 1 and any("is not trusted" in fault for fault in faults)


def test_what_is_not_whole_is_not_signed(files: tuple[Path, Path], small_copy: Path):
    next((small_copy / "code").iterdir()).write_bytes(b"other")
    result = aotbundle("sign", small_copy, "--key", files[0])
    assert result.exit_code == 1 and "is damaged" in result.stderr and "was altered" in result.stderr
    assert not (small_copy / SIGNATURE).exists()


def test_keys_that_cannot_sign(files: tuple[Path, Path], small_copy: Path, tmp_path: Path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

    def pem(key: ed25519.Ed25519PrivateKey | x25519.X25519PrivateKey, password: bytes = b"") -> bytes:
        locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)

    contents = {
        b"": "is not a private key in PEM",
        files[0].read_bytes()[:60]: "is not a private key in PEM",
        pem(x25519.X25519PrivateKey.generate()): "of another algorithm",
        pem(ed25519.Ed25519PrivateKey.generate(), b"secret"): "is encrypted",
    }
    for content, message in contents.items():
        (tmp_path / "bad.key").write_bytes(content)
        result = aotbundle("sign", small_copy, "--key", tmp_path / "bad.key")
        assert result.exit_code == 1 and message in result.stderr
    missing = aotbundle("sign", small_copy, "--key", tmp_path / "none.key")
    assert missing.exit_code == 1 and "cannot be read: No such file" in missing.stderr
    assert not (small_copy / SIGNATURE).exists()


def test_a_time_that_is_none_is_refused(files: tuple[Path, Path], small_copy: Path, monkeypatch: pytest.MonkeyPatch):
    for said in ("yesterday", "9" * 30):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", said)
        result = aotbundle("sign", small_copy, "--key", files[0])
        assert result.exit_code == 1 and f"SOURCE_DATE_EPOCH is '{said}'" in result.stderr


def test_the_library_is_needed_by_policies_only(small_bundle: Path, tmp_path: Path):
    """Without it, bundles open. Operations on signatures fail with an error that names the package."""
    policy = tmp_path / "trust.toml"
    policy.write_text(f'[keys.a]\npublic = "ed25519:{"A" * 43}="\nbundles = ["*"]\n')
    code = f"""if True:
        import sys
        sys.modules["cryptography"] = None
        from aot_runtime import open_bundle
        from aot_runtime.errors import TrustError
        from aot_runtime.trust.keys import generate_key, is_signed_by
        open_bundle({str(small_bundle)!r}, device="emulator")
        assert not {{"tomllib", "aot_runtime.trust.policy"}} & set(sys.modules)
        for needs in (generate_key, lambda: is_signed_by(bytes(32), b"", b"")):
            try:
                needs()
            except TrustError as error:
                assert error.reason == "library" and "pip install 'aot-runtime[trust]'" in str(error)
            else:
                raise SystemExit("it went without")
    """
    subprocess.run([sys.executable, "-c", code], check=True)
