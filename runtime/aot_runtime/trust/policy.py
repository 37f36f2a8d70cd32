"""Policies: which keys and identities may sign which bundles, and the least versions that are accepted.

A policy is held to the same rules whether it was read from a file or made in a program (`policy_faults`). In its
patterns `*` stands for any characters and `?` for one; everything else is itself (`matches`). What accepts is compared
exactly; what refuses, a revoked identity or a least version, without regard to case.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from aot_runtime.bundle.statement import Predicate
from aot_runtime.contract.names import IDENTIFIER, is_version
from aot_runtime.contract.versions import version_key
from aot_runtime.errors import TrustError
from aot_runtime.regular_files import read_regular
from aot_runtime.texts import shown

from .keys import PUBLIC_BYTES, decode_public, key_id

MAX_POLICY_BYTES = 1 << 20
_PATTERN_OF_NAMES = re.compile(r"\w*[*?][\w*?]*", re.ASCII)


def matches(text: str, pattern: str) -> bool:
    """Compare a text with a pattern, in which `*` stands for any characters, `?` for one, and all else for itself."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def _matches_in_any_case(text: str, pattern: str) -> bool:
    return matches(text.casefold(), pattern.casefold())


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
        least_versions: name of a bundle, or a pattern of names → the oldest version of it that is accepted. Of several
            that fit a name, each has to be met.
        source: where the policy comes from, for messages.
        identities: those whose sigstore signatures are accepted, and those that are revoked.
        trusted_root: a file with the keys and certificates of the sigstore services that are believed; None: those
            of the public ones, as the library `sigstore` has them on this machine.

    Raises:
        TrustError: the policy is not sound; its `reason` is `policy`.
    """

    keys: tuple[TrustedKey, ...] = ()
    least_versions: Mapping[str, str] = field(default_factory=dict)
    source: str = "the policy"
    identities: tuple[TrustedIdentity, ...] = ()
    trusted_root: Path | None = None

    def __post_init__(self) -> None:
        for fault in policy_faults(self):
            raise TrustError(f"{self.source}: {fault}", "policy")
        object.__setattr__(self, "least_versions", dict(self.least_versions))  # the caller's own may change

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
        of_issuer = [item for item in self.identities if item.issuer == issuer]
        for item in of_issuer:
            if item.revoked and _matches_in_any_case(subject, item.subject):
                raise TrustError(f"it is signed by {item}, which {self.source} says is revoked", "revoked")
        for item in of_issuer:
            if not item.revoked and matches(subject, item.subject):
                return item
        there = ", ".join(str(item) for item in self.identities) or "none"
        raise TrustError(
            f"it is signed by {subject!r:.300} of {issuer!r:.300}: unknown to {self.source}; there: {there}", "identity"
        )

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
        if not any(matches(said.name, pattern) for pattern in signer.bundles):
            may = ", ".join(signer.bundles)
            raise TrustError(f"{signer} signed bundle '{said.name}', but may sign {may} only", "name")
        for pattern, least in self.least_versions.items():
            if not _matches_in_any_case(said.name, pattern):
                continue
            if not (is_version(said.version) and version_key(said.version) >= version_key(least)):
                has = f"has version {said.version}" if said.version else "has no version"
                raise TrustError(f"bundle '{said.name}' {has}; {self.source} asks for {least} or later", "version")


def policy_faults(policy: TrustPolicy) -> Iterator[str]:
    """Each fault of a policy, in words. A check takes for granted what those before it hold."""
    for name, kind in (("keys", TrustedKey), ("identities", TrustedIdentity)):
        signers = getattr(policy, name)
        if not (isinstance(signers, tuple | list) and all(isinstance(item, kind) for item in signers)):
            yield f"{name} is {shown(signers)}; a tuple of {kind.__name__} is allowed"
    for key in policy.keys:
        yield from _signer_faults(f"keys.{key.label}", key)
        if not (isinstance(key.public, bytes) and len(key.public) == PUBLIC_BYTES):
            yield f"keys.{key.label}.public is {shown(key.public)}; {PUBLIC_BYTES} bytes are allowed"
    if len({key.public for key in policy.keys}) < len(policy.keys):
        yield "a key is there twice"
    for identity in policy.identities:
        yield from _signer_faults(f"identities.{identity.label}", identity)
        yield from _identity_faults(f"identities.{identity.label}", identity)
    if len({(item.issuer, item.subject) for item in policy.identities}) < len(policy.identities):
        yield "an identity is there twice"
    if not isinstance(policy.trusted_root, str | os.PathLike | None):
        yield f"trusted_root is {shown(policy.trusted_root)}; the path of a file is allowed"
    if policy.trusted_root is not None and not policy.identities:
        yield "trusted_root is for `identities`, of which it has none"
    yield from _version_faults(policy.least_versions)


def _signer_faults(where: str, signer: TrustedKey | TrustedIdentity) -> Iterator[str]:
    names = signer.bundles
    if not (isinstance(names, tuple | list) and all(isinstance(name, str) and name for name in names)):
        yield f"{where}.bundles is {shown(names)}; a tuple of names of bundles, or of patterns of them, is allowed"
    last = signer.expires
    if last is not None and (not isinstance(last, date) or isinstance(last, datetime)):
        yield f"{where}.expires is {shown(last)}; a date without a time is allowed"
    if not isinstance(signer.revoked, bool):
        yield f"{where}.revoked is {shown(signer.revoked)}; True and False are allowed"


def _identity_faults(where: str, identity: TrustedIdentity) -> Iterator[str]:
    issuer, subject = identity.issuer, identity.subject
    if not (isinstance(issuer, str) and isinstance(subject, str)):
        yield f"{where} has issuer {shown(issuer)} and subject {shown(subject)}; texts are allowed"
    if not issuer or not any(letter.isalnum() for letter in subject):
        yield f"{where}: it needs an issuer, and a subject that is not only a pattern"
    if not (issuer.isprintable() and subject.isprintable()):
        yield f"{where}: its issuer or its subject has a character that cannot be printed, which no certificate's has"
    if "*" in issuer or "?" in issuer:
        yield f"{where}.issuer is {shown(issuer)}; it is compared exactly, so no pattern is allowed"


def _version_faults(least_versions: Mapping[str, str]) -> Iterator[str]:
    if not isinstance(least_versions, Mapping):
        yield f"least_versions is {shown(least_versions)}; a mapping of names of bundles to versions is allowed"
    for name, version in least_versions.items():
        if not (isinstance(name, str) and (IDENTIFIER.match(name) or _PATTERN_OF_NAMES.fullmatch(name))):
            yield f"least_versions has {shown(name)}, which is neither the name of a bundle nor a pattern of names"
        if not (isinstance(version, str) and is_version(version)):
            yield f"least_versions.{name}: {shown(version)} is no version of a bundle; '1.2' would be one"


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
        data = read_regular(path, MAX_POLICY_BYTES)
        if len(data) > MAX_POLICY_BYTES:
            raise ValueError(f"it is over {MAX_POLICY_BYTES} bytes")
        entries = msgspec.convert(tomllib.loads(data.decode()), _PolicyFile)
        if not (entries.keys or entries.identities):
            raise ValueError("it has neither `keys` nor `identities`")
        keys = tuple(_keys(entries.keys))
    except OSError as error:
        raise TrustError(f"trust policy {os.fspath(path)} cannot be read: {error.strerror}", "policy") from None
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8 and msgspec, too
        raise TrustError(f"trust policy {os.fspath(path)}: {error}", "policy") from None
    return TrustPolicy(
        keys,
        entries.least_versions,
        f"trust policy {os.fspath(path)}",
        tuple(_identities(entries.identities)),
        Path(path).parent / entries.trusted_root if entries.trusted_root else None,
    )


def _keys(entries: Mapping[str, _KeyEntry]) -> Iterator[TrustedKey]:
    for label, entry in entries.items():
        try:
            public = decode_public(entry.public)
        except ValueError as error:
            raise ValueError(f"keys.{label}.public: {error}") from None
        yield TrustedKey(label, public, entry.bundles, entry.expires, entry.revoked)


def _identities(entries: Mapping[str, _IdentityEntry]) -> Iterator[TrustedIdentity]:
    for label, entry in entries.items():
        yield TrustedIdentity(label, entry.issuer, entry.subject, entry.bundles, entry.expires, entry.revoked)


def find_policy(trust: TrustPolicy | str | os.PathLike[str]) -> TrustPolicy:
    """A policy, or the one in a file. Raises `TrustError`."""
    if isinstance(trust, TrustPolicy):
        return trust
    if not isinstance(trust, str | os.PathLike):
        raise TrustError(f"trust is {shown(trust)}; a TrustPolicy or the path of a policy file is allowed", "policy")
    return read_policy(trust)
