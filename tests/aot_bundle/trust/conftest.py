"""Bundles signed with a key and by an identity, and the policies that accept them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aot_bundle.trust.signing import bundle_statement, sign_bundle
from aot_runtime.bundle.files import Folder
from aot_runtime.contract.records import SIGSTORE
from aot_runtime.trust.keys import SigningKey, generate_key
from aot_runtime.trust.policy import TrustedIdentity, TrustedKey, TrustPolicy
from tests.support.signing import ISSUER, SUBJECT, WHEN

if TYPE_CHECKING:
    from tests.support.sigstore_instance import Instance


@pytest.fixture(scope="session")
def key() -> SigningKey:
    pytest.importorskip("cryptography", reason="signatures need the extra `trust`")
    return SigningKey(generate_key()[0])


@pytest.fixture
def trusted(key: SigningKey) -> TrustedKey:
    return TrustedKey("release", key.public, ("small",))


@pytest.fixture
def policy(trusted: TrustedKey) -> TrustPolicy:
    return TrustPolicy((trusted,))


@pytest.fixture
def signed(small_copy: Path, key: SigningKey) -> Path:
    """A signed copy of `small_bundle` that a test may damage."""
    sign_bundle(small_copy, key, WHEN)
    return small_copy


@pytest.fixture(scope="session")
def instance() -> Instance:
    pytest.importorskip("sigstore", reason="sigstore's signatures need the extra `sigstore`")
    from tests.support.sigstore_instance import Instance

    return Instance()


@pytest.fixture
def identity() -> TrustedIdentity:
    return TrustedIdentity("ci", ISSUER, SUBJECT, ("small",))


@pytest.fixture
def identity_policy(instance: Instance, identity: TrustedIdentity, tmp_path: Path) -> TrustPolicy:
    """Return a policy that lets the identity sign, and believes the instance."""
    root = tmp_path / "trusted_root.json"
    root.write_text(json.dumps(instance.trusted_root()))
    return TrustPolicy(identities=(identity,), trusted_root=root)


@pytest.fixture
def sigstore_signed(small_copy: Path, instance: Instance) -> Path:
    """A copy of `small_bundle` that the identity signed."""
    (small_copy / SIGSTORE).write_text(json.dumps(instance.signed(bundle_statement(Folder(small_copy), WHEN))))
    return small_copy
