"""Policies: which keys may sign which bundles, and the least versions that are accepted."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from aot_runtime.contract.versions import is_version, version_key
from aot_runtime.errors import TrustError
from aot_runtime.texts import shown

from .keys import decode_public, key_id
from .statement import Predicate

MAX_POLICY_BYTES = 1 << 20


@dataclass(frozen=True)
class TrustedKey:
    """A key that may sign bundles.

    Attributes:
        label: what the policy calls it.
        public: its 32 bytes.
        bundles: the names of the bundles that it may sign, or patterns of them (`llama_*`).
        expires: the last day on which its signatures are accepted; None: there is none.
        revoked: nothing that it signed is accepted, whenever that was.
    """

    label: str
    public: bytes
    bundles: tuple[str, ...]
    expires: date | None = None
    revoked: bool = False

    @property
    def id(self) -> str:
        """Its name in signature files."""
        return key_id(self.public)

    def __str__(self) -> str:
        return f"key '{self.label}' ({self.id})"


@dataclass(frozen=True)
class TrustPolicy:
    """Whose bundles are opened, and how old they may be.

    Attributes:
        keys: those whose signatures are accepted, and those that are revoked.
        least_versions: name of a bundle → the oldest version of it that is accepted.
        source: where the policy comes from, for messages.
    """

    keys: tuple[TrustedKey, ...]
    least_versions: Mapping[str, str] = field(default_factory=dict)
    source: str = "the policy"

    def find_key(self, keyid: str) -> TrustedKey:
        """The key of that id. Raises `TrustError` where it is unknown or revoked."""
        known = {key.id: key for key in self.keys}
        key = known.get(keyid)
        if key is None:
            there = ", ".join(str(key) for key in self.keys) or "none"
            raise TrustError(
                f"it is signed by {shown(keyid)}, which {self.source} does not have; there: {there}", "key"
            )
        if key.revoked:
            raise TrustError(f"it is signed by {key}, which {self.source} says is revoked", "revoked")
        return key

    def accept(self, key: TrustedKey, said: Predicate) -> None:
        """Hold what a key signed of a bundle to the policy. Raises `TrustError`."""
        # A clock that is behind makes no key valid again for what is known to be signed later.
        today = max(datetime.now(UTC), said.signed_on).astimezone(UTC).date()
        if key.expires is not None and today > key.expires:
            raise TrustError(f"it is signed by {key}, which expired on {key.expires} and is used on {today}", "expired")
        if not any(fnmatchcase(said.name, pattern) for pattern in key.bundles):
            raise TrustError(f"{key} signed bundle '{said.name}', but may sign {', '.join(key.bundles)} only", "name")
        least = self.least_versions.get(said.name)
        if least is not None and not (is_version(said.version) and version_key(said.version) >= version_key(least)):
            has = f"has version {said.version}" if said.version else "has no version"
            raise TrustError(f"bundle '{said.name}' {has}; {self.source} asks for {least} or later", "version")


class _KeyEntry(msgspec.Struct, forbid_unknown_fields=True):
    public: str
    bundles: tuple[str, ...]
    expires: date | None = None
    revoked: bool = False


class _PolicyFile(msgspec.Struct, forbid_unknown_fields=True):
    keys: dict[str, _KeyEntry]
    least_versions: dict[str, str] = {}


def read_policy(path: str | os.PathLike[str]) -> TrustPolicy:
    """Read a policy file. Raises `TrustError`, so that nothing is opened by a policy that cannot be read."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_POLICY_BYTES + 1)
        if len(data) > MAX_POLICY_BYTES:
            raise ValueError(f"it is over {MAX_POLICY_BYTES} bytes")
        entries = msgspec.convert(tomllib.loads(data.decode()), _PolicyFile)
        return _checked(entries, f"trust policy {os.fspath(path)}")
    except OSError as error:
        raise TrustError(f"trust policy {os.fspath(path)} cannot be read: {error.strerror}", "policy") from None
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8 and msgspec, too
        raise TrustError(f"trust policy {os.fspath(path)}: {error}", "policy") from None


def _checked(entries: _PolicyFile, source: str) -> TrustPolicy:
    """Raises ValueError."""
    keys = []
    for label, entry in entries.keys.items():
        try:
            public = decode_public(entry.public)
        except ValueError as error:
            raise ValueError(f"keys.{label}.public: {error}") from None
        keys.append(TrustedKey(label, public, entry.bundles, entry.expires, entry.revoked))
    if len({key.public for key in keys}) != len(keys):
        raise ValueError("a key is there twice")
    for name, version in entries.least_versions.items():
        if not is_version(version):
            raise ValueError(f"least_versions.{name}: {version!r} is no version of a bundle; '1.2' would be one")
    return TrustPolicy(tuple(keys), entries.least_versions, source)


def find_policy(trust: TrustPolicy | str | os.PathLike[str]) -> TrustPolicy:
    """A policy, or the one in a file. Raises `TrustError`."""
    return trust if isinstance(trust, TrustPolicy) else read_policy(trust)
