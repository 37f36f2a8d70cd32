"""A bundle that is signed, and the key and policy that it is signed by."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot_runtime.trust.keys import SigningKey, generate_key
from aot_runtime.trust.policy import TrustedKey, TrustPolicy
from aot_runtime.trust.signing import sign_bundle
from tests.support.signing import WHEN


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
