"""`aotbundle sign --sigstore` with a test instance of sigstore, over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aot_bundle.packing import pack_bundle
from aot_runtime.contract.records import SIGSTORE
from tests.support.command import aotbundle
from tests.support.signing import ISSUER, SUBJECT

if TYPE_CHECKING:
    from tests.support.sigstore_instance import Instance


@pytest.fixture
def in_ci(instance: Instance, monkeypatch: pytest.MonkeyPatch):
    """A job of a CI service that hands out tokens."""
    from tests.support.sigstore_server import token

    for name in ("GITHUB_ACTIONS", "BUILDKITE", "CIRCLECI", "GCE_METADATA_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token())


@pytest.mark.usefixtures("in_ci")
def test_a_job_signs_a_bundle_that_its_identity_is_trusted_for(
    instance: Instance, small_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from tests.support.sigstore_server import serve

    archive = tmp_path / "small.aotb"
    pack_bundle(small_copy, archive)
    with serve(instance) as config:
        (tmp_path / "config.json").write_text(json.dumps(config))
        signed = aotbundle("sign", small_copy, archive, "--sigstore", "--sigstore-config", tmp_path / "config.json")
    assert signed.exit_code == 0, signed.output
    assert signed.stdout == "".join(f"{place}: signed by {SUBJECT} of {ISSUER}\n" for place in (small_copy, archive))
    (tmp_path / "root.json").write_text(json.dumps(instance.trusted_root()))
    policy = tmp_path / "trust.toml"
    policy.write_text(
        f'trusted_root = "root.json"\n'
        f'[identities.ci]\nissuer = "{ISSUER}"\nsubject = "{SUBJECT}"\nbundles = ["small"]\n'
    )
    verified = aotbundle("verify", small_copy, archive, "--trust", policy)
    assert verified.exit_code == 0 and verified.stdout.count("ok, signed by identity 'ci' (") == 2
    policy.write_text(policy.read_text().replace("release.yml", "test.yml"))
    other = aotbundle("verify", small_copy, archive, "--trust", policy)
    assert other.exit_code == 1 and other.stdout.count("not listed in trust policy") == 2


@pytest.mark.usefixtures("in_ci")
def test_where_sigstore_does_not_sign_nothing_is_written(
    instance: Instance, small_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from tests.support.sigstore_server import serve

    config = tmp_path / "config.json"

    def sign() -> str:
        result = aotbundle("sign", small_copy, "--sigstore", "--sigstore-config", config)
        assert result.exit_code == 1 and not (small_copy / SIGSTORE).exists()
        return result.stderr

    assert "signing with sigstore failed: FileNotFoundError" in sign()
    config.write_text("{}")
    assert "signing with sigstore failed: ValidationError" in sign()
    with serve(instance, status=403) as content:
        config.write_text(json.dumps(content))
        assert "signing with sigstore failed: FulcioClientError: HTTPError 403" in sign()
    assert "signing with sigstore failed: ConnectionError" in sign(), "nobody answers any more"
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", "no token")
    assert "signing with sigstore failed: IdentityError" in sign()


def test_the_way_to_sign_is_said_once(small_copy: Path, tmp_path: Path):
    for options in ((), ("--sigstore", "--key", "a.key"), ("--key", "a.key", "--sigstore-config", "x.json")):
        result = aotbundle("sign", small_copy, *options)
        assert result.exit_code == 2 and "--sigstore" in result.stderr
