"""Policies: which keys and identities may sign which bundles, and the least versions that are accepted."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
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
class TrustedIdentity:
    """Somebody who may sign bundles with sigstore: a person, or a workflow of a CI service.

    Attributes:
        label: what the policy calls it.
        issuer: the URL of the service that said who signs, exactly.
        subject: the e-mail address or the workflow's URL, as the certificate has it, or a pattern of it (`*`, `?`).
        bundles: the names of the bundles that it may sign, or patterns of them (`llama_*`).
        expires: the last day on which its signatures are accepted; None: there is none.
        revoked: nothing that it signed is accepted, whenever that was.
    """

    label: str
    issuer: str
    subject: str
    bundles: tuple[str, ...]
    expires: date | None = None
    revoked: bool = False

    def __str__(self) -> str:
        return f"identity '{self.label}' ({self.subject} of {self.issuer})"


@dataclass(frozen=True)
class TrustPolicy:
    """Whose bundles are opened, and how old they may be.

    Attributes:
        keys: those whose signatures are accepted, and those that are revoked.
        least_versions: name of a bundle → the oldest version of it that is accepted.
        source: where the policy comes from, for messages.
        identities: those whose sigstore signatures are accepted, and those that are revoked.
        trusted_root: a file with the keys and certificates of the sigstore services that are believed; None: those
            of the public ones, as the library `sigstore` has them on this machine.
    """

    keys: tuple[TrustedKey, ...] = ()
    least_versions: Mapping[str, str] = field(default_factory=dict)
    source: str = "the policy"
    identities: tuple[TrustedIdentity, ...] = ()
    trusted_root: Path | None = None

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

    def find_identity(self, issuer: str, subject: str) -> TrustedIdentity:
        """The first identity that somebody is. Raises `TrustError` where none is, or one that is revoked."""
        known = [item for item in self.identities if item.issuer == issuer and fnmatchcase(subject, item.subject)]
        if not known:
            there = ", ".join(str(item) for item in self.identities) or "none"
            raise TrustError(
                f"it is signed by {subject!r:.300} of {issuer!r:.300}: unknown to {self.source}; there: {there}",
                "identity",
            )
        for item in known:
            if item.revoked:
                raise TrustError(f"it is signed by {item}, which {self.source} says is revoked", "revoked")
        return known[0]

    def accept(self, signer: TrustedKey | TrustedIdentity, said: Predicate, proven: datetime | None = None) -> None:
        """Hold what was signed of a bundle to the policy. Raises `TrustError`.

        proven: a time before which it was not signed, whatever the signer says; None: none is known.
        """
        # A clock that is behind makes no signer valid again for what is known to be signed later.
        times = (datetime.now(UTC), said.signed_on, *([proven] if proven else ()))
        today = max(times).astimezone(UTC).date()
        if signer.expires is not None and today > signer.expires:
            raise TrustError(
                f"it is signed by {signer}, which expired on {signer.expires} and is used on {today}", "expired"
            )
        if not any(fnmatchcase(said.name, pattern) for pattern in signer.bundles):
            may = ", ".join(signer.bundles)
            raise TrustError(f"{signer} signed bundle '{said.name}', but may sign {may} only", "name")
        least = self.least_versions.get(said.name)
        if least is not None and not (is_version(said.version) and version_key(said.version) >= version_key(least)):
            has = f"has version {said.version}" if said.version else "has no version"
            raise TrustError(f"bundle '{said.name}' {has}; {self.source} asks for {least} or later", "version")


class _KeyEntry(msgspec.Struct, forbid_unknown_fields=True):
    public: str
    bundles: tuple[str, ...]
    expires: date | None = None
    revoked: bool = False


class _IdentityEntry(msgspec.Struct, forbid_unknown_fields=True):
    issuer: str
    subject: str
    bundles: tuple[str, ...]
    expires: date | None = None
    revoked: bool = False


class _PolicyFile(msgspec.Struct, forbid_unknown_fields=True):
    keys: dict[str, _KeyEntry] = {}
    identities: dict[str, _IdentityEntry] = {}
    trusted_root: str = ""
    least_versions: dict[str, str] = {}


def read_policy(path: str | os.PathLike[str]) -> TrustPolicy:
    """Read a policy file. Raises `TrustError`, so that nothing is opened by a policy that cannot be read."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_POLICY_BYTES + 1)
        if len(data) > MAX_POLICY_BYTES:
            raise ValueError(f"it is over {MAX_POLICY_BYTES} bytes")
        entries = msgspec.convert(tomllib.loads(data.decode()), _PolicyFile)
        return _checked(entries, Path(path))
    except OSError as error:
        raise TrustError(f"trust policy {os.fspath(path)} cannot be read: {error.strerror}", "policy") from None
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8 and msgspec, too
        raise TrustError(f"trust policy {os.fspath(path)}: {error}", "policy") from None


def _checked(entries: _PolicyFile, path: Path) -> TrustPolicy:
    """Raises ValueError."""
    if not (entries.keys or entries.identities):
        raise ValueError("it has neither `keys` nor `identities`")
    if entries.trusted_root and not entries.identities:
        raise ValueError("trusted_root is for `identities`, of which it has none")
    for name, version in entries.least_versions.items():
        if not is_version(version):
            raise ValueError(f"least_versions.{name}: {version!r} is no version of a bundle; '1.2' would be one")
    return TrustPolicy(
        tuple(_keys(entries.keys)),
        entries.least_versions,
        f"trust policy {path}",
        tuple(_identities(entries.identities)),
        path.parent / entries.trusted_root if entries.trusted_root else None,
    )


def _keys(entries: Mapping[str, _KeyEntry]) -> Iterator[TrustedKey]:
    known: set[bytes] = set()
    for label, entry in entries.items():
        try:
            public = decode_public(entry.public)
        except ValueError as error:
            raise ValueError(f"keys.{label}.public: {error}") from None
        if public in known:
            raise ValueError("a key is there twice")
        known.add(public)
        yield TrustedKey(label, public, entry.bundles, entry.expires, entry.revoked)


def _identities(entries: Mapping[str, _IdentityEntry]) -> Iterator[TrustedIdentity]:
    known: set[tuple[str, str]] = set()
    for label, entry in entries.items():
        if not (entry.subject.strip("*?") and entry.issuer):
            raise ValueError(f"identities.{label}: it needs an issuer, and a subject that is not only a pattern")
        if (entry.issuer, entry.subject) in known:
            raise ValueError("an identity is there twice")
        known.add((entry.issuer, entry.subject))
        yield TrustedIdentity(label, entry.issuer, entry.subject, entry.bundles, entry.expires, entry.revoked)


def find_policy(trust: TrustPolicy | str | os.PathLike[str]) -> TrustPolicy:
    """A policy, or the one in a file. Raises `TrustError`."""
    return trust if isinstance(trust, TrustPolicy) else read_policy(trust)
